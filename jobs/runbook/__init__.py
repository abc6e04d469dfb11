"""Which run a user means, and where each submitted run went.

Hands on a `RunFolder` for a name, a `Target` for `--to`, and `Submission` and `Job` for what was
sent. Asks no cluster. May import rundir and what is below it.
"""
