"""What is slow to make is made by one test process, and copied by the others."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A folder that this process may change: a copy of the one that the first process makes.

    With pytest-xdist every process has a session of its own, below one folder of the whole run.
    """
    folder = factory.mktemp(name) / name
    common = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        common = common.parent
    original, done = common / f"made-{name}", common / f"made-{name}.done"
    with FileLock(common / f"made-{name}.lock"):
        if not done.exists():
            original.mkdir()
            make(original)
            done.touch()
    shutil.copytree(original, folder, symlinks=True)
    return folder
