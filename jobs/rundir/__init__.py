"""The files of a run on disk or in a store: their paths, its lock, its journal.

`layout.py: RunFolder` has every path. `journal.py` writes the record that the display and MLflow
read. May import config and what is below it.
"""
