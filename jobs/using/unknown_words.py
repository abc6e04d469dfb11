"""Warns if a text is not tokenised as the model expects.

A model knows the words of its vocabulary, tokenised as its corpus was: `dog .`, not `dog.`. Raw
text can be embedded and scored without an error, but with poor results. So a sample of the text is
compared with the vocabulary first, which takes a fraction of a second.
"""

import sys
from collections.abc import Collection
from itertools import islice
from pathlib import Path

from elmwright.jobs.using.sentences import pieces, read_sentences

SAMPLE_SENTENCES = 2000
MIN_WORDS = 10
"""In a shorter text, the share of unknown words means little, so there is no warning."""
MAX_UNKNOWN_SHARE = 1 / 3
"""Largest share of unknown words without a warning."""


def warn_of_unknown_words(model: Path, text: Path) -> None:
    """Print a warning if more than a third of the first sentences' words are unknown to `model`."""
    vocabulary = model / "vocab.txt"
    if not vocabulary.is_file():
        return
    (whole,) = pieces(text, None)
    sample = [words for words, _ in islice(read_sentences(text, whole), SAMPLE_SENTENCES)]
    known = set(vocabulary.read_text(encoding="utf-8").split("\n"))
    warning = unknown_warning(known, [word for words in sample for word in words])
    if warning:
        print(f"warning: {warning}", file=sys.stderr)


def unknown_warning(known: Collection[str], words: list[str]) -> str:
    """A warning if too many of `words` are not in `known`, else an empty string."""
    unknown = [word for word in words if word not in known]
    if len(words) < MIN_WORDS or len(unknown) <= MAX_UNKNOWN_SHARE * len(words):
        return ""
    examples = ", ".join(repr(word) for word in dict.fromkeys(unknown[:100]))
    examples = examples[:60].rpartition(", ")[0] or examples[:60]
    return (
        f"{len(unknown) / len(words):.0%} of the words are unknown to the model ({examples}, …); "
        "it expects text tokenised as its corpus was, such as 'The dog barks .'"
    )
