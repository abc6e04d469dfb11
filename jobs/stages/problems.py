"""What is wrong with a run, as sentences: collected first, then reported all at once."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from elmwright.pipeline.errors import UserError
from elmwright.pipeline.storage.disk import explain

T = TypeVar("T")


class Problems(list[str]):
    """Sentences, in the order in which they were found; none twice."""

    def of(self, call: Callable[..., T], *arguments: Any) -> T | None:
        """What the call returns, or None after noting why it refused."""
        try:
            return call(*arguments)
        except UserError as error:
            self.note(str(error))
        except OSError as error:
            reason = explain(error, Path(error.filename or "here"))
            reason = reason or f"a store or disk does not answer as it should ({error})"
            self.note(" ".join(reason.split())[:400])
        return None

    def note(self, problem: str | None) -> None:
        """Add a problem, if it is one and new."""
        if problem and problem not in self:
            self.append(problem)


def as_text(problems: Sequence[str]) -> str:
    """One problem as its sentence, several as a list."""
    if len(problems) == 1:
        return problems[0]
    return "\n".join((f"{len(problems)} things to put right:", *(f"  - {p}" for p in problems)))
