"""Lets long-running work report its progress without knowing how it is displayed.

A stage takes a `Progress` and opens a bar with it. The caller decides what a bar looks like: a live
display, a plain line per minute, or nothing. `Stage` shows several pieces of work as one bar.

Digests are computed many calls below the code that shows a bar. There, `count_bytes` advances the
bar that was passed to `counting_bytes`.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Protocol


class Advance(Protocol):
    """Reports that `n` more units are done, with a detail to show, such as the speed."""

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


PIECE_UNITS = 1000
"""Units of a stage's bar per piece of work."""


class Stage:
    """One bar for several pieces of work, each of which knows only its own size.

    The number of pieces is an estimate. If there are fewer, the bar jumps at the end. If there are
    more, they share the rest of the bar.
    """

    def __init__(self, advance: Advance, pieces: int) -> None:
        """Pieces move the bar of `advance`, whose total is `pieces` times `PIECE_UNITS`."""
        self._advance, self._total = advance, pieces * PIECE_UNITS
        self._pieces, self._begun, self._shown = pieces, 0, 0
        self.result = ""
        """Shown in the finished bar."""

    @contextmanager
    def piece(self, total: int) -> Iterator[Advance]:
        """Begin the next piece of work, whose own size is `total` units."""
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
    """Show one bar for several pieces of work, and fill it at the end of the block."""
    with progress(name, pieces * PIECE_UNITS, "") as advance:
        open_stage = Stage(advance, pieces)
        yield open_stage
        open_stage.finish()


_counter: ContextVar[Advance | None] = ContextVar("counter", default=None)


@contextmanager
def counting_bytes(advance: Advance) -> Iterator[None]:
    """Report to `advance` every byte whose digest is computed, or already known, in the block."""
    token = _counter.set(advance)
    try:
        yield
    finally:
        _counter.reset(token)


def count_bytes(n: int) -> None:
    """Report that the digest of `n` more bytes was computed or already known."""
    advance = _counter.get()
    if advance is not None:
        advance(n)
