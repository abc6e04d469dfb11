"""Collects what is wrong with a run as sentences, to report them all at once."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from elmwright.pipeline.errors import Code, UserError
from elmwright.pipeline.storage.disk import explain

T = TypeVar("T")


class Problems(list[str]):
    """Sentences in the order in which they were noted, without repetition."""

    def __init__(self) -> None:
        super().__init__()
        self._codes: list[Code] = []

    def catch(self, function: Callable[..., T], *arguments: Any) -> T | None:
        """Call a function and return its result; note its error and return None if it fails."""
        try:
            return function(*arguments)
        except UserError as error:
            self.note(str(error), error.code)
        except OSError as error:
            path = Path(error.filename or "here")  # not every error names its file
            mistake = explain(error, path) or UserError(
                "store-failed", f"a store or disk does not answer as it should ({error})"
            )
            # Errors of object stores can be long, and have several lines.
            self.note(" ".join(str(mistake).split())[:400], mistake.code)
        return None

    def note(self, problem: str | None, code: Code = "setting") -> None:
        """Add a problem, unless it is empty or already noted."""
        if problem and problem not in self:
            self.append(problem)
            self._codes.append(code)

    def raise_all(self) -> None:
        """Raise all problems as one error, if there are any."""
        if self:
            raise UserError(self._codes[0] if len(self) == 1 else "problems", as_text(self))


def as_text(problems: Sequence[str]) -> str:
    """One problem as its sentence, several as a list."""
    if len(problems) == 1:
        return problems[0]
    return "\n".join((f"{len(problems)} things to fix:", *(f"  - {p}" for p in problems)))
