"""Tab completes commands, recipes, config files and runs, as bash would ask for them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from elmwright.jobs.cli.completion import files
from tests.support.tiny import write_config
from tests.support.tiny_runs.started_run import start


@pytest.fixture
def home(tmp_path: Path) -> Path:
    config = write_config(tmp_path, tmp_path / "text.txt", run_dir=f"{tmp_path}/runs/tiny")
    start(config)
    return tmp_path


def offered(home: Path, line: str) -> list[str]:
    """The answer of argcomplete to bash, which uses the environment and descriptor 8."""
    read, write = os.pipe()
    command = f"exec 8>&{write}; exec {sys.executable} -m elmwright.jobs.cli"
    environment = {
        **os.environ,
        "XDG_STATE_HOME": str(home / "state"),
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "COMP_TYPE": "9",
    }
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=home,
        env=environment,
        pass_fds=(write,),
        capture_output=True,
        check=False,
        timeout=60,
    )
    os.close(write)
    with os.fdopen(read, encoding="utf-8") as answer:
        found = answer.read().split("\n")
    assert done.returncode == 0, done.stderr
    return [one.strip() for one in found if one]


def test_commands(home: Path) -> None:
    assert {"run", "runs", "rollback", "resume"} == set(offered(home, "elmwright r"))


def test_recipes_and_config_files(home: Path) -> None:
    assert offered(home, "elmwright run d") == ["demo"]
    assert offered(home, "elmwright run ti") == ["tiny.toml"]
    assert offered(home, "elmwright config --recipe s") == ["small"]


@pytest.mark.parametrize("command", ["status", "embed", "prune", "verify", "export", "eval"])
def test_names_of_runs(home: Path, command: str) -> None:
    found = offered(home, f"elmwright {command} ti")
    assert "tiny" in found
    assert "tiny.toml" in found


def test_folders_and_options_are_completed(home: Path) -> None:
    assert offered(home, "elmwright status runs/") == ["runs/tiny/"]
    assert "--dry-run" in offered(home, "elmwright prune tiny --d")


def test_without_the_package_the_command_still_works(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from elmwright.jobs.cli.command import main

    monkeypatch.setenv("_ARGCOMPLETE", "1")
    monkeypatch.setitem(sys.modules, "argcomplete", None)
    assert main([]) == 0
    assert "Start here" in capsys.readouterr().out


def test_hidden_files_are_offered_only_after_a_dot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".hidden").touch()
    (tmp_path / "seen").touch()
    assert files("") == ["seen"]
    assert files(".") == [".hidden"]
