"""Which run a user means, and where each submitted run was sent.

Provides a `RunFolder` for a name, a `Target` for `--to`, and the `Submission` and `Job` of a run
that was sent. Contacts no cluster. May import rundir and what is below it.
"""
