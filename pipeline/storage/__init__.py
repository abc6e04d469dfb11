"""Files on a disk or in an object store, by path or URL, written whole or not at all.

`files.at` turns a path into a location with methods, and `untrusted.py` reads checked JSON and
arrays. All other rooms read and write files through it. May import config, progress and errors.
"""
