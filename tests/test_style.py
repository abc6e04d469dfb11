"""What `make check` promises, so that CI, which runs the tests, holds to it too."""

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.support.places import ROOT

PATHS = ["pipeline", "model", "jobs", "infra", "docs", "tests"]
ROOMS = ["pipeline", "model", "jobs"]


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


def test_every_module_says_what_it_is_for() -> None:
    for path in modules():
        text = path.read_text(encoding="utf-8")
        assert text.startswith('"""'), f"{path} has no docstring"


def modules() -> list[Path]:
    """Every module of ours, in whatever folder of its package."""
    found = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    assert len(found) > 100
    return found


def test_the_tree_of_the_code_has_every_module_and_no_other() -> None:
    """`docs/code.md` names a module by as much of its path as tells it from its neighbours."""
    wrong = []
    tree = dict(tree_of_the_code())
    assert set(tree) >= set(ROOMS)
    for room in ROOMS:
        named = Counter(re.findall(r"(?<![\w./-])[\w/]+\.py\b", tree[room]))
        expected = [path for path in modules() if path.is_relative_to(ROOT / room)]
        expected = [path for path in expected if path.name != "__init__.py"]
        for path in expected:
            names = ["/".join(path.parts[-length:]) for length in range(1, len(path.parts))]
            found = next((name for name in names if named[name]), None)
            if found is None:
                wrong.append(f"{path.relative_to(ROOT)} is missing")
            else:
                named[found] -= 1
        wrong += [f"{room}/: {name} does not exist" for name in +named]
    assert wrong == []


def tree_of_the_code() -> list[tuple[str, str]]:
    """(folder, its lines) of every top folder in the tree of docs/code.md."""
    page = (ROOT / "docs" / "code.md").read_text(encoding="utf-8")
    tree = page.split("```text\n")[1].split("```")[0]
    return re.findall(r"^(\w+)/ +(.*?)(?=^\w+/ |\Z)", tree, re.MULTILINE | re.DOTALL)


def test_every_slow_test_has_a_make_target() -> None:
    """What no target runs is run by nobody."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for path in (ROOT / "tests").rglob("test_*.py"):
        if path != Path(__file__) and "mark.heavy" in path.read_text(encoding="utf-8"):
            name = path.relative_to(ROOT).as_posix()
            folder = f"pytest {path.parent.relative_to(ROOT).as_posix()} "
            assert name in makefile or folder in makefile, f"no make target runs {name}"


def test_no_test_file_is_imported() -> None:
    """What two of them need is in tests/support, or a fixture in a conftest."""
    wrong = []
    paths = list((ROOT / "tests").rglob("*.py"))
    assert len(paths) > 100
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for name in imports(node):
                parts = name.split(".")
                if "conftest" in parts or any(part.startswith("test_") for part in parts):
                    wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert wrong == []


def imports(node: ast.AST) -> list[str]:
    """Every module that an import statement may mean."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module or ''}.{alias.name}" for alias in node.names]
    return []


def test_every_folder_of_tests_is_named_after_a_folder_of_the_package() -> None:
    for room in ROOMS:
        for path in (ROOT / "tests" / room).rglob("test_*.py"):
            folder = path.parent.relative_to(ROOT / "tests")
            assert (ROOT / folder / "__init__.py").is_file(), f"{path} tests no {folder}/"


def test_no_folder_of_helpers_has_more_than_fifteen_modules() -> None:
    folders = Counter(path.parent for path in (ROOT / "tests" / "support").rglob("*.py"))
    assert len(folders) > 3
    for folder, modules in folders.items():
        assert modules <= 15 + 1, f"{folder} needs folders of its own"  # and __init__.py
