"""Raw text in words with their places: what a model needs beside its weights.

`Tokenisation` is everything that decides how text becomes words, as plain data for a bundle.
`Tokeniser` applies it to text that a user gives: the same repairs, sentence ends and words as in
the build of the corpus, plus the place of every word in the raw text. A tokenisation names the
version of its rules, and every version stays here, so a model always reads text as in training.

Text is repaired first (`aligned.py`), and no step after that adds, drops or reorders visible
characters. So words are found again in the repaired text one after the other, and places there
become places in the raw text. sentencepiece itself says which characters a piece came from.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from elmwright.pipeline.cleaning import words as rules
from elmwright.pipeline.cleaning.aligned import Aligned, aligned
from elmwright.pipeline.cleaning.words import VERSION
from elmwright.pipeline.config import CorpusConfig
from elmwright.pipeline.errors import UserError


@dataclass(frozen=True)
class Tokenisation:
    """How raw text becomes sentences and words. The fields are those of `CorpusConfig`."""

    kind: Literal["ptb", "whitespace", "sentencepiece"]
    """`corpus.tokenizer`. For "sentencepiece", the file `sentencepiece.model` belongs to it, which
    has the settings of sentencepiece inside, its own normalisation among them."""
    version: int
    """Of the rules for words and for sentences."""
    language: str = "en"
    """Language code for sentence splitting and abbreviations."""
    sentences: Literal["split", "line"] = "split"
    """Whether sentences are found in running text, or every line is one."""
    paragraphs: Literal["wrapped", "line"] = "wrapped"
    """Whether short lines of running text may be wrapped, or every line is a paragraph."""
    normalise: bool = True
    """Whether text is in NFC, without invisible characters and with plain blanks."""
    mojibake: bool = True
    """Whether wrong decodings are repaired."""
    quotes: Literal["keep", "straight"] = "keep"
    """Whether typographic quotes and dashes become ' " and -."""

    @classmethod
    def of_corpus(cls, corpus: CorpusConfig, version: int) -> "Tokenisation":
        """That of a corpus with these settings, built by rules of this version
        (`Manifest.rules`)."""
        return cls(
            kind=corpus.tokenizer,
            version=version,
            language=corpus.language,
            sentences=corpus.sentences,
            paragraphs=corpus.paragraphs,
            normalise=corpus.normalise,
            mojibake=corpus.mojibake,
            quotes=corpus.quotes,
        )


class Word(NamedTuple):
    """A word, and where it is in the raw text."""

    text: str
    """As the model reads it. It may differ from the raw text, which is repaired."""
    start: int
    """Its first character in the raw text."""
    end: int
    """The one after its last. A piece that is only the mark of a blank has an empty range."""


class Sentence(NamedTuple):
    """A sentence of a text."""

    words: list[Word]
    start: int
    """Its first character in the raw text."""
    end: int
    """The one after its last."""


class Tokeniser:
    """Applies a `Tokenisation` to raw text."""

    def __init__(self, how: Tokenisation, model: Path | None = None) -> None:
        """`model` is the file `sentencepiece.model`, if that is the kind."""
        if not 1 <= how.version <= VERSION:
            raise UserError(
                "format",
                f"the text of this model was split by version {how.version} of the tokeniser, and "
                f"this version of elmwright knows versions up to {VERSION}; install a newer one",
            )
        if how.kind == "sentencepiece" and model is None:
            raise UserError(
                "model-incomplete",
                "the model's tokeniser is sentencepiece, but it has no sentencepiece.model; get "
                "the model again, or give lists of its pieces",
            )
        self.how = how
        self._pieces = rules.Sentencepiece(model) if how.kind == "sentencepiece" and model else None

    def words(self, sentence: str) -> list[str]:
        """The words of one raw sentence, without their places: faster than `tokenise`."""
        return self._words(self._repaired(sentence).text.replace("\n", " "))

    def tokenise(self, sentence: str) -> list[Word]:
        """The words of one raw sentence, whatever is in it: line breaks count as blanks."""
        text = self._repaired(sentence)
        return self._placed(text, text.text.replace("\n", " "), 0)

    def split(self, text: str) -> list[Sentence]:
        """The sentences of running text, in words."""
        repaired = self._repaired(text)
        flat = repaired.text.replace("\n", " ")
        place, found = 0, []
        how = self.how
        sentences = rules.split(
            repaired.text, how.sentences, how.language, how.paragraphs, how.version
        ).sentences
        for sentence in sentences:
            place = flat.index(sentence, place)
            end = place + len(sentence)
            words = self._placed(repaired, sentence, place)
            found.append(Sentence(words, *repaired.place(place, end)))
            place = end
        return found

    def _repaired(self, text: str) -> Aligned:
        how = self.how
        return aligned(text, mojibake=how.mojibake, normalise=how.normalise, quotes=how.quotes)

    def _words(self, sentence: str) -> list[str]:
        if not sentence:
            return []
        if self._pieces:
            return self._pieces.tokenise(sentence).split(" ")
        if self.how.kind == "whitespace":
            return rules.whitespace(sentence).split(" ")
        return rules.ptb(sentence, self.how.language, self.how.version).split(" ")

    def _placed(self, text: Aligned, sentence: str, offset: int) -> list[Word]:
        """The words of a repaired sentence, which begins at `offset` of the text."""
        if self._pieces and sentence:
            return [
                Word(piece, *text.place(offset + start, offset + end))
                for piece, start, end in self._pieces.places(sentence)
            ]
        placed, place = [], 0
        for word in self._words(sentence):
            while sentence[place] == " ":
                place += 1
            end = place + len(word)
            placed.append(Word(word, *text.place(offset + place, offset + end)))
            place = end
        return placed
