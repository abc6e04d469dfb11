"""One real run on a terminal of 80 columns: stopped with Ctrl-C in training, then resumed."""

import re
from pathlib import Path

import pytest

from tests.support.terminal.screen import Seen, Terminal
from tests.support.tiny import command, write_config, write_text

pytestmark = pytest.mark.slow(35)


def check(seen: Seen) -> None:
    assert seen.broken == []
    for frame in seen.frames:
        assert "Traceback" not in frame
        assert max(map(len, frame.split("\n"))) <= 80


@pytest.mark.timeout(900)
def test_a_run_is_stopped_and_resumed_and_every_frame_can_be_read(tmp_path: Path) -> None:
    config = write_config(
        tmp_path,
        write_text(tmp_path / "text.txt"),
        run_dir="runs/tiny",
        train_max_steps=3000,
        checkpoint_every_steps=500,
        eval_every_steps=1000,
        tracking_every_steps=5,
    )
    pressed: list[int] = []

    def stop_at_twenty(terminal: Terminal, frame: str) -> None:
        found = re.search(r"(\d+)/3,000 steps", frame)
        if found and int(found[1]) >= 20 and not pressed:
            pressed.append(int(found[1]))
            terminal.press(b"\x03")

    terminal = Terminal(80, folder=tmp_path, timeout=400)
    first = terminal.run(command("run", config.name), stop_at_twenty)
    check(first)
    assert first.code == 75, first.last
    for stage in ("starting Ray", "reading", "cleaning", "finding copies", "writing shards"):
        assert f"  ✓ {stage}" in first.last
    first.frame("stopping: saving a checkpoint first")
    assert "\nstopped: training is at step " in first.last
    reached = int(re.findall(r"training is at\s+step (\d+)", first.last)[0])
    assert reached >= pressed[0]

    short = ["--set", f"train.max_steps={reached + 40}"]
    second = terminal.run(command("run", config.name, *short))
    check(second)
    assert second.code == 0, second.last
    assert "Already done: corpus." in second.last
    begin = second.frame("starting 2 processes, resuming at step")
    assert f"{reached}/{reached + 40} steps" in begin
    assert " 0/" not in second.everything, "the bar begins where the run is"
    for part in (
        "✓ train",
        "Held-out perplexity",
        "registered  models:/tiny@candidate",
        "open runs/tiny/corpus/report.html in a browser",
        "ui runs/tiny",
    ):
        assert part in second.last, part
