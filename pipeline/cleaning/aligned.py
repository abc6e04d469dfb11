"""Repaired text that knows which characters of the raw text each of its characters came from.

Words are found in repaired text (`repair.repaired`), but whoever gives raw text wants places in
that. So here the same repairs are done step by step, and every step carries the places along:

- A wrong decoding is undone a line at a time. Chunks between blanks are compared one by one, and
  what differs within a chunk comes from all of what differed before.
- Blanks, line breaks and invisible characters are replaced or removed one by one.
- NFC is applied to the shortest stretches that do not interact with their neighbours. A stretch
  that changes comes from all of its characters: `é` from `e` and the accent.
- Quotes are straightened one by one.

So places are exact except inside what was repaired, where they cover a little too much. They never
decrease. The text is that of `repair.repaired`, which a test compares for all kinds of input. Only
text that needs a repair pays for this: about a microsecond per character.
"""

import unicodedata
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from elmwright.pipeline.cleaning import repair


@dataclass(frozen=True)
class Aligned:
    """A repaired text and where it came from."""

    text: str
    """As `repair.repaired` gives it, without masks."""
    starts: list[int] | None
    """Where the raw characters of each character begin; None if nothing was repaired, so that all
    places are the same."""
    ends: list[int] | None
    """Where they end."""

    def place(self, start: int, end: int) -> tuple[int, int]:
        """The raw range of a range of the text."""
        if self.starts is None or self.ends is None:
            return start, end
        if start == end:
            place = self.starts[start] if start < len(self.starts) else self.ends[-1]
            return place, place
        return self.starts[start], self.ends[end - 1]


def aligned(raw: str, *, mojibake: bool, normalise: bool, quotes: str) -> Aligned:
    """A raw text repaired by these settings (see `CorpusConfig`)."""
    text = repair.fix_mojibake(raw) if mojibake else raw
    normal = repair.normalise(text) if normalise else repair.tidied(text)
    if quotes == "straight":
        normal = repair.straighten(normal)
    if normal == raw:
        return Aligned(raw, None, None)
    traced = _Traced(list(raw), list(range(len(raw))), list(range(1, len(raw) + 1)))
    if text != raw:
        traced = _decoded(raw, text)
    traced = _without_odd_blanks(traced, normalise)
    if normalise:
        traced = _composed(traced)
    joined = "".join(traced.characters)
    if quotes == "straight":
        joined = repair.straighten(joined)  # a character for a character
    return Aligned(joined, traced.starts, traced.ends)


@dataclass
class _Traced:
    """Characters, and the raw range of each."""

    characters: list[str]
    starts: list[int]
    ends: list[int]

    def add(self, characters: str, start: int, end: int) -> None:
        self.characters.extend(characters)
        self.starts.extend([start] * len(characters))
        self.ends.extend([end] * len(characters))


def _decoded(raw: str, fixed: str) -> _Traced:
    """The text after wrong decodings were undone, which changes no line break."""
    traced = _Traced([], [], [])
    place = 0
    for old_line, new_line in zip(raw.split("\n"), fixed.split("\n"), strict=True):
        if place:
            traced.add("\n", place - 1, place)
        old, new = old_line.split(" "), new_line.split(" ")
        if len(old) != len(new):
            old, new = [old_line], [new_line]
        begin = place
        for number, (before, after) in enumerate(zip(old, new, strict=True)):
            if number:
                traced.add(" ", begin - 1, begin)
            _compare(traced, before, after, begin)
            begin += len(before) + 1
        place += len(old_line) + 1
    return traced


def _compare(traced: _Traced, before: str, after: str, place: int) -> None:
    """Add `after`, which was `before` at this place: the ends that are equal one by one."""
    head = _common(before, after)
    tail = _common(before[head:][::-1], after[head:][::-1])
    for number in range(head):
        traced.add(after[number], place + number, place + number + 1)
    traced.add(after[head : len(after) - tail], place + head, place + len(before) - tail)
    for number in range(tail, 0, -1):
        end = place + len(before) - number + 1
        traced.add(after[len(after) - number], end - 1, end)


def _common(one: str, other: str) -> int:
    """How many first characters are the same."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))


def _without_odd_blanks(text: _Traced, normalise: bool) -> _Traced:
    """Plain blanks and line breaks, never two blanks in a row, none at the ends of a line."""
    result = _Traced([], [], [])
    plain = _plain if normalise else _tidy
    blank: tuple[int, int] | None = None
    was_return = False
    for character, start, end in zip(text.characters, text.starts, text.ends, strict=True):
        if character == "\n" and was_return:
            if result.ends:
                result.ends[-1] = end
            was_return = False
            continue
        was_return = character == "\r"
        new = plain(character)
        if new == " ":
            blank = (blank[0] if blank else start, end)
        elif new == "\n":
            blank = None
            if result.characters:
                result.add(new, start, end)
        elif new:
            if blank and result.characters and result.characters[-1] != "\n":
                result.add(" ", *blank)
            blank = None
            result.add(new, start, end)
    while result.characters and result.characters[-1] == "\n":
        del result.characters[-1], result.starts[-1], result.ends[-1]
    return result


@lru_cache(maxsize=1 << 14)
def _plain(character: str) -> str:
    return repair.plain(character)


def _tidy(character: str) -> str:
    if character in "\r\n":
        return "\n"
    if character.isspace() or character < " " or character == "\x7f":
        return " "
    return "\ufffd" if "\ud800" <= character <= "\udfff" else character


def _composed(text: _Traced) -> _Traced:
    """The text in NFC."""
    joined = "".join(text.characters)
    if unicodedata.is_normalized("NFC", joined):
        return text
    result = _Traced([], [], [])
    borders = [n for n, character in enumerate(joined) if n == 0 or _begins(character)]
    for start, end in pairwise([*borders, len(joined)]):
        stretch = joined[start:end]
        normal = unicodedata.normalize("NFC", stretch)
        if normal == stretch:
            result.characters.extend(stretch)
            result.starts.extend(text.starts[start:end])
            result.ends.extend(text.ends[start:end])
        else:
            result.add(normal, text.starts[start], text.ends[end - 1])
    return result


@lru_cache(maxsize=1 << 14)
def _begins(character: str) -> bool:
    """Whether NFC never changes this character and the ones before it together."""
    first = unicodedata.normalize("NFD", character)[0]
    return unicodedata.combining(first) == 0 and first not in _seconds()


@lru_cache(maxsize=1)
def _seconds() -> frozenset[str]:
    """Characters that can be composed with one before them."""
    jamo = {chr(c) for c in (*range(0x1161, 0x1176), *range(0x11A8, 0x11C3))}
    parts = (unicodedata.decomposition(chr(c)).split() for c in range(0xC0, 0x30000))
    return frozenset(
        jamo | {chr(int(part[1], 16)) for part in parts if len(part) == 2 and part[0][0] != "<"}
    )
