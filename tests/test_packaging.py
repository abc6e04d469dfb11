"""What is built is what is in the tree, and it works where nothing of ours is on the path."""

import ast
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

import elmwright
from tests.support.checkout import PACKAGES, copy_tree, wheel_files
from tests.support.places import ROOT


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wheel and sdist, built from a copy of what git would give a stranger."""
    folder = tmp_path_factory.mktemp("dist")
    source = tmp_path_factory.mktemp("source")
    copy_tree(source)
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(source)],
        check=True, capture_output=True,
    )  # fmt: skip
    return folder


def test_the_wheel_holds_exactly_the_tree(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = {n for n in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in n}
    assert names == wheel_files()


def test_the_sdist_holds_the_tree_and_builds_the_same_wheel(built: Path, tmp_path: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as tar:
        tar.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--wheel", str(source)],
        check=True, capture_output=True,
    )  # fmt: skip
    (again,) = (source / "dist").glob("*.whl")
    names = {n for n in zipfile.ZipFile(again).namelist() if ".dist-info/" not in n}
    assert names == wheel_files()


def test_the_wheel_works_in_a_folder_with_a_hostile_model_py(built: Path, tmp_path: Path) -> None:
    """Installed alone in a new environment that borrows the dependencies of this one."""
    home = tmp_path / "env"
    venv.create(home, with_pip=False, symlinks=True)
    (wheel,) = built.glob("*.whl")
    python = home / "bin" / "python"
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--quiet",
         str(wheel)], check=True, capture_output=True,
    )  # fmt: skip
    hostile = tmp_path / "elsewhere"
    hostile.mkdir()
    for name in ("model", "pipeline", "jobs", "infra"):
        (hostile / f"{name}.py").write_text("raise SystemExit('a stranger was imported')\n")
    dependencies = str(Path(pytest.__file__).parents[1])
    (next((home / "lib").glob("python*")) / "site-packages" / "borrowed.pth").write_text(
        # Behind our own packages, and without the editable install's finder.
        dependencies + "\n"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    for arguments in (
        [
            "-c",
            "import elmwright, sys; from elmwright import Elmo, load; print(elmwright.__file__)",
        ],
        ["-m", "elmwright.jobs.cli", "check", "demo", "--json"],
    ):
        done = subprocess.run(
            [str(python), *arguments], cwd=hostile, env=environment,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        if arguments[0] == "-c":
            assert done.stdout.startswith(str(home))
    script = subprocess.run(
        [str(home / "bin" / "elmwright"), "config"], cwd=hostile, env=environment,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert script.returncode == 0, script.stderr
    assert "demo" in script.stdout


def test_every_pin_is_exact_and_covers_every_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        match = re.fullmatch(r"([A-Za-z0-9._-]+)==([^,;*<>~]+)", line)
        assert match, f"not an exact pin: {line!r}"
        pins[re.sub(r"[-_.]+", "-", match[1]).lower()] = match[2]
    assert pins["torch"] == "2.13.0"
    wanted = project["dependencies"] + project["optional-dependencies"]["dev"]
    for requirement in wanted:
        name = re.match(r"[A-Za-z0-9_-]+", requirement)[0].lower()  # type: ignore[index]
        assert name in pins, f"{name} is not pinned"


def test_the_version_is_said_once(built: Path) -> None:
    """In jobs/api/__init__.py; the build reads it there, and no code or test says it again. What
    infra/ says is compared in tests/infra/test_agreement.py."""
    (wheel,) = built.glob("*.whl")
    assert wheel.name.split("-")[1] == elmwright.__version__
    for place in ("pyproject.toml", "Makefile", "jobs", "model", "pipeline", "tests"):
        path = ROOT / place
        for file in [path] if path.is_file() else sorted(path.rglob("*")):
            if file.suffix in (".py", ".toml", ".sbatch") or file.name == "Makefile":
                text = file.read_text(encoding="utf-8")
                said = re.findall(rf"(?<![\d.]){re.escape(elmwright.__version__)}(?![\d.])", text)
                assert len(said) == (file == ROOT / "jobs" / "api" / "__init__.py"), file


def test_every_extra_is_installed_for_development() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for extra, needs in extras.items():
        assert set(needs) <= set(extras["dev"]), extra


def test_imports_run_one_way() -> None:
    """pipeline ← model ← jobs, and each room stays clear of what it must not know."""
    forbidden = {
        "pipeline": ("elmwright.model", "elmwright.jobs", "torch", "mlflow"),
        "model": ("elmwright.jobs", "ray", "mlflow"),
    }
    for room, names in forbidden.items():
        for path in (ROOT / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                modules = []
                if isinstance(node, ast.Import):
                    modules = [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom):
                    modules = [node.module or ""]
                for module in modules:
                    assert not any(module == n or module.startswith(n + ".") for n in names), (
                        f"{path} imports {module}"
                    )


def test_nothing_writes_or_loads_a_pickle() -> None:
    for room in PACKAGES.values():
        for path in (ROOT / room).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            for word in ("import pickle", "torch.save(", "torch.load(", "allow_pickle=True"):
                assert word not in text, f"{path} uses {word}"
