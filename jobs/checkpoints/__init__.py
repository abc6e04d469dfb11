"""The format of a checkpoint, and the thread that writes it: completely or not at all.

Takes a `Snapshot` from the loop and returns `CheckpointInfo`. An attempt number keeps old processes
from writing. May import cluster and what is below it. `writer.py` loads torch.
"""
