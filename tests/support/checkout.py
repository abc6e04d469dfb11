"""A copy of the repository as a stranger's clone would be after `make setup`."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.places import ROOT

PACKAGES = {"elmwright/pipeline": "pipeline", "elmwright/model": "model", "elmwright/jobs": "jobs"}
"""Folder in the wheel to folder in the tree."""


def copy_tree(target: Path) -> None:
    """The files that git would give a stranger."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if listed.returncode:
        pytest.skip("not a git checkout")
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
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


def wheel_files() -> set[str]:
    """Every module, recipe and type marker of the tree, under its name in the wheel."""
    expected = {"elmwright/__init__.py", "elmwright/py.typed"}
    for package, folder in PACKAGES.items():
        for path in (ROOT / folder).rglob("*"):
            relative = path.relative_to(ROOT / folder)
            if path.suffix in (".py", ".toml", ".sbatch") and relative.parts[0] != "api":
                expected.add(f"{package}/{relative}")
    return expected
