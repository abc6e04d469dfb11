"""Where there is no terminal: plain lines, nothing cut, no escape codes."""

import io
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from elmwright.jobs.terminal.console import Console
from elmwright.jobs.terminal.listing import funnel_table, table
from elmwright.jobs.terminal.pace import Pace, StepPace
from elmwright.jobs.terminal.wording import (
    counted,
    duration,
    from_here,
    nearby,
    of_total,
    size,
    typed,
    wrap,
)
from elmwright.jobs.training.driver.display import Watcher
from elmwright.jobs.training.loop.recorder import EARLY_STEPS
from elmwright.pipeline.progress import plural, stage
from tests.support.places import ROOT
from tests.support.terminal.scenes import SPEED, Training

pytestmark = pytest.mark.slow(5)

LONG = "gopher_repetition.max_duplicate_paragraph_characters"


@pytest.mark.parametrize("name", ["corpus", "training", "evaluation"])
def test_a_pipe_gets_plain_lines(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.terminal.scenes", name, tmp_path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "\x1b" not in done.stdout
    expected = {
        "corpus": "  ✓ cleaning         8,412 documents            27 s",
        "training": "  ✓ training         1,000 steps                ",
        "evaluation": "warning: this warning is so long that it does not fit on a line of eighty "
        "columns at all\n",
    }
    assert expected[name] in done.stdout
    assert done.stderr == ""


def test_training_in_a_pipe_prints_progress_and_time_left(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.terminal.scenes", "training", tmp_path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "  training         starting 2 processes\n" in done.stdout
    (line,) = [line for line in done.stdout.split("\n") if "630/1,000" in line]
    assert line == (
        "  training         630/1,000 steps, 63 %, 2 min left, held-out perplexity 212.3, "
        "loss 4.74, 3,758 tokens/s, epoch 126.00, saved at step 600"
    )


def test_a_table_in_a_pipe_is_whole_and_on_a_terminal_it_fits() -> None:
    counts = [("read", 123_456, 1_234_567, 123_456_789), (LONG, 1, 2, 3), ("kept", 1, 1, 1)]
    wide = "\n".join(funnel_table(counts, None))
    assert f"- {LONG}" in wide
    for width in (80, 120):
        lines = funnel_table(counts, width)
        assert max(map(len, lines)) <= width
        text = "\n".join(lines)
        assert "123,456,789" in text
        assert "max_duplicate_paragraph_characters" in text
    usual = [("read", 123_456, 1_234_567, 123_456_789), ("heldout_overlap", 1, 2, 3)]
    assert max(map(len, funnel_table(usual, 60))) <= 60
    assert funnel_table([("read", 1, 1, 1), ("nothing", 0, 0, 0)], 80)[-1].split()[0] == "read"


def test_cells_are_broken_between_words_only() -> None:
    row = ("1", "2026-11-17 22:00:00", "3f" * 6, "heldout 146.70, news 212.30", "@candidate signed")
    lines = table(("version", "published", "digest", "perplexity", ""), [row], 60, text=(2, 3, 4))
    words = set(" ".join(lines).split())
    assert {"@candidate", "signed", "146.70,", "heldout"} <= words


def test_sentences_are_broken_between_words_and_paths_stay_whole() -> None:
    path = "/a/very/long/path/" + "x" * 70
    text = f"  the file is in {path} and nowhere else"
    lines = wrap(text, 60).split("\n")
    assert lines == ["  the file is in", f"  {path}", "  and nowhere else"]
    assert wrap(text, None) == text
    assert wrap("short\n\nand short", 60) == "short\n\nand short"


def test_paths_are_relative_to_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert nearby(tmp_path / "runs" / "demo") == "runs/demo"
    assert nearby("/elsewhere/runs") == "/elsewhere/runs"
    assert from_here(f"it is in {tmp_path}/runs/demo.") == "it is in runs/demo."
    for kept in (f"s3:/{tmp_path}/runs", f"sqlite:///{tmp_path}/db", f"{tmp_path} is full"):
        assert from_here(kept) == kept


def test_a_command_is_broken_so_that_it_can_be_pasted() -> None:
    arguments = ("neighbours", "runs/demo", "--word", "file", "--in", "open the file and read it")
    whole = typed(*arguments, "--corpus", "runs/demo")
    assert whole.endswith('--in "open the file and read it" --corpus runs/demo')
    broken = typed(*arguments, "--corpus", "runs/demo", width=60)
    assert all(len(line) <= 60 for line in broken.split("\n")[1:])
    assert broken.replace(" \\\n   ", "") == whole
    assert typed("ui", "a $folder").endswith("'a $folder'")


def test_numbers_are_written_for_people() -> None:
    assert [duration(s) for s in (0.2, 12.4, 60, 220, 3600, 4800, 86400, 97200)] == [
        "0 s",
        "12 s",
        "1 min",
        "3 min 40 s",
        "1 h",
        "1 h 20 min",
        "1 d",
        "1 d 3 h",
    ]
    assert plural(1, "sentence") == "1 sentence"
    assert plural(2, "process") == "2 processes"
    assert plural(1200, "thread") == "1,200 threads"
    assert counted(1, "processes") == "1 process"
    assert counted(1, "copies") == "1 copy"
    assert counted(1_234_567, "tokens") == "1.2 M tokens"
    assert counted(999, "tokens") == "999 tokens"
    assert [size(n) for n in (1, 17, 2048, 310e6, 1.2e9)] == [
        "1 byte",
        "17 bytes",
        "2.0 kB",
        "310 MB",
        "1.2 GB",
    ]
    assert of_total(213, 1000, "steps") == "213/1,000 steps"
    assert of_total(400_000, 1_234_567, "tokens") == "0.4/1.2 M tokens"
    assert of_total(140_000_000, 310_000_000, "bytes") == "140/310 MB"


def test_the_pace_is_that_of_the_last_minute() -> None:
    pace = Pace()
    pace.at(0.0, 0)
    assert pace.left(100, 0.0) is None
    for second in range(1, 101):  # slow, then four times as fast
        pace.at(float(second), second if second < 30 else 30 + 4 * (second - 30))
    assert pace.left(510, 100.0) == pytest.approx(50, abs=1)
    assert pace.left(510, 110.0) == pytest.approx(40, abs=1), "it counts down between signs of life"


def test_the_pace_of_steps_ignores_a_slow_start_and_a_pause_and_counts_evaluations() -> None:
    pace = StepPace(1000, 100)
    pace.begin(0.0, 0)
    now = 60.0  # the first step
    pace.at(now, 1, evaluated=False)
    for step in range(2, 10):
        now += 0.5
        pace.at(now, step, evaluated=False)
        assert pace.left(0.0) is None, "before the tenth step nothing is promised"
    for step in range(10, 101):
        now += 0.5 + (90.0 if step == 50 else 0.0) + (20.0 if step == 100 else 0.0)
        pace.at(now, step, evaluated=step == 100)
    assert pace.evaluations_left == 9
    assert pace.left(0.0) == pytest.approx(900 * 0.5 + 9 * 20.0)
    assert pace.left(10.0) == pytest.approx(900 * 0.5 + 9 * 20.0 - 10)


def test_the_time_left_is_known_from_the_tenth_step_however_rare_the_metrics_are(
    tmp_path: Path,
) -> None:
    """tracking.every_steps = 100: the journal has the early steps alone."""
    run = Training(tmp_path)
    console = Console(io.StringIO(), clock=run.clock)
    with console.bar("training", 1000, "steps") as bar:
        watcher = Watcher(run.config, run.folder, console, bar, run.clock)
        run.write("begin", 0, attempt=1)
        run.clock.now += 40 * SPEED
        for before, step in pairwise((1, *EARLY_STEPS)):
            run.clock.now += (step - before) * SPEED
            run.write("step", step, attempt=1)
        watcher.look()
        assert bar.left == pytest.approx(990 * SPEED, abs=1)
        assert bar.facts == ("epoch 2.00",)
        bar.is_complete = True


def test_a_stage_of_several_pieces_is_one_bar_that_never_goes_back() -> None:
    shown = []
    console = Console(io.StringIO())
    with console.bar("finding copies", 3000, "") as bar:
        bar.on_change = lambda: shown.append(bar.done)

        def progress(*_: object):  # type: ignore[no-untyped-def]
            from contextlib import nullcontext

            return nullcontext(bar.advance)

        with stage(progress, "finding copies", 3) as line:
            for total in (1, 7, 2, 5):  # one more than announced
                with line.piece(total) as advance:
                    for _ in range(total):
                        advance(1)
            line.result = "in 3 documents"
    assert shown == sorted(shown)
    assert shown[-1] == 3000
    assert console.stream.getvalue() == (  # type: ignore[attr-defined]
        "  ✓ finding copies   in 3 documents             0 s\n"
    )
