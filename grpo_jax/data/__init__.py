"""Data sets, and the order in which examples come (loader.py).

A data set is a file of this folder, or a file or module of yours that `data.name` names. It holds

    settings() -> ConfigDict            its own settings with their defaults
    source(split, path, cfg) -> Sequence[Example]

Its settings are a section of the config under its name. Those of the data sets here are in
grpo_jax/setup/defaults.py; a config file adds the section of another one with
`c.data.my_data = my_data.settings()`. Without it the defaults hold.

`split` is the name of a split (`data.train`, `data.test`), `path` is `data.path`, and `cfg` is the
data set's own section. `source` returns a sequence of `types.Example` with a length and an index.
"""
