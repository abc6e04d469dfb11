"""Whether the corpus folder is ours to fill and sweep, and whether its disk is large enough.

Both are checked before anything is started (`corpus_inputs.py`) and again by the build.
"""

from collections.abc import Sequence

from elmwright.pipeline.errors import UserError
from elmwright.pipeline.format.manifest import NAME
from elmwright.pipeline.reading import sources
from elmwright.pipeline.reading.decode import compression
from elmwright.pipeline.reading.sources import SourceFile
from elmwright.pipeline.storage.files import at, join

MARK = ".elmwright-corpus"
DISK_FACTOR = 3
"""Bytes of disk needed per byte of input; English prose took 2.6."""


def claim(folder: str) -> None:
    """Mark a folder as ours, so that nobody else's files are ever removed."""
    mark = at(join(folder, MARK))
    if not mark.exists():
        check_claim(folder)
        mark.write_bytes(b"A corpus of elmwright: what lies here is made and removed by it.\n")


def check_claim(folder: str) -> None:
    """Refuse a folder with files that are not ours."""
    is_ours = any(at(join(folder, name)).exists() for name in (MARK, NAME))
    if not is_ours and at(folder).list_files():
        raise UserError(
            "output",
            f"{folder} is not empty and no corpus of elmwright; name an empty or new folder",
        )


def check_space(inputs: Sequence[SourceFile], folder: str) -> None:
    """Refuse to begin if the disk is too small. A store is assumed to be large enough."""
    size = sum(file.bytes * (sources.EXPANSION if compression(file.path) else 1) for file in inputs)
    needed = DISK_FACTOR * size - sum(file.bytes for file in at(folder).list_files())
    free = at(folder).free_bytes()
    if needed > free:
        raise UserError(
            "disk-full",
            f"building the corpus in {folder} needs about {needed / 1e6:,.0f} MB of disk "
            f"and {free / 1e6:,.0f} MB are free; free some, choose another run.dir or set "
            "corpus.dir",
        )
