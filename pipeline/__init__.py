"""Raw text in any form becomes a corpus: blocks in WebDataset shards, vocabulary and manifest.

Rooms from top to bottom: build, report, dedup, cleaning, reading, format, storage, then the
modules config, progress and errors. Each may import those below it. None may import model/, jobs/,
torch or MLflow, and only `build` may import Ray.
"""
