"""The rules of version 1, for text that models of version 1 read. They never change.

- Words: Penn Treebank style, with one list of abbreviations for all languages.
  `pipeline/cleaning/words.py` and `ptb.py` say what is different since.
- Sentences: as sentencex finds them in paragraphs, which a blank line, a list item or a line of
  `WRAP` characters ends; not split within quotes.
"""

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache

from sentencex import segment

WRAP = 120
"""A line at least this long is not wrapped text: its end is the end of a paragraph."""

WINDOW = 8_000
"""Characters of a paragraph that are searched for sentences at a time."""

ABBREVIATIONS = frozenset(
    "al approx apr aug ave bros cf ch co corp dec dept dr ed eq eqs est etc ex feb fig figs gen "
    "gov hon inc jan jr jul jun lt ltd maj mar mr mrs ms mt no nos nov oct p pp prof ref refs rep "
    "resp rev sec sen sep sept sgt sr st vol vs".split()
)
_LIST_ITEM = re.compile(r"\s*(?:[-*•+‣◦]|\(?\w{1,2}[.)])\s")
_ITEM_NUMBER = re.compile(r"\(?\w{1,2}[.)]")


def split(text: str, language: str) -> tuple[list[str], list[int], list[tuple[int, int]]]:
    """A clean document in sentences, with the fields of `sentences.Split`."""
    lines = text.split("\n")
    found: list[str] = []
    counts, spans = [], []
    for first, last in paragraphs(lines):
        if parts := sentences(" ".join(line.strip() for line in lines[first:last]), language):
            found += parts
            counts.append(len(parts))
            spans.append((first, last))
    return found, counts, spans


def paragraphs(lines: list[str]) -> Iterator[tuple[int, int]]:
    """The lines of each paragraph: the first, and the one after the last."""
    first, before = -1, 0
    for number, line in enumerate(lines):
        size = len(line.strip())
        if not size:
            if first >= 0:
                yield first, number
            first = -1
        elif first < 0:
            first = number
        elif before >= WRAP or _LIST_ITEM.match(line):
            yield first, number
            first = number
        before = size
    if first >= 0:
        yield first, len(lines)


def sentences(paragraph: str, language: str) -> list[str]:
    """The sentences of a paragraph."""
    parts = segment(language, paragraph) if len(paragraph) <= WINDOW else _long(paragraph, language)
    found, sentence = [], ""
    for part in parts:
        sentence = sentence + part if sentence else part
        if (sentence[-1:] == "." or len(sentence) < 8) and _is_unfinished(sentence):
            continue
        found.append(sentence.strip())
        sentence = ""
    found.append(sentence.strip())
    return [sentence for sentence in found if sentence]


def _long(paragraph: str, language: str) -> Iterator[str]:
    """The sentences that sentencex finds in windows, because open quotes cost it quadratic time.

    The last sentence of a window may be incomplete, and is read again with the next window.
    """
    start, held = 0, ""
    while start < len(paragraph):
        end = paragraph.find(" ", start + WINDOW, start + 2 * WINDOW) + 1 or start + 2 * WINDOW
        parts = segment(language, paragraph[start:end])
        if len(parts) > 1 and end < len(paragraph):
            parts.pop()
        start += sum(map(len, parts))
        parts[0] = held + parts[0]
        held = ""
        if start >= end and paragraph[end - 1 : end] != " ":
            held = parts.pop()
        yield from parts
    if held:
        yield held


def _is_unfinished(sentence: str) -> bool:
    """Whether sentencex split `torch.nn.Linear`, or the number of a list item from the item."""
    before = sentence[-2:-1]
    if sentence[-1] == "." and before and before != "." and not before.isspace():
        return True
    return _ITEM_NUMBER.fullmatch(sentence.strip()) is not None


def ptb(sentence: str) -> str:
    """Penn Treebank style words of a sentence."""
    chunks = sentence.split()
    ends = [False] * (len(chunks) - 1) + [True] * bool(chunks)
    return " ".join(map(ptb_chunk, chunks, ends))


def ptb_chunk(chunk: str, last: bool) -> str:
    """The words of a chunk without white space, which may be the last of its sentence."""
    if chunk.isalpha():
        return chunk
    head, end = chunk[:-1], chunk[-1]
    if head.isalpha() and (end in _EDGES or (end == "." and not _is_abbreviation(head))):
        return f"{head} {end}"
    core = chunk.strip(_EDGES)
    word = core[:-1] if core[-1:] == "." else core
    if word.isalpha() and (word is core or not _is_abbreviation(word)):
        return " ".join(chunk.replace(word, "\n", 1)).replace("\n", word)
    words: list[str] = []
    pieces = _pieces().findall(chunk)
    for piece, following in zip(pieces, [*pieces[1:], ""], strict=True):
        inside = not last or following in _WITHIN
        if piece == "." and words and inside and _is_abbreviation(words[-1]):
            words[-1] += "."
        else:
            words.extend(_contraction(piece))
    return " ".join(words)


def _is_abbreviation(word: str) -> bool:
    """Whether a full stop after this word within a sentence belongs to it: `Mr`, `e.g`, `U.S`."""
    if word.lower() in ABBREVIATIONS:
        return True
    return all(len(letter) == 1 and letter.isalpha() for letter in word.split("."))


_EDGES = '“”„«»"()[],;:!?'
"""Marks that are always words, so that a plain word among them needs no search."""
_WITHIN = (",", ";", ":")
"""Marks that show that the sentence continues after a full stop: `(e.g., this)`."""
_CONTRACTION = re.compile(r"(.+?)(n['’]t|['’](?:s|re|ve|ll|d|m))\Z", re.IGNORECASE)


def _contraction(word: str) -> tuple[str, ...]:
    if "'" not in word and "’" not in word:
        return (word,)
    match = _CONTRACTION.match(word)
    return match.groups() if match else (word,)


@lru_cache(maxsize=1)
def _pieces() -> re.Pattern[str]:
    """An expression whose matches together are the whole chunk."""
    # Python's \w lacks combining marks, without which Devanagari or Thai words would fall apart.
    marks = "".join(
        chr(c) for c in range(0x300, 0x10000) if unicodedata.category(chr(c)).startswith("M")
    )
    letter = rf"[\w\u200c\u200d{marks}]"
    return re.compile(
        r"(?:https?|ftp)://\S*[^\s.,;:!?'\"’”»)\]}>]"
        r"|\d+(?:[.,:]\d+)+"
        rf"|{letter}+(?:[-.'’‐‑]{letter}+)*"
        r"|\.{2,}|-{2,}|."
    )
