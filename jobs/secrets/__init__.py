"""What counts as a secret in a text, and the text without it.

Hands on texts that are safe for logs, files and MLflow, and refuses configs that hold a secret. The
lowest room of jobs/: it may import only `pipeline`.
"""
