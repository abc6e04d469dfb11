"""Reads text for a model, one sentence per line, by byte range and in limited memory.

A line ends with a newline. An empty line is a sentence of no words, so sentences are numbered as
the lines are. Text from a pipe is first copied to a file, because only a file can be read in ranges
and more than once.

A whole sentence is in memory, because the backward model begins at its end. So a line of more than
a megabyte is refused, which is probably a file without line ends.
"""

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, TypeVar

from elmwright.pipeline.errors import UserError

MAX_LINE_BYTES = 1 << 20
"""About 180,000 words."""
WORDS_AT_ONCE = 8192
"""Words in a batch, which is then sorted so that sentences of similar length are computed together.
With the original model their vectors take 100 MB."""
LINES_AT_ONCE = 1024
S = TypeVar("S", bound=Sized)
"""A sentence, of which only the number of words matters here."""
BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Piece:
    """Whole lines of a file."""

    start: int
    """Offset of the first byte."""
    end: int
    """Offset after the last line's newline, or the file's size."""


def pieces(path: Path, size: int | None) -> list[Piece]:
    """Cut a file at line ends into pieces of about `size` bytes, or into one piece for None."""
    with _open(path) as file:
        total = os.fstat(file.fileno()).st_size
        if total == 0:
            raise UserError("no-text", f"{path} is empty; give one sentence per line")
        cuts = [0]
        while size is not None and cuts[-1] + size < total:
            file.seek(cuts[-1] + size - 1)
            file.readline(MAX_LINE_BYTES + size)
            cuts.append(file.tell())
        if cuts[-1] != total:
            cuts.append(total)
    return [Piece(start, end) for start, end in pairwise(cuts)]


def read_sentences(
    path: Path, piece: Piece, words: Callable[[str], list[str]] = str.split
) -> Iterator[tuple[list[str], int]]:
    """The words of each line of a piece, and the line's size in bytes."""
    for line, size in read_lines(path, piece):
        yield words(line.rstrip("\r\n")), size


def read_lines(path: Path, piece: Piece) -> Iterator[tuple[str, int]]:
    """Each line of a piece, and its size in bytes."""
    with _open(path) as file:
        file.seek(piece.start)
        offset = piece.start
        while offset < piece.end:
            line = file.readline(MAX_LINE_BYTES + 1)
            if not line:
                raise UserError(
                    "file-unreadable",
                    f"{path} became shorter while it was read; run the command again",
                )
            if len(line) > MAX_LINE_BYTES:
                raise UserError(
                    "file-unreadable",
                    f"{path}: the line at byte {offset:,} has more than {MAX_LINE_BYTES:,} bytes; "
                    "give one sentence per line",
                )
            text = line.removeprefix(BOM) if offset == 0 else line
            offset += len(line)
            try:
                decoded = text.decode("utf-8")
            except UnicodeDecodeError as error:
                raise UserError(
                    "file-unreadable",
                    f"{path} is not UTF-8 ({error.reason} in the line that ends at byte "
                    f"{offset:,}); convert it first",
                ) from error
            yield decoded, len(line)


def batches(
    sentences: Iterator[tuple[S, int]], exactly: int | None = None
) -> Iterator[tuple[list[S], int]]:
    """Batches of sentences, each with its size in bytes of text.

    A batch has `exactly` that number of sentences, or by default up to `LINES_AT_ONCE` sentences
    and `WORDS_AT_ONCE` words.
    """
    batch: list[S] = []
    read = words = 0
    for sentence, size in sentences:
        if batch and exactly is None and words + len(sentence) > WORDS_AT_ONCE:
            yield batch, read
            batch, read, words = [], 0, 0
        batch.append(sentence)
        read += size
        words += len(sentence)
        if len(batch) == (exactly or LINES_AT_ONCE):
            yield batch, read
            batch, read, words = [], 0, 0
    if batch:
        yield batch, read


@contextmanager
def text_file(source: str, folder: Path) -> Iterator[Path]:
    """The path of a file, or of a temporary copy in `folder` of standard input (`-`) or a pipe."""
    if not is_stream(source):
        yield Path(source)
        return
    copy = folder / f".stdin.{os.getpid()}"
    try:
        with open(copy, "wb") as file:
            if source == "-":
                shutil.copyfileobj(sys.stdin.buffer, file)
            else:
                with _open(Path(source)) as pipe:
                    shutil.copyfileobj(pipe, file)
        yield copy
    except UserError as error:  # the user does not know of the copy
        name = "standard input" if source == "-" else source
        raise error.saying(str(error).replace(str(copy), name)) from error
    finally:
        copy.unlink(missing_ok=True)


def is_stream(source: str) -> bool:
    """Whether a source can be read only once."""
    return source == "-" or Path(source).is_fifo() or Path(source).is_char_device()


def _open(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        is_missing = isinstance(error, FileNotFoundError)
        raise UserError(
            "file-missing" if is_missing else "file-unreadable",
            f"{path} cannot be read: {error.strerror}; check the path",
        ) from error
