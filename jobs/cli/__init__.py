"""The command `elmwright`: one small function for each subcommand, which calls the code that works.

An entry point that no other package imports; it may import them all. Whatever loads Ray, torch or
MLflow is imported inside the functions, after the arguments have been checked.
"""
