"""A single wrong value in `infra/`, planted in the texts that the checks read.

A check is a test function that reads `TEXT`. `unnoticed` plants one mistake after the other and
returns those that no check fails on.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

import pytest

from tests.support.infra.texts import TEXT

Check = Callable[[], None]
Mistake = tuple[str, int, int, str]
"""File, begin and end of what is replaced, and what replaces it."""


def places(
    pattern: str, skipped: tuple[str, ...] = (".md", ".py", ".toml", "requirements.txt")
) -> Iterator[tuple[str, re.Match[str]]]:
    """File and match, wherever the pattern stands in something that is not prose."""
    for name, text in TEXT.items():
        if name.endswith(skipped):
            continue
        for match in re.finditer(pattern, text):
            start = text.rfind("\n", 0, match.start()) + 1
            line = text[start : text.find("\n", match.end())]
            comment = line.lstrip().startswith("#") and not line.startswith("#   ")
            if not comment and "  # " not in text[start : match.start()]:
                yield name, match


def changes(pattern: str, to: str) -> list[Mistake]:
    """Every occurrence of the pattern, changed alone."""
    return [(name, *match.span(), to) for name, match in places(pattern)]


def unnoticed(
    mistakes: Iterable[Mistake], checks: Sequence[Check], monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """File, line and replacement of each mistake that no check fails on."""
    assert not _fails(checks), "nothing is wrong yet"
    found = []
    for name, start, end, to in mistakes:
        text = TEXT[name]
        with monkeypatch.context() as patch:
            patch.setitem(TEXT, name, text[:start] + to + text[end:])
            if not _fails(checks):
                found.append(f"{name}:{text.count(chr(10), 0, start) + 1}: {to}")
    return found


def _fails(checks: Sequence[Check]) -> bool:
    for check in checks:
        try:
            check()
        except (AssertionError, pytest.fail.Exception):
            return True
    return False
