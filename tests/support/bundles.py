"""A bundle's files, to be compared, and a copy of them, to be damaged."""

import shutil
from pathlib import Path


def contents(folder: Path) -> dict[str, bytes]:
    """File name → bytes."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def copy(bundle: Path, target: Path) -> Path:
    """A copy of a bundle at `target`, which is returned."""
    shutil.copytree(bundle, target)
    return target
