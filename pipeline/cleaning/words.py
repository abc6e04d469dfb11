"""Cleaned text in sentences, and sentences in words.

A tokenised sentence is one string with single spaces between words. Words never contain white
space. Tokenisers:

- `ptb`, in the style of the Penn Treebank: punctuation and symbols are words; `don't` is `do n't`,
  `it's` is `it 's`; hyphens, full stops, underscores and apostrophes inside a word stay
  (`well-known`, `os.path`, `o'clock`); numbers keep their separators (`1,000.5`, `12:30`); a URL is
  one word; the full stop of an abbreviation stays with it except at the end of a sentence. The
  characters are kept as they are: quotes and brackets are not rewritten as `` '' or -LRB-.
- `whitespace`, for text that is already tokenised. Its `<unk>`-like words are left alone, and the
  exact word `<UNK>` means the vocabulary's `<UNK>`.
- `sentencepiece`: pieces of a model trained on this corpus become the words.

The marks `<S>` and `</S>` cannot be words: all tokenisers split them into `< S >` and `< / S >`.
All expressions take time linear in the text. `ptb` works on single chunks between white space, so
that `tokens.Reader` can remember the words of every chunk.
"""

import io
import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from sentencex import segment

from elmwright.pipeline.config import Pieces
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.format.block import BOS, EOS

Tokenise = Callable[[str], str]
"""One sentence of clean text → its words, separated by single spaces."""

WRAP = 120
"""A line at least this long is not wrapped text: its end is the end of a paragraph."""

WINDOW = 8_000
"""Characters of a paragraph that are searched for sentences at a time."""

SAFE = {BOS: "< S >", EOS: "< / S >"}

ABBREVIATIONS = frozenset(
    "al approx apr aug ave bros cf ch co corp dec dept dr ed eq eqs est etc ex feb fig figs gen "
    "gov hon inc jan jr jul jun lt ltd maj mar mr mrs ms mt no nos nov oct p pp prof ref refs rep "
    "resp rev sec sen sep sept sgt sr st vol vs".split()
)
_LIST_ITEM = re.compile(r"\s*(?:[-*•+‣◦]|\(?\w{1,2}[.)])\s")
_ITEM_NUMBER = re.compile(r"\(?\w{1,2}[.)]")


@dataclass(frozen=True)
class Split:
    """A document in sentences."""

    sentences: list[str]
    """As in the text, without white space around them."""
    counts: list[int]
    """Sentences of each paragraph."""
    spans: list[tuple[int, int]]
    """Lines of each paragraph: the first, and the one after the last."""


def split(text: str, how: str, language: str) -> Split:
    """A clean document in sentences: its lines, or the sentences found in its paragraphs.

    A blank line, a list item or a line of `WRAP` characters ends a paragraph. Other line breaks are
    treated as wrapped text.
    """
    lines = text.split("\n")
    if how == "line":
        spans = [(number, number + 1) for number, line in enumerate(lines) if line.strip()]
        return Split([lines[number].strip() for number, _ in spans], [1] * len(spans), spans)
    sentences: list[str] = []
    counts, spans = [], []
    for first, last in _paragraphs(lines):
        if last - first == 1:
            paragraph = lines[first].strip()
        else:
            paragraph = " ".join(line.strip() for line in lines[first:last])
        before = len(sentences)
        sentences += _sentences(paragraph, language)
        if len(sentences) > before:
            counts.append(len(sentences) - before)
            spans.append((first, last))
    return Split(sentences, counts, spans)


def _paragraphs(lines: list[str]) -> Iterator[tuple[int, int]]:
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


def _sentences(paragraph: str, language: str) -> list[str]:
    parts = segment(language, paragraph) if len(paragraph) <= WINDOW else _long(paragraph, language)
    sentences, sentence = [], ""
    for part in parts:
        sentence = sentence + part if sentence else part
        if (sentence[-1:] == "." or len(sentence) < 8) and _is_unfinished(sentence):
            continue
        sentences.append(sentence.strip())
        sentence = ""
    sentences.append(sentence.strip())
    return [sentence for sentence in sentences if sentence]


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


def whitespace(sentence: str) -> str:
    """The words between white space; the two marks are split."""
    return " ".join(SAFE.get(word, word) for word in sentence.split())


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


def whitespace_chunk(chunk: str, _last: bool) -> str:
    """The chunk itself, unless it is one of the two marks."""
    return SAFE.get(chunk, chunk)


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


def sentencepiece(model: Path) -> Tokenise:
    """A tokeniser by a trained sentencepiece model."""
    return Sentencepiece(model).tokenise


class Sentencepiece:
    """Tokenises by a trained sentencepiece model."""

    def __init__(self, model: Path) -> None:
        self._processor = _load(str(model), model.stat().st_mtime_ns)

    def tokenise(self, sentence: str) -> str:
        """The pieces of a sentence, separated by single spaces."""
        pieces = self._processor.encode(sentence, out_type=str)
        words = ["".join(piece.split()) for piece in pieces]
        # The model drops some characters (U+FFFD alone), but a sentence has a word.
        words = [SAFE.get(word, word) for word in words if word] or ["".join(sentence.split())]
        return " ".join(words)

    def places(self, sentence: str) -> list[tuple[str, int, int]]:
        """The same pieces, each with the range of the sentence that it came from.

        Several pieces of one character (bytes, `1⁄2` of `½`) have the same range. The mark of a
        blank belongs to a piece, but the blank itself is not in its range.
        """
        from sentencepiece import sentencepiece_pb2

        data = sentence.encode()
        found = self._processor.encode(sentence, out_type="serialized_proto")
        places: list[tuple[str, int, int]] = []
        held: list[str] = []
        read = place = 0  # in bytes and in characters
        for piece in sentencepiece_pb2.SentencePieceText.FromString(found).pieces:
            word = "".join(piece.piece.split())
            held += SAFE.get(word, word).split()
            if piece.end > piece.begin:
                place += len(data[read : piece.end].decode())
                read = piece.end
                start = place - len(data[piece.begin : piece.end].decode().lstrip())
                places += [(word, start, place) for word in held]
                held = []
        places += [(word, len(sentence), len(sentence)) for word in held]
        return places or [("".join(sentence.split()), 0, len(sentence))]


@lru_cache(maxsize=1)
def _load(model: str, _changed: int) -> Any:
    import sentencepiece as library

    try:
        return library.SentencePieceProcessor(model_file=model)
    except (RuntimeError, ValueError, TypeError) as error:
        raise UserError(
            "file-damaged", f"{model} is not a sentencepiece model; copy it again"
        ) from error


def coverage(language: str) -> float:
    """The share of characters that the pieces must be able to spell."""
    return 0.9995 if language in ("ja", "zh", "ko") else 1.0


def train_sentencepiece(sentences: Iterator[str], pieces: Pieces, language: str) -> bytes:
    """A trained model; the same sentences in the same order give the same bytes.

    It uses one thread, because the result depends on the number of threads.
    """
    import sentencepiece as library

    model = io.BytesIO()
    library.SentencePieceTrainer.train(
        sentence_iterator=sentences,
        model_writer=model,
        vocab_size=pieces.size,
        model_type=pieces.model,
        byte_fallback=pieces.byte_fallback,
        hard_vocab_limit=False,
        character_coverage=coverage(language),
        num_threads=1,
        input_sentence_size=0,
        shuffle_input_sentence=False,
        minloglevel=2,
    )
    return model.getvalue()
