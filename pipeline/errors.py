"""The three ways a command ends early, each with one sentence for the user.

`UserError`: the user can put it right (exit 2). `Interrupted`: the same command resumes (75).
`Failed`: the run could not continue (1). An `OSError` whose cause is known (a full disk) is told in
a sentence too. Any other exception is a defect; the command writes its traceback to a file.
"""


class UserError(Exception):
    """One sentence for the user: what happened; what to do."""


class Interrupted(Exception):  # noqa: N818 - a state, not a mistake
    """The run was asked to stop and can be resumed by the same command (exit code 75)."""


class Failed(Exception):  # noqa: N818 - the end of a run, told in a sentence
    """The run could not continue, by no mistake of the user's (exit code 1); details are logged."""
