"""The folder a corpus is built in: whether it is ours to fill and to sweep, and large enough.

Both are asked before anything is started (`jobs/stages/preflight.py`) and again by the build.
"""

from collections.abc import Sequence
from pathlib import Path

from elmwright.pipeline.errors import UserError
from elmwright.pipeline.format.manifest import NAME
from elmwright.pipeline.reading import sources
from elmwright.pipeline.reading.decode import compression
from elmwright.pipeline.reading.sources import SourceFile
from elmwright.pipeline.storage.files import at, join

MARK = ".elmwright-corpus"
DISK_FACTOR = 3
"""Bytes of disk asked for per byte of input before a build begins; English prose took 2.6."""


def claim(folder: str) -> None:
    """Mark a folder as ours, so that nothing of anybody else's is ever swept away."""
    mark = join(folder, MARK)
    if at(mark).exists():
        return
    check_claim(folder)
    at(mark).write_bytes(b"A corpus of elmwright: what lies here is made and removed by it.\n")


def check_claim(folder: str) -> None:
    """Refuse a folder with files that are not ours."""
    known = any(at(join(folder, name)).exists() for name in (MARK, NAME))
    if not known and at(folder).list_files():
        raise UserError(
            "output",
            f"{folder} is not empty and no corpus of elmwright; name an empty or new folder",
        )


def space_needed(inputs: Sequence[SourceFile], folder: str) -> int:
    """Bytes of disk that building a corpus from these files takes, besides what is there."""
    size = sum(file.bytes * (sources.EXPANSION if compression(file.path) else 1) for file in inputs)
    return DISK_FACTOR * size - sum(file.bytes for file in at(folder).list_files())


def check_space(inputs: Sequence[SourceFile], folder: str) -> None:
    """Refuse to begin what the disk cannot hold; a store is taken to have room."""
    needed, free = space_needed(inputs, folder), at(Path(folder)).free_bytes()
    if needed > free:
        raise UserError(
            "disk-full",
            f"building the corpus in {folder} needs about {needed / 1e6:,.0f} MB of disk "
            f"and {free / 1e6:,.0f} MB are free; free some, choose another run.dir or set "
            "corpus.dir",
        )
