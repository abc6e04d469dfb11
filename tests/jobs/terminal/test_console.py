"""Sentences and bars for the user, everything else in the log."""

import os
import pty
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import logging, os, sys, time
from pathlib import Path
from elmwright.jobs.terminal.console import console_for_run
with console_for_run(Path(sys.argv[1])) as console:
    with console.progress("counting", 3, "sheep") as advance:
        for _ in range(3):
            print("a library prints", flush=True)
            print("a library warns", file=sys.stderr, flush=True)
            os.write(2, b"C++ shouts\\n")
            logging.getLogger("library").warning("a library logs")
            advance(1)
    console.say("All sheep are counted.")
"""
NOISE = ("a library prints", "a library warns", "C++ shouts", "a library logs")


def test_output_of_libraries_goes_to_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(log)], capture_output=True, text=True, check=True
    )
    assert "counting" in done.stdout
    assert "✓ counting         3 sheep" in done.stdout
    assert done.stdout.endswith("All sheep are counted.\n")
    text = log.read_text()
    for noise in NOISE:
        assert noise in text
        assert noise not in done.stdout + done.stderr
    assert "All sheep are counted." in text


def test_a_terminal_gets_a_live_display_without_output_of_libraries(tmp_path: Path) -> None:
    log = tmp_path / "log"
    main, end = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(log)],
        stdout=end,
        stderr=end,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"},
    )
    os.close(end)
    shown = b""
    while True:
        try:
            chunk = os.read(main, 4096)
        except OSError:
            break
        if not chunk:
            break
        shown += chunk
    assert process.wait() == 0
    os.close(main)
    text = shown.decode()
    assert "\x1b[" in text, "no live display"
    assert "✓ counting         3 sheep" in text
    for noise in NOISE:
        assert noise not in text
        assert noise in log.read_text()


def test_a_closed_pipe_does_not_end_the_run(tmp_path: Path) -> None:
    """As in `elmwright run … | head -1`: the work continues and the log has everything."""
    log = tmp_path / "log"
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(log)],
        stdout=writing,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writing)
    assert done.returncode == 0, done.stderr
    assert "All sheep are counted." in log.read_text()


def test_a_log_on_a_full_disk_does_not_hide_an_exception(tmp_path: Path) -> None:
    """What a library has printed is still in Python's buffer, and cannot be written."""
    script = """
import sys
from pathlib import Path
from elmwright.jobs.terminal.console import console_for_run
try:
    with console_for_run(Path("/dev/full")) as console:
        sys.stdout.write("a library prints")
        raise KeyError("what happened")
except KeyError as error:
    print(error, file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONUNBUFFERED": ""},
    )
    assert "'what happened'\n" in done.stderr
    assert "OSError" not in done.stderr.partition("'what happened'\n")[0]
