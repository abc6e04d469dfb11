"""Finds the word that a sentence marks with brackets, as in `they [play] in the garden`.

The brackets are taken out before the sentence is split into words, so the model's own rules see
the sentence as it was written. Brackets around nothing (`they [] in the garden`) mark a gap, and
those around several words mark all of them, to be replaced by one.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from elmwright.pipeline.errors import UserError


@dataclass(frozen=True)
class MarkedText:
    """A sentence without its brackets."""

    text: str
    start: int
    """Where the marked text begins in it."""
    end: int
    """Where the marked text ends; equal to `start` for a gap."""


@dataclass(frozen=True)
class MarkedWords:
    """The words of a sentence: before the mark, inside it, and after it."""

    before: tuple[str, ...]
    words: tuple[str, ...]
    """The marked ones; none for a gap."""
    after: tuple[str, ...]


def find_mark(sentence: str) -> MarkedText:
    """The sentence and what it marks; UserError unless it has exactly one pair of brackets."""
    match = re.fullmatch(r"([^\[\]]*)\[([^\[\]]*)\]([^\[\]]*)", sentence, re.DOTALL)
    if match is None:
        count = sentence.count("["), sentence.count("]")
        raise UserError(
            "argument",
            f"the sentence {sentence[:80]!r} has {count[0]} '[' and {count[1]} ']'; put one pair "
            "of brackets around one word, as in 'they [play] in the garden'",
        )
    before, marked, after = match.groups()
    inner = marked.strip()
    if not inner:
        return MarkedText(f"{before} {after}", len(before), len(before))
    start = len(before) + marked.index(inner)
    return MarkedText(before + marked + after, start, start + len(inner))


def words_around(marked: MarkedText, tokens: Iterable[tuple[str, int, int]]) -> MarkedWords:
    """The words before, in and after the mark; a token is a word, its start and its end.

    A word of which only a part is marked is marked.
    """
    before, words, after = [], [], []
    for word, start, end in tokens:
        if end <= marked.start:
            before.append(word)
        elif start >= marked.end:
            after.append(word)
        else:
            words.append(word)
    return MarkedWords(tuple(before), tuple(words), tuple(after))


def marked_list(words: Sequence[str]) -> MarkedWords:
    """The words of a sentence that is given as a list; brackets are at the edges of words."""
    for place, word in enumerate(words):
        if not isinstance(word, str):
            raise UserError("input", f"word {place} is {word!r:.40}, not a string")
    mark = find_mark(" ".join(words))
    tokens = ((found[0], *found.span()) for found in re.finditer(r"[^ ]+", mark.text))
    return words_around(mark, tokens)
