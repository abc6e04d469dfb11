"""Checks that the corpus folder has no files of the user, and that its disk is large enough.

The checks are made before a run starts (`corpus_inputs.py`) and again by the build.
"""

from collections.abc import Sequence

from elmwright.pipeline.errors import UserError
from elmwright.pipeline.format.manifest import NAME
from elmwright.pipeline.reading import sources
from elmwright.pipeline.reading.decode import compression
from elmwright.pipeline.reading.sources import SourceFile
from elmwright.pipeline.storage.files import at, join

MARKER = ".elmwright-corpus"
DISK_FACTOR = 3
"""Bytes of disk needed per byte of input; measured on English prose: 2.6."""


def claim(folder: str) -> None:
    """Mark a folder as a corpus, in which files may be removed; `UserError` if it has others."""
    marker = at(join(folder, MARKER))
    if not marker.exists():
        check_claim(folder)
        marker.write_bytes(
            b"A corpus of elmwright, which creates and removes files in this folder.\n"
        )


def check_claim(folder: str) -> None:
    """Refuse a folder that has files and is not a corpus."""
    is_ours = any(at(join(folder, name)).exists() for name in (MARKER, NAME))
    if not is_ours and at(folder).list_files():
        raise UserError(
            "output",
            f"{folder} is not empty and is not a corpus of elmwright; name an empty or new folder",
        )


def check_space(inputs: Sequence[SourceFile], folder: str) -> None:
    """Refuse a disk that is too small. An object store is assumed to be large enough."""
    if at(folder).is_url:
        return
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
