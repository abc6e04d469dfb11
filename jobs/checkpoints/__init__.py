"""The format of a checkpoint and the thread that writes it: complete and verified, or not there.

Takes a `Snapshot` from the loop and hands on `CheckpointInfo`. An attempt number keeps an old
process from writing. May import cluster and what is below it. `writer.py` loads torch.
"""
