"""How long work tells how far it is, without knowing who is watching.

A stage takes a `Progress` and opens a bar with it; what a bar looks like (a live display, a plain
line a minute, nothing) is decided by the caller.

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
"""`with progress("clean", 40, "files") as advance: advance(1, "1,000 words/s")`"""


@contextmanager
def silent(_name: str, _total: int, _unit: str) -> Iterator[Advance]:
    """A progress display nobody sees, for tests and notebooks."""
    yield lambda _n, _detail="": None


_counter: ContextVar[Advance | None] = ContextVar("counter", default=None)


@contextmanager
def counting_bytes(advance: Advance) -> Iterator[None]:
    """Report to `advance` every byte that is read for a digest inside the block."""
    token = _counter.set(advance)
    try:
        yield
    finally:
        _counter.reset(token)


def count_bytes(n: int) -> None:
    """So many bytes were read for a digest."""
    advance = _counter.get()
    if advance is not None:
        advance(n)
