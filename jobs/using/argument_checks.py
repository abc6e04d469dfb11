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


def check_score_input(
    text: str | None, pairs: str | None, *, words: bool, split: bool, as_json: bool
) -> None:
    """Refuse both of TEXT and --pairs, neither of them, and options that need the other."""
    if (text is None) == (pairs is None):
        many = "a text and --pairs" if text else "neither a text nor --pairs"
        raise UserError(
            "argument", f"{many} was given; name a file of sentences, or one of pairs with --pairs"
        )
    if pairs is not None and (words or split):
        wrong = "--words" if words else "--split"
        raise UserError("argument", f"--pairs compares whole sentences; leave out {wrong}")
    if as_json and pairs is None:
        raise UserError(
            "argument", "--json prints the result of --pairs; for sentences write -o OUT.jsonl"
        )


def check_query(word: str, sentence: str, count: int) -> None:
    """Refuse a word that is nowhere in its sentence, and a count below 1."""
    if not word or word not in sentence:
        raise no_word(word, sentence.split())
    check_count(count)


def no_word(word: str, words: Sequence[str]) -> UserError:
    """The mistake of asking for a word that is not among those of the sentence."""
    return UserError(
        "argument",
        f"{word!r} is not a word of the sentence (its words: {' '.join(words)[:200]!r}); capitals "
        "count, and punctuation is a word",
    )


def check_count(count: int) -> None:
    """Refuse a number of results below 1."""
    if count < 1:
        raise UserError("argument", f"-k must be at least 1, not {count}")
