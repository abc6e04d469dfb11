"""From the blocks of a corpus to all that a step computes with, prepared ahead of it.

Hands on `StepInput` to the loop and batches to evaluation. May import `exchange.py` of the loop,
and what the loop may.
"""
