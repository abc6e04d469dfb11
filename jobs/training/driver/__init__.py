"""Starts the training processes with Ray Train, watches them, stops them and restarts them.

`launch.py: launch` returns when training has ended. How far a run is, is read from its checkpoints
alone. May import loop and the rooms below training, torch and Ray.
"""
