"""Kernels in C for the pointwise and sparse parts of a training step, compiled on this machine.

Hands on: `native.py: native`, the kernels if they are in use, and `compile.py: kernel_name`. Where
there is no compiler, code in torch computes the same. May import nothing of ours but errors.
"""
