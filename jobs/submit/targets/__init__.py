"""The places a run can be sent to: this machine, a Ray cluster, Slurm, Kubernetes.

Each module has one class with the methods of `place.py: Place`, and hands on the `State` of a job.
They speak HTTP or call a program, and import no Ray. May import `attempts.py` and the rooms below
submit.
"""
