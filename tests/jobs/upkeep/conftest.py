"""A finished run that a test may change."""

import shutil
from pathlib import Path

import pytest


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of a finished run with checkpoints 12, 18 and 20."""
    return Path(shutil.copytree(trained, tmp_path / "run", symlinks=True))
