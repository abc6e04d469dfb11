"""Everything a person reads on the screen: sentences, tables, progress bars, and exit codes.

Hands on a `Console` to write to and a `Stop` that says whether Ctrl-C or SIGTERM came. May import
environment and what is below it.
"""
