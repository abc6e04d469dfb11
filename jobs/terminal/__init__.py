"""Everything a user reads on the screen: sentences, tables, progress bars, and exit codes.

Gives a `Console` to write to and a `Stop` that reports Ctrl-C and SIGTERM. May import environment
and what is below it.
"""
