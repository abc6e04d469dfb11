"""What a word is, and what it counts as: decided once for every distinct word.

The Gopher rules count tokens, with thresholds that datatrove applies to the tokens of spaCy. Ours
differ from those here and there, and a share of 0.8 is where prose lies, so what is counted is what
spaCy would have split. bench_rules.py counts the documents that are judged otherwise all the same:
0.8 % of 2,268.
"""

import re
import unicodedata
from collections.abc import Sequence

LETTER, WORD, STOP = 1, 2, 4
"""Flags of a word: it holds a letter; it holds more than punctuation; it is one of the English
function words that the Gopher rules look for."""

STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")
"""Bit n of `Lexicon.stops` is set for the word n of these."""

STOP_BITS = {word: 1 << bit for bit, word in enumerate(STOP_WORDS)}

COUNTED = ("tokens", "words", "characters", "lettered")
"""What is counted of text: tokens; those that are more than punctuation, and their characters;
those with a letter."""

Counts = tuple[int, int, int, int]

# Hyphens between words or numbers, and a full stop without its blank (`the end.The beginning`).
_COMPOUND = re.compile(r"((?<=\w)-(?=[^\W\d_])|(?<=\d)-(?=\d)|(?<=[a-z])\.(?=[A-Z]))")
_ALPHANUMERIC = re.compile(r"[^\W_]")
_TIES, _NUMERIC = frozenset("([{×+*"), frozenset("–/")


def flags_of(word: str) -> int:
    """`LETTER`, `WORD` and `STOP` of a word, or-ed."""
    if word.isalpha() or any(map(str.isalpha, word)):
        return LETTER | WORD | (STOP if word in STOP_BITS else 0)
    return WORD if _ALPHANUMERIC.search(word) or not all(map(_is_punctuation, word)) else 0


def counted_word(word: str) -> Counts:
    """What a word alone counts as: compounds are their parts and the hyphens between them."""
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


def counted(words: Sequence[str], flags: Sequence[int], rows: Sequence[Sequence[int]]) -> Counts:
    """What the words of one chunk count as in spaCy, which datatrove counts with.

    It splits compounds at hyphens, and takes words with most other symbols between them for one:
    `1914–1918`, `f(x`, `6×4`, `so,—he`. `flags` and `rows` are those of the single words
    (`flags_of`, `counted_word`).
    """
    tokens = n_words = characters = lettered = 0
    place = 0
    while place < len(words):
        end = place + 1
        if flags[place] & WORD:
            while (further := _glued(words, flags, end)) > end:
                end = further
        if end - place == 1:
            one, two, three, four = rows[place]
        else:
            one = two = 1
            three = sum(map(len, words[place:end]))
            four = int(any(flag & LETTER for flag in flags[place:end]))
        tokens, n_words, characters, lettered = (
            tokens + one,
            n_words + two,
            characters + three,
            lettered + four,
        )
        place = end
    return tokens, n_words, characters, lettered


def _glued(words: Sequence[str], flags: Sequence[int], place: int) -> int:
    """Where the word that symbols from `place` on tie to the one before ends; else `place`."""
    end = place
    while end < len(words) and not flags[end] & WORD:
        end += 1
    if end in (place, len(words)):
        return place
    symbols = "".join(words[place:end])
    numeric = symbols in _NUMERIC and words[end][0].isdigit()
    return end + 1 if end - place > 1 or symbols in _TIES or numeric else place
