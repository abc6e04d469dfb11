"""The one error a user sees.

Anything that is the user's to put right (a config key, a missing file, a full disk) is raised as
`UserError` with one sentence that says what happened and what to do. The command prints it after
`error:` and exits with code 2, without a traceback. Everything else is a defect of ours and keeps
its traceback.
"""


class UserError(Exception):
    """One sentence for the user: what happened; what to do."""


class Interrupted(Exception):  # noqa: N818 - a state, not a mistake
    """The run was asked to stop and can be resumed by the same command (exit code 75)."""


class Failed(Exception):  # noqa: N818 - the end of a run, told in a sentence
    """The run could not continue, by no mistake of the user's (exit code 1); details are logged."""
