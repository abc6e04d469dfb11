"""How long work tells how far it is, without knowing who is watching.

A stage takes a `Progress` and opens a bar with it; what a bar looks like (a live display, a plain
line a minute, nothing) is decided by the caller. `Stage` makes one bar of several pieces of work
that are one thing to a user.

Digests are computed in many places, deep below whoever shows a bar. They tell `count_bytes` what
they have read, and `counting_bytes` says who wants to know.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Protocol


class Advance(Protocol):
    """Report that this many more units are done, and how fast it goes."""

    def __call__(self, n: int, detail: str = "", /) -> None: ...


Progress = Callable[[str, int, str], AbstractContextManager[Advance]]
"""`with progress("cleaning", 40, "files") as advance: advance(1, "1,000 words/s")`

An empty unit means that only the share of the total says something. The detail given last is what
a finished bar says of itself."""


@contextmanager
def silent(_name: str, _total: int, _unit: str) -> Iterator[Advance]:
    """A progress display nobody sees, for tests and notebooks."""
    yield lambda _n, _detail="": None


def plural(count: int, unit: str, many: str = "") -> str:
    """1 shard, 2 shards, 1,200 shards; `many` for plurals that take more than an ending."""
    if count == 1:
        return f"1 {unit}"
    if not many:
        many = f"{unit}es" if unit.endswith(("s", "x", "ch", "sh")) else f"{unit}s"
    return f"{count:,} {many}"


SHARE = 1000
"""Units of a bar that belong to one piece of work of a stage."""


class Stage:
    """One bar for several pieces of work, each of which knows only its own size.

    How many pieces there will be is said beforehand, roughly: fewer leave a jump at the end, and
    more share what is left.
    """

    def __init__(self, advance: Advance, pieces: int) -> None:
        """Pieces move the bar of `advance`, whose total is `pieces` times `SHARE`."""
        self._advance, self._total = advance, pieces * SHARE
        self._pieces, self._begun, self._shown = pieces, 0, 0
        self.result = ""
        """What the finished bar says."""

    @contextmanager
    def piece(self, total: int) -> Iterator[Advance]:
        """The next piece of the stage, of this many units."""
        left = max(1, self._pieces - self._begun)
        self._begun += 1
        start, room = self._shown, (self._total - self._shown) / left
        done = 0

        def advance(n: int, detail: str = "", /) -> None:
            nonlocal done
            done += n
            reached = start + int(room * done / total)
            self._advance(reached - self._shown, detail)
            self._shown = reached

        yield advance

    def finish(self) -> None:
        """Fill the bar and give it its last word."""
        self._advance(self._total - self._shown, self.result)
        self._shown = self._total


@contextmanager
def stage(progress: Progress, name: str, pieces: int) -> Iterator[Stage]:
    """A stage under the name a user would give it."""
    with progress(name, pieces * SHARE, "") as advance:
        one = Stage(advance, pieces)
        yield one
        one.finish()


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
    """The digest of so many bytes was computed, or is known already."""
    advance = _counter.get()
    if advance is not None:
        advance(n)
