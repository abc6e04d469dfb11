"""The command `elmwright`: one small function for each subcommand, which calls the room that works.

A door: no room below imports it. It may import every room below, and does so inside the
functions, so that `--help` answers at once.
"""
