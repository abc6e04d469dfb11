"""Paragraphs and sentences, version 2.

A paragraph ends at a blank line, before a list item, and, unless the text is wrapped, at every line
break. Text counts as wrapped where hardly any of the lines between two blank lines have `WRAP`
characters or more.

A sentence ends at a final mark with the quotes, brackets and smileys after it, if white space
follows, also inside quotes. It does not end after an abbreviation, an initial or the number of a
list item, nor where a small letter follows a quote. `abbreviations.py` has what depends on the
language. Languages without a list are split by sentencex, as in version 1.

The rules were made on the train part of the UD English Web Treebank, where sentencex misses every
fifth end, mostly between quotes and in lines that open a quote and never close it.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise

from elmwright.pipeline.cleaning.rules import abbreviations, version_1

WRAP = 120
"""A line at least this long is not wrapped text."""
_UNABBREVIATED = ("ja", "ko", "zh")
"""Languages in which no abbreviation has a full stop."""
LONG_SHARE = 20
"""Lines are wrapped text if fewer than one in this many are long."""
_LIST_ITEM = re.compile(r"\s*(?:[-*•+‣◦]|\(?\w{1,2}[.)])\s")
_ITEM_NUMBER = re.compile(r"\s*\(?(?:\d{1,2}|[A-Za-z]|[ivxIVX]{2,4})[.)]")


@dataclass(frozen=True)
class Split:
    """A document in sentences."""

    sentences: list[str]
    """As in the text, without white space around them."""
    counts: list[int]
    """Sentences of each paragraph."""
    spans: list[tuple[int, int]]
    """Lines of each paragraph: the first, and the one after the last."""


def split(text: str, how: str, language: str, paragraphs: str = "wrapped") -> Split:
    """A clean document in sentences: its lines, or the sentences found in its paragraphs."""
    if how == "line":
        lines = text.split("\n")
        spans = [(number, number + 1) for number, line in enumerate(lines) if line.strip()]
        return Split([lines[number].strip() for number, _ in spans], [1] * len(spans), spans)
    sentences: list[str] = []
    counts, spans = [], []
    find = _finder(language)
    first = 0
    for block in text.split("\n\n"):
        after = first + block.count("\n") + 2
        for start, end, paragraph in _paragraphs(block, first, after - 1, paragraphs == "line"):
            found = find(paragraph)
            if found:
                sentences += found
                counts.append(len(found))
                spans.append((start, end))
        first = after
    return Split(sentences, counts, spans)


def _paragraphs(block: str, first: int, last: int, is_line: bool) -> Iterable[tuple[int, int, str]]:
    """The paragraphs of some lines, and the lines of each: the first, and the one after its last.

    `first` and `last` are those of the block."""
    if last - first == 1:
        return [(first, last, block.strip())]
    found: list[tuple[int, int]] = []
    lines, begin = block.split("\n"), -1
    for number, line in enumerate([*lines, ""]):
        if line.strip():
            begin = number if begin < 0 else begin
        elif begin >= 0:
            found += _of_block(lines, begin, number, is_line)
            begin = -1
    return ((first + a, first + b, " ".join(line.strip() for line in lines[a:b])) for a, b in found)


def _of_block(lines: list[str], first: int, last: int, is_line: bool) -> Iterator[tuple[int, int]]:
    """The paragraphs of lines without a blank one among them."""
    if last - first == 1:
        yield first, last
        return
    long = sum(len(line) >= WRAP for line in lines[first:last])
    if is_line or long * LONG_SHARE >= last - first:
        yield from ((number, number + 1) for number in range(first, last))
        return
    for number in range(first + 1, last):
        if len(lines[number - 1]) >= WRAP or _LIST_ITEM.match(lines[number]):
            yield first, number
            first = number
    yield first, last


_CLOSERS = "[\"'”’“»«)\\]}›‹`」』）】〉》]*"
_SMILEY = r"(?: (?:[:;=]['’]?[-^o]?[()DPp]+|<3|\^[_.]?\^)(?= |\Z)| (?:''|[»”])(?= |\Z))*+"
_SPACED = ".!?…؟۔։።"
_FREE = "。！？｡．।॥။"
_END = re.compile(rf"([{_SPACED}][{_SPACED}]*)({_CLOSERS})({_SMILEY}) (?=[-–—]* ?(\S))")
"""A final mark, quotes and brackets, smileys, a blank; and the first character of what follows."""
_MARK = re.compile(rf"[{_SPACED}][{_SPACED}\"'”’“»«)\]}}›‹`」』）】〉》]* ")
"""Where a sentence may end: final marks, quotes and brackets, a blank."""
_FREE_END = re.compile(rf"[{_FREE}]+({_CLOSERS})|{_END.pattern}")
"""The same, with the marks of scripts in which no blank follows a sentence."""
_HAS_FREE = re.compile(f"[{_FREE}]")
_AFTER_QUOTE = ("", " ", "“", "「", "『")
_OPENERS = "\"'“”„«»‘’([{<>`-–—*_/,¿¡"


class Finder:
    """Finds the sentences of paragraphs in one language."""

    def __init__(self, language: str) -> None:
        self._known = abbreviations.of(language)
        self._has_ordinals = language in abbreviations.ORDINALS
        self._is_english = language == "en"

    def sentences(self, paragraph: str) -> list[str]:
        """The sentences of a paragraph with single blanks and no line breaks."""
        if not paragraph.isascii() and _HAS_FREE.search(paragraph):
            return self._with_free_marks(paragraph)
        start, sentences = 0, []
        known, capital = self._known.all, self._known.capital
        for found in _MARK.finditer(paragraph):
            place, end = found.span()
            if place < start:
                continue
            # Most sentences end at a full stop after a plain word.
            if end - place == 2 and paragraph[place] == "." and paragraph[end : end + 1].isupper():
                word = paragraph[paragraph.rfind(" ", start, place) + 1 or start : place]
                is_plain = word.isalpha() and len(word) > 1
                if is_plain and word.lower() not in known and word not in capital:
                    sentences.append(paragraph[start : end - 1])
                    start = end
                    continue
            match = _END.search(paragraph, place)
            if match and match.start() < end and self._is_end(paragraph, start, match):
                sentences.append(paragraph[start : match.end() - 1])
                start = match.end()
        if start:
            sentences.append(paragraph[start:])
            return sentences
        return [paragraph] if paragraph else []

    def _with_free_marks(self, text: str) -> list[str]:
        """The sentences of a paragraph in which a sentence may follow another without a blank."""
        start, ends = 0, [0]
        for match in _FREE_END.finditer(text):
            end = match.end()
            if match[2] is None:
                # After a quote, "he said" may follow.
                is_end = not match[1] or text[end : end + 1] in _AFTER_QUOTE
            else:
                again = _END.match(text, match.start())
                is_end = again is not None and self._is_end(text, start, again)
            if is_end:
                start = end
                ends.append(start)
        parts = [text[a:b].strip() for a, b in pairwise([*ends, len(text)])]
        return [part for part in parts if part]

    def _is_end(self, text: str, start: int, match: re.Match[str]) -> bool:
        marks, closers, tail, after = match.groups()
        if after.islower():
            if _ITEM_NUMBER.fullmatch(text, start, match.start() + 1):
                return False
            if not self._is_english or closers or (len(marks) > 1 and "." in marks):
                return False
            return marks != "." or not self._is_short(_word(text, start, match))
        if after in ".!?,;…)]}":
            return after == "." and text.startswith("..", match.end())
        if marks == "." and not tail:
            return self._ends_at_stop(text, start, match, after)
        if marks[0] in ".…" and not after.isalpha() and "!" not in marks and "?" not in marks:
            return not after.isdigit()
        return True

    def _ends_at_stop(self, text: str, start: int, match: re.Match[str], after: str) -> bool:
        word = _word(text, start, match)
        if word.isdigit():
            if len(word) > 2:
                return True
            before = text[: match.start() - len(word)].rstrip(' *"“')[-1:]
            if match.start() - len(word) <= start + 2 or before == ":":
                return False  # the number of a list item
            return not self._has_ordinals or self._begins(text, match.end())
        if not self._is_short(word):
            return True
        lower = word.lower()
        if lower in self._known.last:
            return self._begins(text, match.end())
        if lower in self._known.before_digit:
            return not after.isdigit()
        if word == "I" and text[match.start() - 3 : match.start() - 2].islower():
            return True
        if lower in self._known.all or match.start() - len(word) <= start + 2:
            return False
        return self._begins(text, match.end())

    def _is_short(self, word: str) -> bool:
        """Whether it is an abbreviation, an initial, or letters with stops between them."""
        if word.lower() in self._known.all or word in self._known.capital:
            return True
        if len(word) == 1:
            return word.isalpha()
        if "." in word:
            parts = word.split(".")
            return min(map(len, parts)) == 1 and all(
                part.isalpha() and len(part) < 4 for part in parts
            )
        return False

    def _begins(self, text: str, place: int) -> bool:
        """Whether a word that begins sentences is at this place."""
        end = text.find(" ", place, place + 20)
        word = text[place : end if end > 0 else place + 20].lstrip(_OPENERS).rstrip(",.;:")
        return word[:1].isupper() and word.lower() in self._known.starters


@lru_cache(maxsize=64)
def _finder(language: str) -> Callable[[str], list[str]]:
    if abbreviations.is_known(language) or language in _UNABBREVIATED:
        return Finder(language).sentences
    return partial(version_1.sentences, language=language)


def _word(text: str, start: int, match: re.Match[str]) -> str:
    """The word before the final mark."""
    begin = text.rfind(" ", max(start, match.start() - 40), match.start()) + 1
    return text[begin or start : match.start()].lstrip(_OPENERS)
