"""The wheel contains the tree, and works without the checkout on the path."""

import email
import json
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
from packaging.requirements import Requirement

import elmwright
from elmwright.jobs.environment.wheel import (
    content_version,
    listed_files,
    package_files,
    wheel_members,
)
from tests.support.checkout import copy_tree, tracked_files
from tests.support.places import ROOT

pytestmark = pytest.mark.slow(7)

ROOMS = ("pipeline", "model", "jobs")
APART = ("spacy", "flair")
"""Extras too large for every test run: `make extras-test` installs them."""
API = "jobs/api/"
"""The folder of the package `elmwright` itself."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wheel and sdist, built from a copy of what git would give a stranger."""
    folder = tmp_path_factory.mktemp("dist")
    source = tmp_path_factory.mktemp("source")
    copy_tree(source)
    build(source, folder)
    return folder


def build(source: Path, folder: Path, *options: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", *options, "--outdir", folder, source],
        check=True,
        capture_output=True,
    )


def contents(folder: Path) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """The files of the one wheel in a folder: those of the package, and those about it."""
    (wheel,) = folder.glob("*.whl")
    archive = zipfile.ZipFile(wheel)
    members = {name: archive.read(name) for name in archive.namelist()}
    package = {name: data for name, data in members.items() if ".dist-info/" not in name}
    about = {name.partition("/")[2]: members[name] for name in members.keys() - package.keys()}
    return package, about


def tree() -> set[str]:
    """Every file in the folders of the packages, under its name in the wheel."""
    expected = set()
    for name in tracked_files():
        if name.startswith(API):
            expected.add(f"elmwright/{name.removeprefix(API)}")
        elif name.partition("/")[0] in ROOMS:
            expected.add(f"elmwright/{name}")
    return expected


def test_every_folder_with_modules_is_a_listed_package() -> None:
    """Setuptools ships the packages that are listed, and says nothing about the others."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    modules = {name for name in tree() if name.endswith(".py")}
    folders = {name.rpartition("/")[0] for name in modules}
    assert sorted(listed) == sorted(folder.replace("/", ".") for folder in folders)
    assert {f"{folder}/__init__.py" for folder in folders} <= modules


def test_wheel_contains_exactly_the_tree(built: Path) -> None:
    """A file of another kind must be listed under package-data, or live elsewhere."""
    assert set(contents(built)[0]) == tree()


def test_the_sent_wheel_is_the_built_wheel(built: Path) -> None:
    """The same files with the same bytes, command and needs; only the version has a digest."""
    package, about = contents(built)
    sent = wheel_members()
    assert {name: data for name, data in sent.items() if ".dist-info/" not in name} == package
    sent_about = {name.partition("/")[2]: data for name, data in sent.items() if ".dist-" in name}
    assert set(sent_about) <= set(about)
    assert sent_about["entry_points.txt"].split() == about["entry_points.txt"].split()
    assert facts(sent_about["METADATA"]) == facts(about["METADATA"])


def facts(metadata: bytes) -> tuple[str, str, set[Requirement]]:
    """Name, Python versions and requirements in METADATA, without those of the extras."""
    told = email.message_from_bytes(metadata)
    needs = {Requirement(line) for line in told.get_all("Requires-Dist") or []}
    return told["Name"], told["Requires-Python"], {n for n in needs if "extra" not in str(n.marker)}


def test_new_packages_and_data_files_are_sent_as_they_are_built(tmp_path: Path) -> None:
    """Whatever pyproject lists, however deep; and no file that merely is in the folder."""
    source = tmp_path / "source"
    copy_tree(source)
    planted = (
        "jobs/plots/__init__.py jobs/plots/draw.py jobs/plots/page.css jobs/plots/.hidden.css "
        "jobs/plots/deep/er/icon.svg jobs/plots/sub/__init__.py jobs/plots/sub/stub.pyi "
        "jobs/notes.txt jobs/unlisted/__init__.py model/words.txt pipeline/run.log"
    ).split()
    for name in planted:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(f"# {name}\n")
    project = source / "pyproject.toml"
    text = project.read_text().replace(
        '    "elmwright.jobs",\n',
        '    "elmwright.jobs",\n    "elmwright.jobs.plots",\n    "elmwright.jobs.plots.sub",\n',
    )
    project.write_text(
        text.replace(
            "[tool.setuptools.package-data]\n",
            "[tool.setuptools.package-data]\n"
            '"*" = ["words.txt"]\n"elmwright.jobs.plots" = ["*.css", "deep/**/*.svg"]\n',
        )
    )
    build(source, tmp_path / "dist", "--wheel")
    package, _ = contents(tmp_path / "dist")
    assert listed_files(source) == package
    assert set(package) - tree() == {
        f"elmwright/{name}" for name in (*planted[:3], *planted[4:7], "model/words.txt")
    }


def test_sdist_contains_the_tree_and_builds_the_same_wheel(built: Path, tmp_path: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as tar:
        tar.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    build(source, tmp_path / "again", "--wheel")
    assert contents(tmp_path / "again")[0] == contents(built)[0]


def test_the_wheel_works_in_a_folder_with_a_hostile_model_py(built: Path, tmp_path: Path) -> None:
    """Installed alone in a new environment that borrows the dependencies of this one."""
    home = tmp_path / "env"
    venv.create(home, with_pip=False, symlinks=True)
    (wheel,) = built.glob("*.whl")
    python = home / "bin" / "python"
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(python),
            "install",
            "--no-deps",
            "--quiet",
            str(wheel),
        ],
        check=True,
        capture_output=True,
    )
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
            "import elmwright, sys; from elmwright import Elmo; print(elmwright.__file__)",
        ],
        ["-m", "elmwright.jobs.cli", "check", "demo", "--json"],
    ):
        done = subprocess.run(
            [str(python), *arguments],
            cwd=hostile,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        if arguments[0] == "-c":
            assert done.stdout.startswith(str(home))
    script = subprocess.run(
        [str(home / "bin" / "elmwright"), "config"],
        cwd=hostile,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert script.returncode == 0, script.stderr
    assert "demo" in script.stdout
    # Installed, without a pyproject, it sends the same files and asks for the same environment.
    code = (
        "import json; from elmwright.jobs.environment.wheel import *;"
        "version, members = content_version(package_files()), wheel_members();"
        "print(json.dumps([version, {k.partition('/')[2]: v.decode() for k, v in members.items()"
        " if '.dist-info/' in k}]))"
    )
    done = subprocess.run(
        [str(python), "-c", code],
        cwd=hostile,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    version, about = json.loads(done.stdout)
    members = wheel_members()
    assert version == content_version(package_files())
    for name in ("WHEEL", "entry_points.txt"):
        assert about[name].encode() == members[f"elmwright-{version}.dist-info/{name}"]
    assert facts(about["METADATA"].encode()) == facts(
        members[f"elmwright-{version}.dist-info/METADATA"]
    )


def test_every_pin_is_exact_and_covers_every_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        match = re.fullmatch(r"([A-Za-z0-9._-]+)==([^,;*<>~]+)", line)
        assert match, f"not an exact pin: {line!r}"
        pins[re.sub(r"[-_.]+", "-", match[1]).lower()] = match[2]
    assert pins["torch"] == "2.13.0"
    extras = project["optional-dependencies"]
    wanted = project["dependencies"] + [line for extra in extras.values() for line in extra]
    for requirement in wanted:
        name = re.match(r"[A-Za-z0-9_-]+", requirement)[0].lower()  # type: ignore[index]
        assert name in pins, f"{name} is not pinned"


def test_version_is_defined_once(built: Path) -> None:
    """In jobs/api/__init__.py; the build reads it there, and no code or test says it again. What
    infra/ says is compared in tests/infra/test_agreement.py."""
    (wheel,) = built.glob("*.whl")
    assert wheel.name.split("-")[1] == elmwright.__version__
    for place in ("pyproject.toml", "Makefile", "jobs", "model", "pipeline", "tests"):
        path = ROOT / place
        for file in [path] if path.is_file() else sorted(path.rglob("*")):
            if file.suffix in (".py", ".toml", ".sbatch") or file.name == "Makefile":
                text = file.read_text(encoding="utf-8")
                mentions = re.findall(
                    rf"(?<![\d.]){re.escape(elmwright.__version__)}(?![\d.])", text
                )
                assert len(mentions) == (file == ROOT / "jobs" / "api" / "__init__.py"), file


def test_every_extra_is_installed_for_development() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for extra, needs in extras.items():
        if extra in APART:
            assert extra in (ROOT / "Makefile").read_text()
        else:
            assert set(needs) <= set(extras["dev"]), extra


def test_nothing_writes_or_loads_a_pickle() -> None:
    for room in ROOMS:
        for path in (ROOT / room).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            for word in ("import pickle", "torch.save(", "torch.load(", "allow_pickle=True"):
                assert word not in text, f"{path} uses {word}"
