"""Files that claim what they do not hold: every field of a JSON file set to every odd value.

`refusals` runs a reader over all of them, with little memory and little time. A reader may succeed,
or raise the error it promises; whatever else happens is returned.
"""

import copy
import json
import math
import resource
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from elmwright.pipeline.errors import UserError

VALUES: tuple[Any, ...] = (
    -1,
    0,
    10**9,
    2**63,
    10**400,
    1e308,
    math.nan,
    math.inf,
    "x",
    "../../x",
    None,
    [],
    {},
    [[]],
    True,
)
SECONDS = 10
"""CPU time allowed for one file: a hang takes for ever, and other work does not count."""
MEMORY = 512 << 20
"""Bytes that one file may cost."""


def variants(content: Any) -> Iterator[tuple[str, Any]]:
    """Copies of a JSON value in which one field has an odd value, or is gone; and what was done."""
    for path in _paths(content):
        for value in VALUES:
            changed = copy.deepcopy(content)
            _parent(changed, path)[path[-1]] = value
            yield f"{'.'.join(map(str, path))} = {value!r:.20}", changed
        changed = copy.deepcopy(content)
        del _parent(changed, path)[path[-1]]
        yield f"no {'.'.join(map(str, path))}", changed
    for value in VALUES:
        yield f"all of it {value!r:.20}", value


def texts(content: Any) -> Iterator[tuple[str, bytes]]:
    """The same as the bytes of a file, and some that are not JSON."""
    for name, changed in variants(content):
        yield name, json.dumps(changed).encode()
    good = json.dumps(content).encode()
    yield "empty", b""
    yield "cut", good[: len(good) // 2]
    yield "zeros", bytes(1000)
    yield "no UTF-8", good + b"\xff\xfe"
    yield "nested", b"[" * 100_000
    yield "a nested field", good.rstrip()[:-1] + b', "x": ' + b"[" * 100_000
    yield "a long number", good.rstrip()[:-1] + b', "x": ' + b"9" * 10_000 + b"}"


def _paths(content: Any, inside: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    pairs: Iterable[tuple[Any, Any]] = ()
    if isinstance(content, dict):
        pairs = content.items()
    elif isinstance(content, list):
        pairs = list(enumerate(content))[:2]
    for key, value in pairs:
        yield (*inside, key)
        yield from _paths(value, (*inside, key))


def _parent(content: Any, path: tuple[Any, ...]) -> Any:
    for key in path[:-1]:
        content = content[key]
    return content


class TooSlow(BaseException):
    """No reader may take this for an error of the file."""


@contextmanager
def bounded(seconds: float = SECONDS, memory: int = MEMORY) -> Iterator[None]:
    """Little memory and little time for what is done inside."""

    def late(*_: object) -> None:
        raise TooSlow(f"took more than {seconds} s")

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    handler = signal.signal(signal.SIGPROF, late)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + memory, before[1]))
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, before)
        signal.signal(signal.SIGPROF, handler)


@contextmanager
def waiting_at_most(seconds: int) -> Iterator[None]:
    """No waiting without end for what is done inside: a pipe without a writer costs no CPU time."""

    def late(*_: object) -> None:
        raise TooSlow(f"waited more than {seconds} s")

    handler = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)


def refusals(
    cases: Iterable[tuple[str, bytes]],
    write: Callable[[bytes], None],
    read: Callable[[], object],
    named: str = "",
    promised: tuple[type[Exception], ...] = (UserError,),
) -> tuple[list[str], int]:
    """What went wrong, a line each, and how many files were refused as they should be.

    A refusal is one sentence on one line, of bearable length, and says `named`.
    """
    wrong, refused = [], 0
    for name, data in cases:
        write(data)
        try:
            with bounded():
                read()
        except promised as error:
            refused += 1
            text = str(error)
            if named not in text or "\n" in text or len(text) > 600:
                wrong.append(f"{name}: says {text[:300]!r}")
        except BaseException as error:
            wrong.append(f"{name}: {type(error).__name__}: {str(error)[:150]}")
    return wrong, refused
