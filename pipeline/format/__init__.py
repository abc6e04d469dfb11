"""The published format of a corpus: block, shard, manifest, vocabulary, and the order of reading.

This is the contract between the corpus and everyone who reads it: `Block`, `Shard`, `Manifest`, and
a position in the data for each (seed, step). Training, evaluation and `elmwright.shards` use it.
May import storage and what is below it. `loader.py` also imports webdataset, when called.
"""
