"""What a model reads: a batch in which a string is a raw sentence, and a list is its words.

A model carries its tokenisation (`config.json`, and `sentencepiece.model`), and `TextInput` applies
it with pipeline's own code. So raw text becomes the words of the model's corpus.

- A string becomes the model's own words, with their places (`TextInput.tokenise`).
- A list is taken as the model's own words. Where those are pieces of words, and `pool` is set, it
  is a list of whole words: they are joined to a sentence, which becomes pieces, and `pooling.py`
  makes one vector of those of each word.

Models that were written before they carried their tokenisation, and folders in bilm format, split a
string at white space and warn once. `"input": 2` in config.json tells the two apart.
"""

import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, cast

from elmwright.model.text.unknown_words import Watch
from elmwright.pipeline.cleaning.pieces import WITHOUT_SPACES
from elmwright.pipeline.cleaning.tokeniser import Sentence, Tokenisation, Tokeniser, Word
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.records import from_data, to_data
from elmwright.pipeline.storage.untrusted import COPY_AGAIN, read_object

Pool = Literal["first", "last", "mean"]
POOLS = ("first", "last", "mean")
Span = tuple[int, int]
Batch = str | Sequence[str | Sequence[str]]
"""Sentences: a string is raw text, a list is its words. A bare string is a batch of one."""

INPUT = 2
"""What `"input"` is in the config.json of a model that carries its tokenisation."""
CONFIG, PIECES, VOCAB = "config.json", "sentencepiece.model", "vocab.txt"
AT_SPACES = (
    "this model does not carry its tokeniser (an earlier version wrote it, or another program), so "
    "raw text is only split at spaces; export it again, or give words as its corpus had them"
)
_WORD = re.compile(r"\S+")


@dataclass(frozen=True)
class Read:
    """A batch as a model reads it."""

    tokens: list[list[str]]
    """The model's own words of each sentence."""
    spans: list[list[Span] | None]
    """For a list of words that became pieces: the first piece of each word, and the one after its
    last. None for a sentence whose own words get the vectors."""

    @property
    def has_spans(self) -> bool:
        """Whether any sentence has vectors of several pieces to pool."""
        return any(spans is not None for spans in self.spans)

    def spans_at(self, numbers: Iterable[int], *, boundaries: bool = False) -> list[list[Span]]:
        """The spans of these sentences; a sentence's own words are spans of one.

        With `boundaries` there is a word before the first and one after the last token.
        """
        framed = []
        for number in numbers:
            count, spans = len(self.tokens[number]), self.spans[number]
            own = [(n, n + 1) for n in range(count)] if spans is None else spans
            if boundaries:
                end = count + 1
                own = [(0, 1), *((a + 1, b + 1) for a, b in own), (end, end + 1)]
            framed.append(own)
        return framed


def config_entries(tokenisation: Tokenisation) -> dict[str, Any]:
    """What config.json of a model says of its input."""
    return {"input": INPUT, "tokenisation": to_data(tokenisation)}


class TextInput:
    """Turns what a user gives into the words that a model reads."""

    def __init__(
        self,
        tokenisation: Tokenisation | None = None,
        pieces: Path | None = None,
        vocab: Path | None = None,
    ) -> None:
        """Without a tokenisation, strings are split at white space. `pieces` is the
        sentencepiece model. Words are compared with the list `vocab`, if there is one."""
        self.tokenisation = tokenisation
        self.pieces_file = pieces
        self.watch = Watch(vocab)
        self._tokeniser = Tokeniser(tokenisation, pieces) if tokenisation else None
        self._has_warned = False

    @classmethod
    def of_folder(cls, folder: Path) -> "TextInput":
        """That of a model folder of any kind."""
        vocab = folder / VOCAB if (folder / VOCAB).is_file() else None
        content = read_object(folder / CONFIG) if (folder / CONFIG).is_file() else {}
        if content.get("input", 1) == 1:
            return cls(vocab=vocab)
        if content["input"] != INPUT:
            raise UserError(
                "format",
                f"{folder / CONFIG} has input {content['input']!r:.50} and this version reads "
                f"{INPUT}; use the version of elmwright that wrote it",
            )
        try:
            tokenisation = from_data(Tokenisation, content.get("tokenisation"))
        except (ValueError, TypeError, RecursionError) as error:
            raise UserError(
                "model-invalid",
                f"{folder / CONFIG} does not say how text becomes words ({error!s:.200}); "
                f"{COPY_AGAIN}",
            ) from error
        pieces = folder / PIECES if (folder / PIECES).is_file() else None
        return cls(tokenisation, pieces, vocab)

    @property
    def has_pieces(self) -> bool:
        """Whether the model's own words are pieces of words."""
        return self.tokenisation is not None and self.tokenisation.kind == "sentencepiece"

    def pool_of(self, name: str | None) -> Pool | None:
        """How the vectors of pieces become those of given words, by a setting: one of `POOLS`,
        None, or "default"."""
        if name == "default":
            return "first" if self.has_pieces else None
        if name is not None and name not in POOLS:
            raise UserError("input", f"pool is {name!r}; it may be {', '.join(POOLS)} or None")
        return cast("Pool | None", name)

    def read(self, batch: object, pool: Pool | None = None) -> Read:
        """The model's own words of a batch; `UserError` if it is none."""
        tokens: list[list[str]] = []
        spans: list[list[Span] | None] = []
        are_raw = False
        for number, item in enumerate(items_of(batch)):
            found: list[Span] | None = None
            if isinstance(item, str):
                words = self.words(item)
                if not words:
                    raise UserError(
                        "input",
                        f"sentence {number} of the batch is empty: {item!r:.40}; leave it out",
                    )
            else:
                words = self._list(item, number)
                if pool is not None and self.has_pieces:
                    words, found = self.pieces(words)
            are_raw = are_raw or isinstance(item, str) or found is not None
            tokens.append(words)
            spans.append(found)
        self.watch.see(tokens, self.advice(given_raw=are_raw))
        return Read(tokens, spans)

    def words(self, sentence: str) -> list[str]:
        """The words of one raw sentence."""
        if self._tokeniser is not None:
            return self._tokeniser.words(sentence)
        self._warn_of_spaces()
        return sentence.split()

    def tokenise(self, sentence: str) -> list[Word]:
        """The words of one raw sentence, each with its place."""
        if not isinstance(sentence, str):
            raise UserError("input", f"one sentence is a string, not {_kind(sentence)}")
        if self._tokeniser is not None:
            return self._tokeniser.tokenise(sentence)
        self._warn_of_spaces()
        return [Word(found[0], *found.span()) for found in _WORD.finditer(sentence)]

    def split(self, text: str) -> list[Sentence]:
        """The sentences of running text, each in words with their places."""
        if self._tokeniser is None:
            raise UserError(
                "model-incomplete",
                "this model does not say how it splits text into sentences; export it again, or "
                "give one sentence per line",
            )
        return self._tokeniser.split(text)

    def pieces(self, words: list[str]) -> tuple[list[str], list[Span]]:
        """The pieces of a sentence that is given in words, and those of each word: the first, and
        the one after the last.

        They are joined to a sentence: with spaces, unless the language is written without.
        """
        between = "" if self.tokenisation and self.tokenisation.language in WITHOUT_SPACES else " "
        ends = accumulate(len(word) + len(between) for word in words)
        placed = [
            Word(word, end - len(between) - len(word), end - len(between))
            for word, end in zip(words, ends, strict=True)
        ]
        return spans_of(self.tokenise(between.join(words)), placed)

    def advice(self, *, given_raw: bool) -> str:
        """What to do about many unknown words."""
        if self.tokenisation is None:
            return "it expects text tokenised as its corpus was, such as 'The dog barks .'"
        if given_raw:
            return "its corpus was other text, perhaps in another language or alphabet"
        return "it expects words as 'elmwright tokenize' gives them; raw text goes in as strings"

    def _list(self, words: list[Any], number: int) -> list[str]:
        """The words of a list, checked."""
        try:
            joined = " ".join(words)
        except TypeError as error:
            place, word = next(
                (place, word) for place, word in enumerate(words) if not isinstance(word, str)
            )
            raise UserError(
                "input", f"word {place} of sentence {number} is {_kind(word)}, not a string"
            ) from error
        if self.tokenisation is not None and joined.split() != words:
            place, word = next(
                (place, word) for place, word in enumerate(words) if word.split() != [word]
            )
            raise UserError(
                "input",
                f"word {place} of sentence {number} is {word!r:.60}, and a word is not empty and "
                "has no space in it; give a raw sentence as one string",
            )
        return words

    def _warn_of_spaces(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(AT_SPACES, stacklevel=2)


def spans_of(found: Sequence[Word], words: Sequence[Word]) -> tuple[list[str], list[Span]]:
    """The pieces of a text, and those of each of its words: the first, and the one after the last.

    A piece belongs to the words whose characters it came from, so two words may share one. A word
    without any, because the model's normalisation removes it, becomes a piece itself.
    """
    pieces: list[str] = []
    spans: list[Span] = []
    number = 0
    for word, start, end in words:
        while number < len(found) and found[number].end <= start:
            pieces.append(found[number].text)  # between the words: the mark of a blank
            number += 1
        first = len(pieces)
        if number and found[number - 1].end > start:
            first -= 1  # shared with the word before
        while number < len(found) and found[number].start < end:
            pieces.append(found[number].text)
            number += 1
        if first == len(pieces):
            pieces.append(word)
        spans.append((first, len(pieces)))
    return [*pieces, *(piece.text for piece in found[number:])], spans


def items_of(batch: object) -> list[str | list[Any]]:
    """The sentences of a batch; a bare string is a batch of one."""
    if isinstance(batch, str):
        return [batch]
    sentences = _listed(batch)
    if sentences is None:
        raise UserError(
            "input",
            f"a batch is {_kind(batch)}; give a list of sentences, each a string or a list of "
            "words",
        )
    items: list[str | list[Any]] = []
    for number, sentence in enumerate(sentences):
        words = sentence if isinstance(sentence, str) else _listed(sentence)
        if words is None:
            raise UserError(
                "input",
                f"sentence {number} of the batch is {_kind(sentence)}, neither a string nor a "
                "list of words",
            )
        items.append(words)
    return items


def _listed(value: object) -> list[Any] | None:
    """The elements of a list, tuple, array or series; None of anything else."""
    if isinstance(value, bytes | bytearray | memoryview | Mapping | set | frozenset):
        return None
    if not isinstance(value, Iterable):
        return None
    try:
        return list(value)
    except TypeError:  # an array without dimensions
        return None


def _kind(value: object) -> str:
    """How a message names a value of the wrong type."""
    return "None" if value is None else f"{type(value).__name__} ({value!r:.40})"
