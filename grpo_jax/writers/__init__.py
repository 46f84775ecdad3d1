"""Takes a run's numbers besides metrics.jsonl: classes that `log.writers` names, one file each.

    class Writer:
      def __init__(self, folder, config, first_step): ...   # the run's folder, its config as JSON
      def write(self, step, metrics): ...                   # finite numbers by their names
      def close(self): ...                                  # the run ends

A file of yours with such a class is named in the same way: "package.module" or "path/file.py".
`first_step` is 0, or the step from which a run is resumed: steps after it come again. On several
hosts only process 0 has one. A writer that raises is told once and is not the end of the run.
"""
