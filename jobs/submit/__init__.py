"""Submitted runs: send, watch, cancel, resume, retry, and the job itself.

`targets/place.py: Place` is the contract of a target. `job.py` is what a target runs.
May import planning and what is below it. `doctor.py` also imports Ray and torch, on the cluster.
"""
