"""Cleaned text in sentences, and sentences in words.

A tokenised sentence is one string with single spaces between words. Words never contain white
space. Tokenisers:

- `ptb`, in the style of the Penn Treebank (`rules/ptb.py`).
- `whitespace`, for text that is already tokenised. Its `<unk>`-like words are left alone, and the
  exact word `<UNK>` means the vocabulary's `<UNK>`.
- `sentencepiece`: pieces of a model trained on this corpus become the words.

The marks `<S>` and `</S>` cannot be words: all tokenisers split them into `< S >` and `< / S >`.
Rules have a version. A corpus is built by the newest ones (`VERSION`), and what was built by others
is read by those.
"""

import io
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from elmwright.pipeline.cleaning.rules import sentences, version_1
from elmwright.pipeline.cleaning.rules.ptb import Ptb
from elmwright.pipeline.cleaning.rules.sentences import Split
from elmwright.pipeline.config import Pieces
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.format.block import BOS, EOS

VERSION = 2
"""Version of the rules for words and sentences that a corpus is built with."""

Tokenise = Callable[[str], str]
"""One sentence of clean text → its words, separated by single spaces."""
OfChunk = Callable[[str, bool], str]
"""A chunk without white space, and whether it is the last of its sentence → its words."""

SAFE = {BOS: "< S >", EOS: "< / S >"}


def split(
    text: str,
    how: str,
    language: str,
    paragraphs: str = "wrapped",
    version: int = VERSION,
) -> Split:
    """A clean document in sentences: its lines, or the sentences found in its paragraphs."""
    if version > 1 or how == "line":
        return sentences.split(text, how, language, paragraphs)
    return Split(*version_1.split(text, language))


@lru_cache(maxsize=64)
def chunk_rules(kind: str, language: str = "en", version: int = VERSION) -> OfChunk:
    """The words of chunks by a tokeniser of this kind ("ptb" or "whitespace")."""
    if kind == "whitespace":
        return whitespace_chunk
    return version_1.ptb_chunk if version == 1 else Ptb(language).chunk


def divided(kind: str, language: str) -> dict[str, str]:
    """Chunks of letters that are several words, and what these are. Others are words."""
    return Ptb(language).divided if kind == "ptb" else {}


def ptb(sentence: str, language: str = "en", version: int = VERSION) -> str:
    """Penn Treebank style words of a sentence."""
    chunks = sentence.split()
    ends = [False] * (len(chunks) - 1) + [True] * bool(chunks)
    return " ".join(map(chunk_rules("ptb", language, version), chunks, ends))


def whitespace(sentence: str) -> str:
    """The words between white space; the two marks are split."""
    return " ".join(SAFE.get(word, word) for word in sentence.split())


def whitespace_chunk(chunk: str, _last: bool) -> str:
    """The chunk itself, unless it is one of the two marks."""
    return SAFE.get(chunk, chunk)


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
        normalization_rule_name="nmt_nfkc" if pieces.normalisation == "nfkc" else "identity",
        hard_vocab_limit=False,
        character_coverage=coverage(language),
        num_threads=1,
        input_sentence_size=0,
        shuffle_input_sentence=False,
        minloglevel=2,
    )
    return model.getvalue()
