"""The help lists every command with an example and fits 80 columns."""

import os
import pty
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from elmwright import __version__
from elmwright.jobs.cli.command import main, make_parser
from elmwright.jobs.cli.commands import COMMANDS
from elmwright.jobs.cli.help import EXAMPLES, PAGE, TEXTS
from tests.support.tiny import elmwright

pytestmark = pytest.mark.slow(3)


def test_every_command_has_a_line_in_the_help_and_an_example_that_parses() -> None:
    assert set(COMMANDS) == set(TEXTS) == set(EXAMPLES)
    for name, example in EXAMPLES.items():
        line = example.rpartition("| ")[2].partition(" >")[0]
        program, *arguments = shlex.split(line)
        assert (program, arguments[0]) == ("elmwright", name)
        make_parser().parse_args(arguments)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_its_function(name: str) -> None:
    module, _, function = COMMANDS[name].function.rpartition(".")
    assert callable(getattr(import_module(f"elmwright.jobs.cli.{module}"), function))


def test_the_bare_command_prints_the_help() -> None:
    bare, asked = elmwright(), elmwright("--help")
    assert (bare.returncode, bare.stderr) == (asked.returncode, asked.stderr) == (0, "")
    assert bare.stdout == asked.stdout == PAGE


@pytest.mark.parametrize("columns", [80, 120])
def test_all_help_fits_80_columns(columns: int) -> None:
    """However wide the terminal is."""
    environment = {**os.environ, "COLUMNS": str(columns)}
    script = (
        "import sys\nfrom elmwright.jobs.cli.command import main\n"
        "for name in sys.argv[1:]:\n"
        "    try:\n        main([name, '--help'])\n    except SystemExit:\n        pass\n"
    )
    names = [*COMMANDS, "neighbors"]
    done = subprocess.run(
        [sys.executable, "-c", script, *names],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert done.stdout.count("example:") == len(names)
    assert max(map(len, elmwright("--help", COLUMNS=str(columns)).stdout.splitlines())) <= 80


def test_a_mistyped_command_is_answered_with_the_nearest_one() -> None:
    typo = elmwright("jobb")
    assert typo.returncode == 2
    assert typo.stderr == "error: there is no command 'jobb'; did you mean 'jobs'?\n"


def test_mistakes_in_arguments_are_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in (
        (["zzz"], "there is no command 'zzz'; 'elmwright --help' shows how"),
        (["run"], "the following arguments are required: CONFIG; 'elmwright run --help' shows how"),
        (["run", "demo", "--until", "trian"], "did you mean 'train'?"),
        (["runs", "--nix"], "unrecognized arguments: --nix"),
    ):
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert stop.value.code == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("error: ")
        assert words in line


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"elmwright {__version__}\n"


def test_the_help_in_a_terminal_is_the_same(tmp_path: Path) -> None:
    """No colours, no codes: a terminal shows the bytes that a pipe gets."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "elmwright.jobs.cli"]
    process = subprocess.Popen(command, stdout=theirs, cwd=tmp_path)
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        shown += part
    os.close(ours)
    assert process.wait() == 0
    assert shown.decode().replace("\r\n", "\n") == elmwright().stdout
