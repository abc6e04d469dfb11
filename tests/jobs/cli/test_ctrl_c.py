"""Ctrl-C and SIGTERM in commands that are safe to kill: real signals to real processes.

A command is slowed down at one place, so that the signal meets it there. It goes to the whole
process group, as a terminal sends it. Corpus and training are in test_run.py.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from elmwright.jobs.bundles.bundle import digest, verify_bundle
from elmwright.jobs.registry.mlflow_registry import MlflowRegistry
from tests.support.tiny import elmwright

pytestmark = pytest.mark.slow(78)

SLOW = """
import sys, time
from pathlib import Path
from pkgutil import resolve_name
owner = resolve_name({owner!r})  # a module, or a class in one
real = getattr(owner, {name!r})
def slow(*arguments, **named):
    Path({mark!r}).touch()
    time.sleep({seconds})
    return real(*arguments, **named)
setattr(owner, {name!r}, slow)
from elmwright.jobs.stages.corpus import Corpus
Corpus.is_done = lambda *_: True
from elmwright.jobs.cli.command import main
sys.exit(main())
"""
SIGNALS = {
    "once": [signal.SIGINT],
    "twice": [signal.SIGINT, signal.SIGINT],
    "many": [signal.SIGINT] * 8,
    "terminated": [signal.SIGTERM],
}


class Slow:
    """A command of which one function takes its time."""

    def __init__(self, mark: Path, place: str, *arguments: object, seconds: float = 120) -> None:
        owner, _, name = place.rpartition(".")
        mark.unlink(missing_ok=True)
        script = SLOW.format(owner=owner, name=name, mark=str(mark), seconds=seconds)
        self.process = subprocess.Popen(
            [sys.executable, "-c", script, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        until = time.monotonic() + 120
        while not mark.exists():
            if self.process.poll() is not None or time.monotonic() > until:
                self.process.kill()
                pytest.fail("".join(self.process.communicate()))
            time.sleep(0.02)

    def send(self, how: str) -> str:
        """Send the signals and return its stderr. Fails if it waits for the slow function."""
        for number in SIGNALS[how]:
            try:
                os.killpg(self.process.pid, number)
            except ProcessLookupError:
                break
            time.sleep(0.05)
        try:
            return self.process.communicate(timeout=60)[1]
        finally:
            self.process.kill()


def check_stopped(slow: Slow, how: str) -> str:
    output = slow.send(how)
    assert slow.process.returncode == 75, output
    assert "Traceback" not in output
    stopped = [line for line in output.splitlines() if line.startswith("stopped: ")]
    assert len(stopped) == 1, output
    return stopped[0]


@pytest.mark.parametrize(
    "how",
    ["once", *(pytest.param(how, marks=pytest.mark.heavy) for how in SIGNALS if how != "once")],
)
def test_an_export_stops_at_once_and_the_same_command_gives_the_same_bytes(
    trained: Path, bundle: Path, tmp_path: Path, how: str
) -> None:
    target = tmp_path / "bundle"
    command = "export", trained, "-o", target
    for place in (
        "elmwright.jobs.training.loop.heldout_pass.nll",
        "elmwright.jobs.bundles.bundle._sha256",
    ):
        check_stopped(Slow(tmp_path / "mark", place, *command), how)
        assert [path.name for path in tmp_path.iterdir()] == ["mark"]
    done = elmwright(*command)
    assert done.returncode == 0, done.stderr
    verify_bundle(target)
    assert digest(target) == digest(bundle)


@pytest.mark.parametrize(
    ("place", "arguments"),
    [
        (
            "elmwright.jobs.training.loop.heldout_pass.nll",
            ["eval", "{bundle}", "--corpus", "{trained}"],
        ),
        ("elmwright.jobs.bundles.bundle._sha256", ["verify", "{bundle}"]),
        ("elmwright.jobs.using.score.nll", ["score", "{bundle}", "{text}", "-o", "{out}.tsv"]),
        (
            "elmwright.jobs.using.embed.choose_layers",
            ["embed", "{bundle}", "{text}", "-o", "{out}.npz"],
        ),
        (
            "elmwright.model.formats.folder.load_file",
            ["fill-cache", "{bundle}", "-o", "{out}.table"],
        ),
    ],
)
def test_other_commands_stop_at_once_and_work_afterwards(
    trained: Path, bundle: Path, tmp_path: Path, place: str, arguments: list[str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The old cat sees the dog .\n" * 20)
    names = {"bundle": bundle, "trained": trained, "text": text, "out": tmp_path / "out"}
    command = [argument.format_map(names) for argument in arguments]
    check_stopped(Slow(tmp_path / "mark", place, *command), "twice")
    done = elmwright(*command)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        (
            "elmwright.jobs.training.loop.heldout_pass.nll",
            "during the export; the same command starts it again",
        ),
        ("elmwright.jobs.registry.logged_models.verify_bundle", "the same command publishes it"),
    ],
)
def test_a_run_stops_in_its_last_stages_and_resumes(
    trained: Path, bundle: Path, empty_database: Path, tmp_path: Path, place: str, sentence: str
) -> None:
    home = tmp_path / "home"
    shutil.copytree(trained.parent, home, symlinks=True)
    config = home / "tiny.toml"
    config.write_text(config.read_text().replace(str(trained), str(home / "run")))
    database = home / "run" / "mlflow" / "mlflow.db"
    database.parent.mkdir(exist_ok=True)
    shutil.copyfile(empty_database, database)
    slow = Slow(tmp_path / "mark", place, "run", config)
    assert sentence in check_stopped(slow, "twice")
    done = Slow(tmp_path / "mark", place, "run", config, seconds=0).process
    output = "".join(done.communicate(timeout=120))
    assert done.returncode == 0, output
    assert digest(home / "run" / "bundle") == digest(bundle)
    versions = MlflowRegistry(f"sqlite:///{database}").versions("tiny")
    assert [version.version for version in versions] == [1]


def slow_module(folder: Path, name: str) -> Path:
    """A module that takes half a minute to import; the file that it makes when that begins."""
    mark = folder / "mark"
    (folder / f"{name}.py").write_text(
        f"import time, pathlib\npathlib.Path({str(mark)!r}).touch()\ntime.sleep(30)\n"
    )
    return mark


def wait_for(mark: Path, process: "subprocess.Popen[Any]") -> None:
    for _ in range(1000):
        if mark.exists() or process.poll() is not None:
            break
        time.sleep(0.02)
    assert mark.exists(), process.communicate()


def test_an_interrupt_while_libraries_are_imported_is_one_sentence(
    trained: Path, bundle: Path, tmp_path: Path
) -> None:
    mark = slow_module(tmp_path, "torch")
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "elmwright.jobs.cli",
            "eval",
            bundle,
            "--corpus",
            trained / "corpus",
        ],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    wait_for(mark, process)
    os.killpg(process.pid, signal.SIGINT)
    output = process.communicate(timeout=10)[1]
    assert (process.returncode, output) == (75, "stopped: interrupted; nothing is lost\n")


CLOSES_SLOWLY = """
import sys, time
from elmwright.jobs.terminal import signals
signals.PATIENCE = 0.5
@signals.stoppable
def main():
    try:
        print("up", flush=True)
        time.sleep(30)
    except KeyboardInterrupt:
        print("closing", flush=True)
        time.sleep({seconds})
        print("closed", end="")
    return 75
main()
"""


SAVES = """
import sys, time
from elmwright.jobs.terminal.signals import stop_signals
with stop_signals() as stop:
    with stop.saving("stopping: saving first", lambda text: print(text, flush=True)):
        print("up", flush=True)
        while not stop.is_set():
            time.sleep(0.01)
        sys.stdin.readline()
        print("saved", flush=True)
"""


def test_work_that_saves_confirms_a_signal_at_once() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        process = subprocess.Popen(
            [sys.executable, "-c", SAVES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(number)
        assert process.stdout.readline() == "stopping: saving first\n", "before the work is saved"
        process.send_signal(signal.SIGTERM)  # again: a batch system
        assert process.communicate("save\n", timeout=60)[0] == "saved\n"
        assert process.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_the_command_is_imported_is_one_sentence(
    number: signal.Signals, tmp_path: Path
) -> None:
    """The program imports argparse first; this one takes its time."""
    mark = slow_module(tmp_path, "argparse")
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys; from elmwright.jobs.cli.program import main; sys.exit(main())",
        ],
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    wait_for(mark, process)
    process.send_signal(number)
    output = process.communicate(timeout=10)[1]
    assert (process.returncode, output) == (75, b"\rstopped: before anything was done\n")


CLOSES_AFTER_SAVING = """
import time
from elmwright.jobs.terminal import signals
signals.PATIENCE = 0.5
@signals.stoppable
def main():
    with signals.stop_signals() as stop:
        with stop.saving("stopping: saving first", lambda text: None):
            print("up", flush=True)
            while not stop.is_set():
                time.sleep(0.01)
    print("closing", flush=True)
    time.sleep({seconds})
    print("closed", end="")
    return 75
main()
"""


@pytest.mark.parametrize(("seconds", "closed"), [(0.4, True), (30, False)])
@pytest.mark.parametrize(
    "program", [CLOSES_SLOWLY, CLOSES_AFTER_SAVING], ids=["interrupted", "saved"]
)
def test_a_second_ctrl_c_waits_for_the_closing_and_a_later_one_does_not(
    program: str, seconds: float, closed: bool
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", program.format(seconds=seconds)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "closing\n"
    process.send_signal(signal.SIGINT)
    if not closed:
        time.sleep(0.8)
        process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=10)
    assert process.returncode == 75
    assert "Traceback" not in error
    assert (out == "closed") == closed, error
    assert ("stopped: at once; the same command resumes" in error) != closed


BETWEEN_STAGES = """
import time
from elmwright.jobs.terminal.signals import stop_signals
with stop_signals() as stop:
    with stop.saving("stopping", lambda text: None):
        pass
    try:
        print("up", flush=True)
        time.sleep(30)
    except KeyboardInterrupt:
        print("raised")
"""


def test_a_signal_between_two_stages_raises_if_none_came_before() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", BETWEEN_STAGES], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=10)[0] == "raised\n"


ENDS = """
import os, signal, sys
from elmwright.jobs.terminal import signals
@signals.stoppable
def main():
    print("the result")  # into the buffer of a pipe
    if {outside}:
        os.kill(os.getpid(), signal.SIGINT)
    return 0
code = main()
os.kill(os.getpid(), signal.SIGINT)
"""


@pytest.mark.parametrize(
    ("outside", "expected"),
    [(False, (0, "")), (True, (75, "stopped: interrupted; nothing is lost\n"))],
)
def test_an_uncaught_interrupt_and_one_at_the_very_end_lose_no_output(
    outside: bool, expected: tuple[int, str]
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENDS.format(outside=outside)],
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
        env={**os.environ, "PYTHONUNBUFFERED": ""},
    )
    assert done.stdout == "the result\n"
    assert (done.returncode, done.stderr) == expected
