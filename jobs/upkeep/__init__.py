"""Commands that look at runs and tidy them: runs, status, verify, prune, ui.

Hands on facts read from files. Starts no work, and never needs Ray or torch. May import publishing
and what is below it.
"""
