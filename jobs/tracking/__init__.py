"""The journal of a run, sent to MLflow by a thread that training never waits for.

Hands on an open MLflow store to the rooms that need one. Server checks work without importing
MLflow. May import bundles and what is below it, and MLflow.
"""
