"""Lines of a text as a model's own words, for the commands that read files.

A line is one raw sentence, and the model's tokeniser makes words of it. With `--tokenized` its
words are separated by spaces already, and taken as the model's own. With `--split` the text is
running text: `split_file` first writes its sentences to a file, one per line.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from elmwright.jobs.using.sentences import pieces, read_lines, read_sentences
from elmwright.model.text.text_input import VOCAB, TextInput
from elmwright.model.text.unknown_words import read_known, unknown_warning
from elmwright.pipeline.errors import UserError

SAMPLE_SENTENCES = 2000
"""First sentences of a text that are compared with the vocabulary."""
PARAGRAPHS = 1 << 16
"""Characters of running text that are split at a time, up to the next empty line."""
MOST_CHARACTERS = 1 << 22
"""The same where there is no empty line."""
AT_SPACES = (
    "this model does not carry its tokeniser (an earlier version wrote it, or another program), so "
    "lines are only split at spaces; export it again, or give tokenised lines and --tokenized"
)


@dataclass(frozen=True)
class Reading:
    """How the lines of a text are read."""

    tokenized: bool = False
    """Words are separated by spaces already."""
    split: bool = False
    """The text is running text, and its sentences are to be found."""

    def check(self) -> None:
        """Refuse both at once, because tokenised text has no sentence ends to look for."""
        if self.tokenized and self.split:
            raise UserError(
                "argument", "--split finds sentences in raw text; leave out one of the two"
            )


def line_reader(text: TextInput, reading: Reading) -> Callable[[str], list[str]]:
    """The function that makes the model's own words of a line."""
    if reading.tokenized or text.tokenisation is None:
        return str.split
    return text.words


def warn_of_text(model: Path, text: TextInput, path: Path, reading: Reading) -> None:
    """Print a warning if raw text is only split at spaces, and one if more than a third of the
    first sentences' words are unknown to the model."""
    if text.tokenisation is None and not reading.tokenized:
        print(f"warning: {AT_SPACES}", file=sys.stderr)
    known = read_known(model / VOCAB) if (model / VOCAB).is_file() else frozenset()
    if not known:
        return
    (whole,) = pieces(path, None)
    lines = read_sentences(path, whole, line_reader(text, reading))
    sample = [word for words, _ in islice(lines, SAMPLE_SENTENCES) for word in words]
    unknown = [word for word in sample if word not in known]
    advice = text.advice(given_raw=not reading.tokenized)
    if warning := unknown_warning(len(sample), unknown, advice):
        print(f"warning: {warning}", file=sys.stderr)


def split_file(text: TextInput, path: Path, target: Path) -> Path:
    """Write the sentences of running text to `target`, one per line, and return it."""
    with target.open("w", encoding="utf-8") as out:
        for part in read_parts(path):
            for sentence in text.split(part):
                print(" ".join(part[sentence.start : sentence.end].split()), file=out)
    pieces(target, None)  # refuses a text without sentences
    return target


def read_parts(path: Path) -> Iterator[str]:
    """A text in parts of whole paragraphs, in limited memory."""
    (whole,) = pieces(path, None)
    held: list[str] = []
    size = 0
    for line, _ in read_lines(path, whole):
        held.append(line)
        size += len(line)
        if (size >= PARAGRAPHS and not line.strip()) or size >= MOST_CHARACTERS:
            yield "".join(held)
            held, size = [], 0
    yield "".join(held)
