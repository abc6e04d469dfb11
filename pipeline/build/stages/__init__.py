"""The work of a corpus build: clean, select, keep, pack. Each stage is a plain function on files.

A stage takes the names of its input files, writes files whose names begin with `out`, and returns
names and counts as a frozen dataclass of its own. `repeats.py` runs several of them through the
`Runner` of the build. May import `ray_tasks.py` and the rooms below build, but not Ray itself.
"""
