"""Starts the training processes with Ray Train, watches them, stops them and restarts them.

`launch.py: launch` returns when training has ended. A run's progress is read only from its
checkpoints. May import loop and the rooms below training, torch and Ray.
"""
