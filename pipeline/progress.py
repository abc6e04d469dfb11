"""How long work reports its progress, without knowing how it is shown.

A stage takes a `Progress` and opens a bar with it. The caller decides what a bar looks like: a live
display, a plain line per minute, or nothing. `Stage` shows several pieces of work as one bar.

Digests are computed in many places, deep below the code that shows a bar. They call `count_bytes`,
which reports to the bar of `counting_bytes`.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Protocol


class Advance(Protocol):
    """Report that this many more units are done, and how fast."""

    def __call__(self, n: int, detail: str = "", /) -> None: ...


Progress = Callable[[str, int, str], AbstractContextManager[Advance]]
"""`with progress("cleaning", 40, "files") as advance: advance(1, "1,000 words/s")`

With an empty unit, only the share of the total is shown. A finished bar shows the last detail."""


@contextmanager
def silent(_name: str, _total: int, _unit: str) -> Iterator[Advance]:
    """A progress display that shows nothing, for tests and notebooks."""
    yield lambda _n, _detail="": None


def plural(count: int, unit: str, many: str = "") -> str:
    """1 shard, 2 shards, 1,200 shards; `many` is an irregular plural."""
    if count == 1:
        return f"1 {unit}"
    if not many:
        many = f"{unit}es" if unit.endswith(("s", "x", "ch", "sh")) else f"{unit}s"
    return f"{count:,} {many}"


SHARE = 1000
"""Units of a bar that belong to one piece of work of a stage."""


class Stage:
    """One bar for several pieces of work, each of which knows only its own size.

    The number of pieces is an estimate: with fewer, the bar jumps at the end, and with more, they
    share the rest of the bar.
    """

    def __init__(self, advance: Advance, pieces: int) -> None:
        """Pieces move the bar of `advance`, whose total is `pieces` times `SHARE`."""
        self._advance, self._total = advance, pieces * SHARE
        self._pieces, self._begun, self._shown = pieces, 0, 0
        self.result = ""
        """The text of the finished bar."""

    @contextmanager
    def piece(self, total: int) -> Iterator[Advance]:
        """The next piece of the stage, of this many units."""
        start = self._shown
        width = (self._total - start) / max(1, self._pieces - self._begun)
        self._begun += 1
        done = 0

        def advance(n: int, detail: str = "", /) -> None:
            nonlocal done
            done += n
            reached = start + int(width * done / total)
            self._advance(reached - self._shown, detail)
            self._shown = reached

        yield advance

    def finish(self) -> None:
        """Fill the bar and show the result."""
        self._advance(self._total - self._shown, self.result)


@contextmanager
def stage(progress: Progress, name: str, pieces: int) -> Iterator[Stage]:
    """A stage under the name a user would give it."""
    with progress(name, pieces * SHARE, "") as advance:
        open_stage = Stage(advance, pieces)
        yield open_stage
        open_stage.finish()


_counter: ContextVar[Advance | None] = ContextVar("counter", default=None)


@contextmanager
def counting_bytes(advance: Advance) -> Iterator[None]:
    """Report to `advance` every byte whose digest is computed, or known, inside the block."""
    token = _counter.set(advance)
    try:
        yield
    finally:
        _counter.reset(token)


def count_bytes(n: int) -> None:
    """Report that the digest of `n` more bytes was computed, or is known already."""
    advance = _counter.get()
    if advance is not None:
        advance(n)
