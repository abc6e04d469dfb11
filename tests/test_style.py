"""The rules of `make check`, as tests, so that CI applies them too."""

import ast
import io
import os
import re
import shutil
import subprocess
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.support.places import ROOT

pytestmark = pytest.mark.slow(3)

PATHS = ["pipeline", "model", "jobs", "infra", "docs", "tests"]
ROOMS = ["pipeline", "model", "jobs"]


@pytest.mark.parametrize("arguments", [["format", "--check"], ["check"]], ids=["format", "lint"])
def test_ruff_finds_no_problem(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ruff", *arguments, *PATHS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_mypy_strict_finds_no_problem() -> None:
    if not (ROOT / "build" / "types" / "elmwright").is_dir():
        pytest.skip("'make setup' links the rooms for mypy; this checkout was set up otherwise")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "-p", "elmwright"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def lint_imports(tree: Path) -> subprocess.CompletedProcess[str]:
    """import-linter on a folder that holds the package, by the contracts of pyproject.toml."""
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    return subprocess.run(
        [*command, "--config", str(ROOT / "pyproject.toml")],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package in a folder of its own, to plant mistakes in."""
    tree = tmp_path_factory.mktemp("package")
    shutil.copytree(ROOT / "jobs" / "api", tree / "elmwright", symlinks=True)
    for room in ROOMS:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / room, tree / "elmwright" / room, ignore=ignored)
    return tree


def test_import_linter_finds_no_problem(package: Path) -> None:
    done = lint_imports(package)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("place", "line", "contract"),
    [
        ("pipeline/format/block.py", "import torch", "pipeline knows neither torch nor MLflow"),
        ("model/bilm.py", "import ray", "model knows neither Ray nor MLflow"),
        ("jobs/training/loop/train.py", "import mlflow", "the training loop knows neither"),
        ("jobs/rundir/layout.py", "import mlflow", "MLflow is imported in"),
        ("jobs/config/sections.py", "import ray", "Ray is imported in"),
        ("jobs/config/sections.py", "import elmwright.jobs.stages.workflow", "inside jobs/"),
        ("pipeline/storage/disk.py", "import elmwright.pipeline.build.driver", "inside pipeline/"),
    ],
)
def test_a_forbidden_import_is_noticed_in_a_function_too(
    package: Path, place: str, line: str, contract: str
) -> None:
    path = package / "elmwright" / place
    text = path.read_text(encoding="utf-8")
    path.write_text(f"{text}\n\ndef planted() -> None:\n    {line}\n", encoding="utf-8")
    try:
        done = lint_imports(package)
    finally:
        path.write_text(text, encoding="utf-8")
    assert done.returncode == 1
    broken = " ".join(done.stdout.split())
    assert re.search(rf"{re.escape(contract)}[^.]*? BROKEN", broken), done.stdout


def test_folders_and_files_stay_small() -> None:
    folders = Counter(path.parent for path in modules() if path.name != "__init__.py")
    assert {folder: count for folder, count in folders.items() if count > 15} == {}
    tracked = [
        path for top in (*ROOMS, "infra", "docs", "tests") for path in (ROOT / top).rglob("*.py")
    ]
    long = {path: count for path in tracked if (count := len(path.read_text().splitlines())) > 400}
    assert long == {}


def test_every_module_says_what_it_is_for() -> None:
    for path in modules():
        text = path.read_text(encoding="utf-8")
        assert text.startswith('"""'), f"{path} has no docstring"


def modules() -> list[Path]:
    """Every module of ours, in whatever folder of its package."""
    found = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    assert len(found) > 100
    return found


def test_every_folder_of_modules_is_a_package() -> None:
    """Python finds a folder without `__init__.py` too, so nothing else notices a lost one."""
    for folder in {path.parent for path in modules()}:
        assert (folder / "__init__.py").is_file(), f"{folder} has no __init__.py"


def test_the_tree_of_the_code_has_every_module_and_no_other() -> None:
    """`docs/code.md` has every package and every module, at its place."""
    tree = list(tree_of_the_code())
    assert [path for path, count in Counter(tree).items() if count > 1] == []
    modules_and_packages = {
        path.parent if path.name == "__init__.py" else path
        for path in (path.relative_to(ROOT) for path in modules())
    }
    in_rooms = {path for path in tree if path.parts[0] in ROOMS}
    assert modules_and_packages - in_rooms == set(), "missing in docs/code.md"
    assert [path for path in tree if not (ROOT / path).exists()] == []


def test_the_tree_of_the_code_has_the_order_of_the_imports() -> None:
    """The page says that a room may import those below it, so its order is import-linter's."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    tree = list(tree_of_the_code())
    inside = [
        contract
        for contract in project["tool"]["importlinter"]["contracts"]
        if contract["type"] == "layers" and "containers" in contract
    ]
    assert len(inside) >= len(ROOMS)
    for contract in inside:
        (container,) = contract["containers"]
        folder = Path(*container.split(".")[1:])
        depth = {
            name.strip(): depth
            for depth, layer in enumerate(contract["layers"])
            for name in layer.split("|")
        }
        rooms = [path.stem for path in tree if path.parent == folder]
        assert sorted(rooms) == sorted(depth)
        assert rooms == sorted(rooms, key=depth.__getitem__), f"the order in {folder}/"


def tree_of_the_code() -> Iterator[Path]:
    """Every path in the tree of docs/code.md, by its indentation."""
    page = (ROOT / "docs" / "code.md").read_text(encoding="utf-8")
    above: list[str] = []
    for line in page.split("```text\n")[1].split("```")[0].splitlines():
        entry = re.fullmatch(r"((?:  )*)([\w.]+)/? +\S.*", line)
        assert entry, f"neither a name nor a line about it: {line!r}"
        depth = len(entry[1]) // 2
        assert depth <= len(above), f"indented too far: {line!r}"
        above[depth:] = [entry[2]]
        yield Path(*above)


def test_files_that_docstrings_and_comments_name_exist() -> None:
    """`name.py` is in the same folder, or the only one of that name (or path) in the rooms; only
    what the rooms do not have is looked for in the rest of the repository."""
    rooms = [path.relative_to(ROOT).as_posix() for path in modules()]
    rest = [
        path.relative_to(ROOT).as_posix()
        for folder in ("tests", "docs", "infra")
        for path in (ROOT / folder).rglob("*.py")
    ]
    wrong, count = [], 0
    for path in modules():
        for name in files_named_in(path.read_text(encoding="utf-8")):
            count += 1
            if (path.parent / name).is_file():
                continue
            found = [file for file in rooms if f"/{file}".endswith(f"/{name}")]
            found = found or [file for file in rest if f"/{file}".endswith(f"/{name}")]
            if len(found) != 1:
                wrong.append(f"{path.relative_to(ROOT)}: {name} is {found or 'nowhere'}")
    assert count > 100
    assert wrong == []


def files_named_in(source: str) -> Iterator[str]:
    """The `name.py` and `folder/name.py` in the docstrings and comments of a module."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT or token.string.startswith('"""'):
            yield from re.findall(r"(?<![\w./*-])(?:\w+/)*\w+\.py\b", token.string)


def test_pytest_passes_over_no_folder_of_tests(pytestconfig: pytest.Config) -> None:
    """Its default leaves out folders called build."""
    patterns = pytestconfig.getini("norecursedirs")
    folders = {path.parent.relative_to(ROOT) for path in (ROOT / "tests").rglob("test_*.py")}
    names = {name for folder in folders for name in folder.parts}
    assert [n for n in names if any(fnmatch(n, pattern) for pattern in patterns)] == []


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
