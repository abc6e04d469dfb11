"""What a word is, and what it counts as: decided once for every distinct word.

The Gopher rules have thresholds that datatrove applies to the tokens of spaCy. A share of 0.8 is
about what prose has, so small differences between tokenisers matter: words are counted as spaCy
would split them. By bench_rules.py, 0.8 % of 2,268 documents are still judged differently.
"""

import re
import unicodedata
from collections.abc import Sequence
from operator import add

LETTER, WORD = 1, 2
"""Flags of a word: it contains a letter; it contains more than punctuation."""

STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")
"""English function words that the Gopher rules look for. Word n of these has bit n in
`Facts.stops`."""

STOP_BITS = {word: 1 << bit for bit, word in enumerate(STOP_WORDS)}

COUNTED = ("tokens", "words", "characters", "lettered")
"""What is counted: tokens, those that are more than punctuation, their characters, and those with a
letter."""

Counts = tuple[int, int, int, int]

# Hyphens between words or numbers, and a full stop without its blank (`the end.The beginning`).
_COMPOUND = re.compile(r"((?<=\w)-(?=[^\W\d_])|(?<=\d)-(?=\d)|(?<=[a-z])\.(?=[A-Z]))")
_ALPHANUMERIC = re.compile(r"[^\W_]")
_TIES, _NUMERIC = frozenset("([{×+*"), frozenset("–/")


def flags_of(word: str) -> int:
    """`LETTER` and `WORD` of a word, or-ed."""
    if word.isalpha() or any(map(str.isalpha, word)):
        return LETTER | WORD
    return WORD if _ALPHANUMERIC.search(word) or not all(map(_is_punctuation, word)) else 0


def counted_word(word: str) -> Counts:
    """What a single word counts as. Compounds are their parts and the hyphens between them."""
    if word.isalpha():
        return 1, 1, len(word), 1
    flags = flags_of(word)
    if not ("-" in word or "." in word or "_" in word):
        is_word = int(flags & WORD != 0)
        return 1, is_word, len(word) * is_word, flags & LETTER
    core = word.strip("_")
    parts = _COMPOUND.split(core) if core else []
    known = [flags_of(part) for part in parts]
    words = [part for part, flag in zip(parts, known, strict=True) if flag & WORD]
    letters = sum(flag & LETTER for flag in known)
    return len(word) - len(core) + len(parts), len(words), sum(map(len, words)), letters


def _is_punctuation(character: str) -> bool:
    return character in "$+<=>^`|~´" or unicodedata.category(character)[0] in "PC"


def counted(words: Sequence[str], flags: Sequence[int], rows: Sequence[Sequence[int]]) -> list[int]:
    """What the words of one chunk count as in spaCy.

    spaCy splits compounds at hyphens, and treats words with most other symbols between them as one:
    `1914–1918`, `f(x`, `6×4`, `so,—he`. `flags` and `rows` are those of the single words
    (`flags_of`, `counted_word`).
    """
    totals = [0] * len(COUNTED)
    place = 0
    while place < len(words):
        end = place + 1
        if flags[place] & WORD:
            while (further := _glued(words, flags, end)) > end:
                end = further
        if end - place == 1:
            row = rows[place]
        else:
            has_letter = any(flag & LETTER for flag in flags[place:end])
            row = (1, 1, sum(map(len, words[place:end])), int(has_letter))
        totals = list(map(add, totals, row))
        place = end
    return totals


def _glued(words: Sequence[str], flags: Sequence[int], place: int) -> int:
    """The end of the word that symbols at `place` tie to the word before; `place` if none do."""
    end = place
    while end < len(words) and not flags[end] & WORD:
        end += 1
    if end in (place, len(words)):
        return place
    symbols = "".join(words[place:end])
    numeric = symbols in _NUMERIC and words[end][0].isdigit()
    return end + 1 if end - place > 1 or symbols in _TIES or numeric else place
