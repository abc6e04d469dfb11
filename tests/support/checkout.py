"""A copy of the repository as a stranger's clone would be after `make setup`."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.places import ROOT


def tracked_files() -> list[str]:
    """Every file that git would give a stranger, by its path in the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def copy_tree(target: Path) -> None:
    """Copy the files that git would give a stranger."""
    for name in tracked_files():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target / name)


def clone(target: Path) -> Path:
    """The files that git would give, with the environment borrowed from ours."""
    copy_tree(target)
    venv = target / ".venv"
    venv.mkdir()
    for name in ("bin", "lib", "include", "pyvenv.cfg"):
        (venv / name).symlink_to(Path(sys.prefix) / name)
    (venv / ".ready").touch()
    links = target / "build" / "types" / "elmwright"
    links.mkdir(parents=True)
    for room in ("pipeline", "model", "jobs"):
        (links / room).symlink_to(target / room)
    (links / "__init__.py").symlink_to(target / "jobs" / "api" / "__init__.py")
    return target
