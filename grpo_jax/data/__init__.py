"""Data sets, and the order in which examples come (loader.py).

A data set is a file of this folder, or a file or module of yours that `data.name` names. It holds

    settings() -> ConfigDict            its own settings with their defaults: the section data.NAME of the config
    source(split, path, cfg) -> Sequence[Example]

`split` is the name of a split (`data.train`, `data.test`), `path` is `data.path`, and `cfg` is the data set's own
section. What `source` returns has a length and can be indexed; `types.Example` says what an example is.
"""
