"""Removes secrets from texts for logs, files and MLflow, and refuses configs with a secret.

The lowest room of jobs/: it may import only `pipeline`.
"""
