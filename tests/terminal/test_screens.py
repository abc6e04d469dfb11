"""What people see while a run is going, at 60, 80 and 120 columns.

The snapshots are text: `ELMWRIGHT_SNAPSHOTS=write pytest tests/terminal` writes them anew, and git
shows what changed for people.
"""

import os
import re
import sys
from pathlib import Path

import pytest

from tests.support.places import ROOT
from tests.support.terminal.screen import Seen, Terminal

pytestmark = pytest.mark.slow(37)

SNAPSHOTS = Path(__file__).parent / "snapshots"
WIDTHS = (60, 80, 120)
ESCAPE = re.compile(r"\x1b")


def play(name: str, folder: Path, columns: int = 80, **environment: str) -> Seen:
    """Play a scene on a terminal; press Ctrl-C where the scene waits for it."""
    pressed: list[str] = []

    def act(terminal: Terminal, frame: str) -> None:
        if name == "interrupt" and "210/1,000" in frame and not pressed:
            pressed.append(frame)
            terminal.press(b"\x03")
        if name == "interrupt_early" and "starting 2 processes" in frame and not pressed:
            pressed.append(frame)
            terminal.press(b"\x03")

    home = folder / "home"
    home.mkdir()
    settings = {"XDG_CACHE_HOME": str(folder / "cache"), "ELMWRIGHT_CACHE": "", **environment}
    command = [sys.executable, "-m", "tests.support.terminal.scenes", name, home]
    seen = Terminal(columns, settings, ROOT).run(command, act)
    assert "Traceback" not in seen.everything
    return seen


def check_snapshot(name: str, columns: int, frames: list[str]) -> None:
    """Compare with the snapshot, or write it."""
    path = SNAPSHOTS / f"{name}-{columns}.txt"
    text = f"\n{'=' * columns}\n".join(frames) + "\n"
    if os.environ.get("ELMWRIGHT_SNAPSHOTS") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def check_fits(seen: Seen, columns: int) -> None:
    assert seen.broken == []
    assert max(len(line) for frame in seen.frames for line in frame.split("\n")) <= columns


@pytest.mark.parametrize("columns", WIDTHS)
def test_building_a_corpus(columns: int, tmp_path: Path) -> None:
    seen = play("corpus", tmp_path, columns)
    frames = [
        seen.frame("reading", "50 %"),
        seen.frame("45 %"),
        seen.frame("66 %"),
        seen.frame("That was the corpus."),
    ]
    check_fits(seen, columns)
    check_snapshot("corpus", columns, frames)


@pytest.mark.parametrize("columns", WIDTHS)
def test_training_is_two_lines(columns: int, tmp_path: Path) -> None:
    seen = play("training", tmp_path, columns)
    frames = [
        seen.frame("starting 2 processes"),
        seen.frame(" 0/1,000", "computing the first steps"),
        seen.frame(" 5/1,000", "computing the first steps"),
        seen.frame(" 10/1,000"),
        seen.frame("630/1,000"),
        seen.frame("990/1,000", "scoring held-out text"),
        seen.frame("scoring 24.3 k tokens of held-out text"),
        seen.frame("scoring held-out text: 40 %"),
        seen.frame("Training is done."),
    ]
    check_fits(seen, columns)
    check_snapshot("training", columns, frames)
    assert all(frame.count("\n") <= 1 for frame in frames[:-1])


def test_the_time_left_is_known_from_the_tenth_step_whatever_the_first_one_took(
    tmp_path: Path,
) -> None:
    """990 steps of 0.28 s are 4 min 37 s, though the first step took 11 s."""
    seen = play("training", tmp_path)
    assert "4 min 37 s left" in seen.frame(" 10/1,000")
    # 370 steps of 0.28 s, and two evaluations that took 8 s each so far.
    assert "2 min left" in seen.frame("630/1,000")


@pytest.mark.parametrize("columns", WIDTHS)
def test_the_bar_of_a_resumed_run_starts_at_its_step(columns: int, tmp_path: Path) -> None:
    seen = play("resume", tmp_path, columns)
    frames = [
        seen.frame("resuming at step 200"),
        seen.frame("repeating the steps up to 240"),
        seen.frame("300/1,000"),
    ]
    assert "200/1,000" in frames[0]
    assert not any("0/1,000 steps    0 %" in frame for frame in seen.frames)
    check_fits(seen, columns)
    check_snapshot("resume", columns, frames)


@pytest.mark.parametrize("columns", WIDTHS)
def test_ctrl_c_is_answered_and_ends_in_a_sentence(columns: int, tmp_path: Path) -> None:
    seen = play("interrupt", tmp_path, columns)
    assert seen.code == 75
    seen.frame("saving a checkpoint")
    check_fits(seen, columns)
    assert "^C" not in seen.last
    check_snapshot("interrupt", columns, [re.sub(r"\d+ s$", "N s", seen.last, flags=re.M)])


def test_before_training_has_begun_there_is_nothing_to_save(tmp_path: Path) -> None:
    seen = play("interrupt_early", tmp_path)
    seen.frame("stopping (Ctrl-C again ends at once)")
    assert "saving" not in seen.everything


@pytest.mark.parametrize("columns", [60, 80])
def test_a_sentence_of_another_command_is_broken_between_words(
    columns: int, tmp_path: Path
) -> None:
    seen = play("export", tmp_path, columns)
    assert seen.code == 0, seen.last
    check_fits(seen, columns)
    assert len(seen.last.split("\n")) > 1
    assert " ".join(seen.last.split()) == (
        "wrote bundle: 2,000 held-out sentences score as the trainer says, all layers of 20 "
        "sentences agree"
    )


@pytest.mark.parametrize("columns", WIDTHS)
def test_an_evaluation_counts_tokens_and_reading_counts_bytes(columns: int, tmp_path: Path) -> None:
    seen = play("evaluation", tmp_path, columns)
    frames = [
        seen.frame("scoring", "33 %"),
        seen.frame("140/310 MB"),
        seen.frame("warning:"),
    ]
    check_fits(seen, columns)
    check_snapshot("evaluation", columns, frames)


@pytest.mark.parametrize("columns", WIDTHS)
def test_a_defect_is_a_sentence_and_the_path_of_the_log(columns: int, tmp_path: Path) -> None:
    seen = play("failure", tmp_path, columns)
    assert seen.code == 1
    log = tmp_path / "home" / "elmwright.log"
    assert re.search(rf"(?m)(^| ){re.escape(str(log))}\r$", seen.output), "whole, to be copied"
    text = log.read_text()
    assert "raise KeyError" in text
    assert "the thread 'second' failed" in text
    assert text.count("Traceback") >= 2
    assert "KeyError: 'unit'" in seen.last
    assert "ray::" not in seen.everything


def test_a_defect_before_there_is_a_run_is_in_a_file_of_the_cache(tmp_path: Path) -> None:
    seen = play("early_failure", tmp_path)
    assert seen.code == 1
    (path,) = (tmp_path / "cache" / "elmwright" / "errors").iterdir()
    assert f"\n{path}\r\n" in seen.output, "whole, on its own line"
    assert path.read_text().count("raise KeyError") == 2, "of the thread, and of the command"
    assert "warning: the thread 'early' failed" in seen.last

    elsewhere = tmp_path / "second"
    elsewhere.mkdir()
    play("early_failure", elsewhere, ELMWRIGHT_CACHE=str(elsewhere / "own"))
    assert list((elsewhere / "own" / "errors").glob("*.txt"))


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    command = [sys.executable, "-m", "tests.support.terminal.scenes", "failure", home]
    seen = Terminal(80, {"ELMWRIGHT_DEBUG": "1"}, ROOT).run(command)
    assert seen.code == 1
    assert "Traceback" in seen.last


def test_a_dumb_terminal_gets_plain_lines_that_fit(tmp_path: Path) -> None:
    for name in ("corpus", "training", "evaluation", "failure"):
        folder = tmp_path / name
        folder.mkdir()
        seen = play(name, folder, TERM="dumb")
        assert not ESCAPE.search(seen.output), name
    assert "warning: " in play("evaluation", folder / "home", TERM="dumb").output


def test_no_color_means_no_colours(tmp_path: Path) -> None:
    colour = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-8]|4[0-8]|9[0-7])(?:;\d+)*m")
    plain, coloured = tmp_path / "plain", tmp_path / "coloured"
    plain.mkdir()
    coloured.mkdir()
    assert colour.search(play("corpus", coloured).output)
    seen = play("corpus", plain, NO_COLOR="1")
    assert not colour.search(seen.output)
    assert "45 %" in seen.everything, "it is live all the same"


def test_quiet_shows_warnings_and_results_only(tmp_path: Path) -> None:
    seen = play("quiet", tmp_path)
    assert seen.everything.split("\n")[-2:] == ["warning: careful", "all is well"]
    assert "cleaning" not in seen.everything
    assert "not to be seen" not in seen.everything
