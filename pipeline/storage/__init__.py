"""Files on a disk or in an object store, by path or URL, written whole or not at all.

`files.py` hands on bytes and file facts, `untrusted.py` checked JSON and arrays. Every other room
reads and writes through it. May import config, progress and errors.
"""
