"""Starts the training processes with Ray Train, watches them, stops them, starts them again.

`launch.py: launch` returns when training has ended. Where a run stands is read from its checkpoints
alone. May import loop and the rooms below training, torch and Ray.
"""
