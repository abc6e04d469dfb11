"""A submission ships the package as it is now.

That it is the wheel that setuptools builds is tested in tests/test_packaging.py.
"""

import subprocess
import sys
from pathlib import Path

from elmwright import __version__
from elmwright.jobs.environment.wheel import (
    content_version,
    installed_files,
    package_files,
    requirements,
    wheel_members,
    zipped,
)


def test_a_changed_line_changes_the_version_and_nothing_else_does() -> None:
    files = package_files()
    version = content_version(files)
    assert version == content_version(dict(reversed(files.items())))
    assert version.startswith(f"{__version__}+")
    changed = files | {
        "elmwright/jobs/cli/command.py": files["elmwright/jobs/cli/command.py"] + b"\n# edited\n"
    }
    assert content_version(changed) != version
    moved = dict(files)
    moved["elmwright/jobs/other.py"] = moved.pop("elmwright/jobs/cli/command.py")
    assert content_version(moved) != version


def test_the_same_files_give_the_same_bytes() -> None:
    members = wheel_members()
    assert zipped(members) == zipped(dict(reversed(members.items())))


def test_pip_installs_the_wheel_and_the_command_runs(tmp_path: Path) -> None:
    version, members = content_version(package_files()), wheel_members()
    wheel = tmp_path / f"elmwright-{version}-py3-none-any.whl"
    wheel.write_bytes(zipped(members))
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--no-index",
            "--target",
            str(tmp_path / "site"),
            str(wheel),
        ],
        check=True,
        capture_output=True,
    )
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from importlib.metadata import version; import elmwright;"
            "from elmwright.jobs.cli.command import main;"
            "print(version('elmwright'), elmwright.__file__); main(['config'])",
        ],
        env={"PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,  # a checkout has an egg-info of its own
    )
    assert done.stdout.startswith(f"{version} {tmp_path}")
    assert "original" in done.stdout
    assert list((tmp_path / "site" / "elmwright").rglob("*.pyc")), "it ran, and left bytecode"
    assert installed_files(tmp_path / "site" / "elmwright") == package_files()


def test_the_wheel_names_what_it_needs() -> None:
    lines = wheel_members()
    metadata = next(v for k, v in lines.items() if k.endswith("METADATA")).decode()
    assert "Requires-Dist: ray[default,train]" in metadata
    assert all(f"Requires-Dist: {line}" in metadata for line in requirements())
    assert "pytest" not in metadata
