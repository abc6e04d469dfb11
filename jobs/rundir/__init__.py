"""What a run leaves on disk or in a store: where its files are, its lock, its journal.

`layout.py: RunFolder` hands on every path, so that no other room spells one. `journal.py` is the
record that the display and MLflow are fed from. May import config and what is below it.
"""
