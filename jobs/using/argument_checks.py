"""Mistakes in the arguments of embed, score and neighbours, found before a model is loaded."""

import os
from collections.abc import Sequence
from pathlib import Path

from elmwright.pipeline.errors import UserError


def check_output(output: Path, force: bool) -> None:
    """Refuse an output that exists or cannot be created."""
    if output.is_dir():
        raise UserError("output", f"{output} is a folder; name a file to write")
    if output.exists() and not force:
        raise UserError("output", f"{output} exists already; choose another name or add --force")
    folder = output.absolute().parent
    if not folder.is_dir():
        raise UserError("file-missing", f"there is no folder {folder} to write {output.name} in")
    if not os.access(folder, os.W_OK):
        raise UserError(
            "output", f"{folder} cannot be written; change its permissions or choose another"
        )


def check_score_output(output: Path, force: bool) -> None:
    """`check_output` for the two formats of `elmwright score`."""
    check_output(output, force)
    if output.suffix not in (".tsv", ".jsonl"):
        raise UserError("argument", f"{output.name} ends neither in .tsv nor in .jsonl")


def check_query(word: str, sentence: str, count: int) -> None:
    """Refuse a word that is nowhere in its sentence, and a count below 1."""
    if not word or word not in sentence:
        raise no_word(word, sentence.split())
    if count < 1:
        raise UserError("argument", "-k must be at least 1")


def no_word(word: str, words: Sequence[str]) -> UserError:
    """The mistake of asking for a word that is not among those of the sentence."""
    return UserError(
        "argument",
        f"{word!r} is not a word of the sentence (its words: {' '.join(words)[:200]!r}); capitals "
        "count, and punctuation is a word",
    )
