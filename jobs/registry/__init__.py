"""Versions of a model and the aliases that move over them, in MLflow or in a plain folder.

`contract.py: Registry` is what both kinds do. `resolve.py: resolve` turns the name of any MODEL
into a verified folder. May import tracking and what is below it, and MLflow.
"""
