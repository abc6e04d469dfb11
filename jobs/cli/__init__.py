"""The command `elmwright`: one small function for each subcommand, which calls the room that works.

An entry point: no room below imports it. It may import every room below. Whatever loads Ray, torch
or MLflow is imported inside the functions, so that `--help` answers at once.
"""
