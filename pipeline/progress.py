"""How long work tells how far it is, without knowing who is watching.

A stage takes a `Progress` and opens a bar with it; what a bar looks like (a live display, a plain
line a minute, nothing) is decided by the caller.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
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


def plural(count: int, unit: str, many: str = "") -> str:
    """1 shard, 2 shards, 1,200 shards; `many` for plurals that take more than an ending."""
    if count == 1:
        return f"1 {unit}"
    if not many:
        many = f"{unit}es" if unit.endswith(("s", "x", "ch", "sh")) else f"{unit}s"
    return f"{count:,} {many}"
