"""Removes secrets from texts for logs, files and MLflow, and refuses configs with a secret.

`hiding.py` finds and removes secrets in any text, `in_configs.py` in a run's settings.
The lowest room of jobs/: it may import only `pipeline`.
"""
