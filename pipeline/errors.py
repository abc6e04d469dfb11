"""The three ways a command ends early, each with one sentence for the user.

`UserError`: the user can fix it (exit 2). `Interrupted`: the same command resumes (75).
`Failed`: the run could not continue (1). An `OSError` whose cause is known (a full disk) becomes a
UserError. Any other exception is a defect, and the command writes its traceback to a file.

Every UserError has a code for programs. Codes are stable; docs/errors.md lists them.
"""

from typing import Literal, Self

Code = Literal[
    "alias",
    "argument",
    "busy",
    "capacity",
    "checkpoint-missing",
    "cluster-refused",
    "cluster-unreachable",
    "corpus-missing",
    "device",
    "disk-full",
    "environment",
    "file-damaged",
    "file-missing",
    "file-unreadable",
    "format",
    "input",
    "memory",
    "model-incomplete",
    "model-invalid",
    "model-missing",
    "no-text",
    "not-comparable",
    "output",
    "permission",
    "port",
    "problems",
    "run-changed",
    "run-missing",
    "run-state",
    "secret",
    "setting",
    "shared-path",
    "signature",
    "source",
    "split-missing",
    "store-failed",
    "store-refused",
    "target",
    "tracking-server",
    "untrusted",
    "version-missing",
    "vocabulary",
    "worse",
]


class UserError(Exception):
    """A mistake that the user can fix: a code, and what happened and what to do."""

    def __init__(self, code: Code, sentence: str) -> None:
        # Both are arguments of Exception, so that Ray can pickle the error.
        super().__init__(code, sentence)
        self.code: Code = code

    def __str__(self) -> str:
        return str(self.args[1])

    def saying(self, sentence: str) -> Self:
        """The same mistake in other words."""
        return type(self)(self.code, sentence)


class Interrupted(Exception):  # noqa: N818 - a state, not a mistake
    """The run was asked to stop and can be resumed by the same command (exit code 75)."""


class Failed(Exception):  # noqa: N818 - the end of a run, told in a sentence
    """The run could not continue, by no mistake of the user's (exit code 1); details are logged."""
