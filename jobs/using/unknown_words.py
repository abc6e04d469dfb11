"""Says so when a text does not look as the model expects.

A model knows the words of its vocabulary, cut as its corpus was cut: `dog .`, not `dog.`. Raw text
is embedded and scored all the same, with poor results and without an error. So a sample of the text
is compared with the vocabulary first, which takes a fraction of a second.
"""

import sys
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from elmwright.jobs.using.sentences import pieces, read_sentences

SAMPLE_SENTENCES = 2000
LEAST_WORDS = 10
"""Shorter texts prove nothing."""
SHARE = 1 / 3
"""Of the words that may be unknown without a warning."""


def warn_of_unknown(model: Path, text: Path) -> None:
    """Print a warning if more than a third of the first sentences' words are unknown to `model`."""
    vocabulary = model / "vocab.txt"
    if not vocabulary.is_file():
        return
    (whole,) = pieces(text, None)
    sample = [words for words, _ in islice(read_sentences(text, whole), SAMPLE_SENTENCES)]
    known = set(vocabulary.read_text(encoding="utf-8").split("\n"))
    said = about_unknown(known, [word for words in sample for word in words])
    if said:
        print(f"warning: {said}", file=sys.stderr)


def about_unknown(known: Iterable[str], words: list[str]) -> str:
    """The sentence to warn with, or nothing."""
    vocabulary = set(known)
    unknown = [word for word in words if word not in vocabulary]
    if len(words) < LEAST_WORDS or len(unknown) <= SHARE * len(words):
        return ""
    examples = ", ".join(repr(word) for word in dict.fromkeys(unknown[:100]))
    examples = examples[:60].rpartition(", ")[0] or examples[:60]
    return (
        f"{len(unknown) / len(words):.0%} of the words are unknown to the model ({examples}, …); "
        "it expects text tokenised as its corpus was, such as 'The dog barks .'"
    )
