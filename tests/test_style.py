"""What `make check` promises, so that CI, which runs the tests, holds to it too."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PATHS = ["pipeline", "model", "jobs", "infra", "tests"]


@pytest.mark.parametrize("arguments", [["format", "--check"], ["check"]], ids=["format", "lint"])
def test_ruff_has_nothing_to_say(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ruff", *arguments, *PATHS],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_mypy_strict_has_nothing_to_say() -> None:
    if not (ROOT / "build" / "types" / "elmwright").is_dir():
        pytest.skip("'make setup' links the rooms for mypy; this checkout was set up otherwise")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "-p", "elmwright"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_module_says_what_it_is_for_and_the_readme_names_it() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for room in ("pipeline", "model", "jobs"):
        for path in (ROOT / room).glob("*.py"):
            text = path.read_text(encoding="utf-8")
            assert text.startswith('"""'), f"{path} has no docstring"
            assert path.name == "__init__.py" or path.name in readme, f"{path} is not in the README"


def test_every_slow_test_has_a_make_target() -> None:
    """What no target runs is run by nobody."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for path in (ROOT / "tests").rglob("test_*.py"):
        if path != Path(__file__) and "mark.heavy" in path.read_text(encoding="utf-8"):
            name = path.relative_to(ROOT).as_posix()
            folder = f"pytest {path.parent.relative_to(ROOT).as_posix()} "
            assert name in makefile or folder in makefile, f"no make target runs {name}"
