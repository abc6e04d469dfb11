"""The machine, the packages and the code that this process runs with.

Provides the facts for provenance, the number of cores to use, and the package as a wheel for a
submission. May import secrets. torch is imported only to name the GPUs.
"""
