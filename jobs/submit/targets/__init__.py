"""The targets that a run can be sent to: this machine, a Ray cluster, Slurm, Kubernetes.

Each module has one class with the methods of `place.py: Place`. They use HTTP or call a program,
and import no Ray. May import `attempts.py` and the rooms below submit.
"""
