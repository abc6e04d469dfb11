"""Paragraphs and sentences, version 2.

A paragraph ends at a blank line, before a list item, and, unless the text is wrapped, at every line
break. Text counts as wrapped where hardly any of the lines between two blank lines have `WRAP`
characters or more.

A sentence ends at a final mark with the quotes, brackets and smileys after it, if white space
follows, also inside quotes. It does not end after an abbreviation, an initial or the number of a
list item, nor where a small letter follows a quote. `abbreviations.py` has what depends on the
language. Languages without a list are split by sentencex, as in version 1.

Text of mails and pages often has its line breaks joined to blanks. So a drawn line and the name,
date and time in the head of a mail are sentences, an address before a capital ends one, and so does
"Regards," before a name. Where a blank is missing after a mark, a sentence ends before a word that
begins one.

Ends that need no second look are found by a few expressions that search fast, and replaced by line
breaks. Only what may be an end beside them is looked at mark by mark.

The rules were made on the train part of the UD English Web Treebank, where sentencex misses every
fifth end, mostly between quotes and in lines that open a quote and never close it.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from itertools import pairwise
from typing import NamedTuple

from elmwright.pipeline.cleaning.rules import abbreviations, version_1
from elmwright.pipeline.cleaning.rules.layout import has_layout, with_layout

WRAP = 120
"""A line at least this long is not wrapped text."""
_UNABBREVIATED = ("ja", "ko", "zh")
"""Languages in which no abbreviation has a full stop."""
LONG_SHARE = 20
"""Lines are wrapped text if fewer than one in this many are long."""
_LIST_ITEM = re.compile(r"\s*(?:[-*•+‣◦]|\(?\w{1,2}[.)])\s")
_LATER_ITEM = re.compile(rf"\n{_LIST_ITEM.pattern}")
_ITEM_NUMBER = re.compile(r"\s*\(?(?:\d{1,2}|[A-Za-z]|[ivxIVX]{2,4})[.)]")


class Split(NamedTuple):
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
    is_wrapped = not is_line and max(map(len, lines)) < WRAP
    if is_wrapped and not _LATER_ITEM.search(block):
        stripped = [*map(str.strip, lines)]
        if all(stripped):
            return [(first, last, " ".join(stripped))]
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
_STOP = re.compile(r"\. ")
_CLOSED_STOP = re.compile(rf"\.(?=[.{_CLOSERS[1:-2]}])")
_RARE_MARK = re.compile(f"[{_SPACED[3:]}{_FREE}]")
_LOWER = "a-zà-öø-ÿа-яё"
_UPPER = "A-ZÀ-ÖØ-ÞА-ЯЁ"
_AHEAD = f'{_UPPER}0-9"“‘„«(\\['
_QUOTES = ('"', "”")
_FREE_END = re.compile(rf"[{_FREE}]+({_CLOSERS})|{_END.pattern}")
"""The same, with the marks of scripts in which no blank follows a sentence."""
_HAS_FREE = re.compile(f"[{_FREE}]")
_AFTER_QUOTE = ("", " ", "“", "「", "『")
_GLUED = [
    re.compile(rf"\.(?=[{_UPPER}])(?<=[{_LOWER}0-9.]\.)"),
    *(re.compile(rf"\{mark}(?=[^\W\d_])") for mark in "!?"),
]
"""Marks before a letter, which search fast because they begin with a plain character."""
_WORD = re.compile(r"[^\W\d_]++(?=[’',;:.!?]|\s|\Z)")
_CLOSINGS = frozenset(
    "thanks|thank you|many thanks|regards|best|best regards|kind regards|best wishes|cheers|love|"
    "sincerely|sincerely yours|yours sincerely|yours truly|respectfully|yours".split("|")
)
"""With what English letters close, before the name."""
_OPENERS = "\"'“”„«»‘’([{<>`-–—*_/,¿¡"


class Finder:
    """Finds the sentences of paragraphs in one language."""

    def __init__(self, language: str) -> None:
        self._known = abbreviations.of(language)
        self._plain_stop, self._plain_others = _plain_ends(self._known, language == "en")
        self._has_ordinals = language in abbreviations.ORDINALS
        self._is_english = language == "en"

    def sentences(self, paragraph: str) -> list[str]:
        """The sentences of a paragraph with single blanks and no line breaks."""
        has_marks = not paragraph.isascii() and _RARE_MARK.search(paragraph) is not None
        if has_marks and _HAS_FREE.search(paragraph):
            return self._with_free_marks(paragraph)
        if has_layout(paragraph):
            paragraph = with_layout(paragraph)
        # Line breaks are put behind the plain ends, so that most paragraphs need no loop.
        marked, marks = self._plain_stop.sub(".\n", paragraph), _STOP
        if has_marks or "!" in marked or "?" in marked or _CLOSED_STOP.search(marked):
            for mark, quote, end in self._plain_others:
                if mark in marked and (not quote or quote in marked):
                    marked = end.sub(f"{mark}{quote}\n", marked)
            marks = _MARK
        if found := marks.search(marked):
            marked = self._with_ends(marked, marks, found.start())
        for glued in _GLUED if marks is _MARK else _GLUED[:1]:
            if glued.search(marked):
                marked = glued.sub(self._unglued, marked)
        if self._is_english:
            if marked.find(",", 0, 20) > 0:
                marked = self._with_closing(marked, 0)
            last = marked.rfind("\n") + 1
            if marked.find(",", last, last + 20) > 0:
                marked = self._with_closing(marked, last)
        return marked.split("\n") if marked else []

    def _with_closing(self, text: str, start: int) -> str:
        """A paragraph in which "Regards," ends a sentence where a letter closes with it and a
        name."""
        comma = text.find(", ", start, start + 20)
        if comma > start and text[start:comma].lower() in _CLOSINGS:
            after = text[comma + 2 : comma + 3]
            if after.isupper() and not self._begins(text, comma + 2):
                return f"{text[: comma + 1]}\n{text[comma + 2 :]}"
        return text

    def _unglued(self, match: re.Match[str]) -> str:
        """A mark between two letters with a line break behind it if a sentence ends there."""
        text, mark, place = match.string, match[0], match.start()
        before = text[max(0, place - 40) : place].replace("\n", " ").rpartition(" ")[2]
        after = _WORD.match(text, match.end())
        if after is None or not _is_word(before.rstrip(".!?")):
            return mark
        is_starter = after[0].lower() in self._known.starters
        if mark != ".":
            is_end = after[0][0].islower() or is_starter
        elif before[-1] == ".":
            is_end = after[0][0].isupper()
        else:
            is_end = is_starter and after[0][0].isupper() and before[0].islower()
        return f"{mark}\n" if is_end else mark

    def _with_ends(self, text: str, marks: re.Pattern[str], first: int) -> str:
        """A paragraph in which some ends are line breaks, with the others. The expression finds
        the places where they may be, of which the first is given."""
        start = done = 0
        parts = []
        known, capital = self._known.all, self._known.capital
        for found in marks.finditer(text, first):
            place, end = found.span()
            if place < start:
                continue
            start = text.rfind("\n", start, place) + 1 or start
            if text[end : end + 1].isupper():
                # Nearly always an end: a stop after a plain word, or a stronger mark.
                is_end = text[place] != "." or text[place + 1] == "."
                if not is_end:
                    word = text[text.rfind(" ", start, place) + 1 or start : place]
                    is_plain = word.isalpha() and len(word) > 1
                    is_end = is_plain and word.lower() not in known and word not in capital
                if is_end:
                    parts.append(text[done : end - 1])
                    start = done = end
                    continue
            match = _END.search(text, place)
            if match and match.start() < end and self._is_end(text, start, match):
                start = match.end()
                parts.append(text[done : start - 1])
                done = start
        return "\n".join([*parts, text[done:]])

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
        word = text[place : place + 20].split(maxsplit=1)[0].lstrip(_OPENERS).rstrip(",.;:")
        return word[:1].isupper() and word.lower() in self._known.starters


def _is_word(chunk: str) -> bool:
    """Whether it is written as words are, and not as addresses, files and code."""
    return chunk.strip("\"'“”’(").replace("-", "").replace("'", "").isalnum()


def _plain_ends(
    known: abbreviations.Abbreviations, is_english: bool
) -> tuple[re.Pattern[str], list[tuple[str, str, re.Pattern[str]]]]:
    """Expressions for ends that need no second look: a full stop and a blank; and other marks with
    a quote or none behind them.

    Before a capital, a digit or an opening mark, ! and ? always end a sentence, and a full stop
    does behind small letters that end no abbreviation, three digits, or a bracket. Each expression
    begins with its sign and looks back from there, so that it is searched for quickly.
    """
    words = known.all | known.capital
    long = _tree({w[-3:] for w in words if len(w) > 2})
    short = "|".join(re.escape(word) for word in sorted(words) if len(word) == 2)

    unquoted = _AHEAD + _LOWER * is_english

    def stop(sign: str, ahead: str) -> re.Pattern[str]:
        after = (
            (rf"(?<=[{_LOWER}]{{3}}{sign})" + (rf"(?<!(?:{long}){sign})" if long else ""))
            + (rf"|(?<= [{_LOWER}]{{2}}{sign})" + (rf"(?<! (?:{short}){sign})" if short else ""))
            + rf"|(?<=[0-9]{{3}}{sign})|(?<=[)\]]{sign})"
        )
        return re.compile(rf"{sign}(?=[{ahead}])(?:{after})")

    others = [(".", quote, stop(rf"\.{quote} ", _AHEAD)) for quote in _QUOTES]
    for mark in "!?":
        for quote in ("", *_QUOTES):
            ahead = _AHEAD if quote else unquoted
            others.append((mark, quote, re.compile(rf"\{mark}{quote} (?=[{ahead}])")))
    return stop(r"\. ", unquoted), others


def _tree(words: set[str]) -> str:
    """An expression for words, which looks at each first character once."""
    rest: dict[str, list[str]] = {}
    for word in sorted(words):
        rest.setdefault(word[0], []).append(re.escape(word[1:]))
    return "|".join(f"{re.escape(first)}(?:{'|'.join(ends)})" for first, ends in rest.items())


@lru_cache(maxsize=64)
def _finder(language: str) -> Callable[[str], list[str]]:
    if abbreviations.is_known(language) or language in _UNABBREVIATED:
        return Finder(language).sentences
    return partial(version_1.sentences, language=language)


def _word(text: str, start: int, match: re.Match[str]) -> str:
    """The word before the final mark."""
    begin = text.rfind(" ", max(start, match.start() - 40), match.start()) + 1
    return text[begin or start : match.start()].lstrip(_OPENERS)
