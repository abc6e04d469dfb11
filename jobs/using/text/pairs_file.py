"""Reads a file of sentence pairs, for `elmwright score --pairs`.

A line is two sentences with a tab between them, the one that should be more probable first. The
whole file is checked before a model is loaded, so it is in memory (a hundred thousand pairs are
about 20 MB), and a line that is something else is named by its number.
"""

from dataclasses import dataclass
from pathlib import Path

from elmwright.jobs.using.text.sentences import BOM, MAX_LINE_BYTES, pieces
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.progress import plural

SHAPE = "a line is two sentences with one tab between them"


@dataclass(frozen=True)
class Pair:
    """Two sentences as they are in the file."""

    first: str
    """The one that should be more probable."""
    second: str


def read_pairs(path: Path) -> list[Pair]:
    """The pairs of a file; UserError with the number of the first line that is not a pair."""
    pieces(path, None)  # that it exists and is not empty
    pairs: list[Pair] = []
    with path.open("rb") as file:
        while line := file.readline(MAX_LINE_BYTES + 1):
            if not pairs:
                line = line.removeprefix(BOM)
            try:
                pairs.append(_pair(line))
            except ValueError as error:
                raise UserError(
                    "file-unreadable", f"{path}, line {len(pairs) + 1:,}: {error}"
                ) from error
    return pairs


def _pair(line: bytes) -> Pair:
    """ValueError says what is wrong with the line and what to do."""
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"it has more than {MAX_LINE_BYTES:,} bytes; {SHAPE}")
    try:
        text = line.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 ({error.reason}); convert the file first") from error
    sentences = [sentence.strip() for sentence in text.split("\t")]
    if len(sentences) != 2:
        if sentences == [""]:
            raise ValueError("it is empty; remove it")
        tabs = len(sentences) - 1
        raise ValueError(f"it has {plural(tabs, 'tab') if tabs else 'no tab'}; {SHAPE}")
    if not all(sentences):
        side = "first" if not sentences[0] else "second"
        raise ValueError(f"its {side} sentence is empty; {SHAPE}")
    return Pair(*sentences)
