"""The results of reading: documents, and records of what could not be read.

A problem is one of a few fixed phrases, so that a report can count them. The detail says more.
After `Broken` the rest of a file is not read; a `Record` without text concerns one document only.
"""

from typing import NamedTuple

RAW = 500
"""Bytes of a broken record that are kept for the quarantine."""
DAMAGED = "file is truncated or damaged"
NO_FIELD = "no text field"


class Record(NamedTuple):
    """One document, or the reason why there is none."""

    offset: int
    """Its place in the uncompressed text: bytes, or the number of its row in Parquet."""
    text: str | None
    """The text; None if the record is broken."""
    problem: str = ""
    """Why it is broken, as a fixed phrase."""
    detail: str = ""
    """More about the problem."""
    raw: bytes = b""
    """The first bytes of a broken record."""
    repaired: bool = False
    """Whether the text had to be repaired, because its bytes did not fit the encoding."""
    piece: int = 0
    """Its number among the pieces of a document, from 1; 0 for a whole document."""


class Broken(Exception):  # noqa: N818 - a state of a file, not a mistake in the program
    """A file that cannot be read further."""

    def __init__(self, problem: str, detail: str, offset: int = 0, raw: bytes = b"") -> None:
        super().__init__(problem)
        self.problem, self.detail, self.offset, self.raw = problem, detail, offset, raw


def too_large(offset: int, raw: bytes, size: int) -> Record:
    """A document that is larger than `corpus.max_document_mb`."""
    return Record(offset, None, "too large", f"{size} bytes", raw[:RAW])
