"""Runs that happen elsewhere: send, watch, cancel, resume, retry, and what the job itself runs.

`targets/place.py: Place` is what a target must do; `job.py` runs where the target put it. The room
may import planning and what is below it. `doctor.py` also imports Ray and torch, on the cluster.
"""
