"""Tasks on Ray whose worker is killed, whose disk is full, or that are no longer waited for."""

import errno
import json
import math
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from elmwright.pipeline.build import ray_tasks
from elmwright.pipeline.build.ray_tasks import Runner, read_mark, task
from elmwright.pipeline.progress import silent
from elmwright.pipeline.records import BadField
from elmwright.pipeline.storage.files import at
from tests.support.mistakes import mistake

pytestmark = pytest.mark.usefixtures("ray_here")


@dataclass(frozen=True)
class Answer:
    answer: int
    hashes: tuple[int, ...] = ()
    by_size: Mapping[int, float] = field(default_factory=dict)


def test_a_task_whose_worker_is_killed_is_run_again(tmp_path):
    def die_once(_work: str, _out: str) -> Answer:
        if not (tmp_path / "died").exists():
            (tmp_path / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return Answer(42)

    runner = Runner(str(tmp_path / "work"), silent, None, lambda: False)
    assert runner.run("test", [task("one", die_once)]) == [Answer(42)]


def test_the_mark_of_a_task_gives_the_result_that_the_task_gave(tmp_path: Path) -> None:
    """Hashes of 64 bits, keys that are numbers and infinities included, in plain JSON."""

    def compute(work: str, out: str) -> Answer:
        with (Path(work) / "runs").open("a") as file:
            file.write(out)
        return Answer(42, (2**64 - 1, 0), {100: math.inf, 2: 0.5})

    runner = Runner(str(tmp_path / "work"), silent, None, lambda: False)
    Path(runner.work).mkdir()
    one = task("one", compute)
    first, again = runner.run("test", [one]), runner.run("test", [one])
    assert first == again == [Answer(42, (2**64 - 1, 0), {100: math.inf, 2: 0.5})]
    assert (Path(runner.work) / "runs").read_text() == one.out
    mark = json.loads((Path(runner.work) / f"{one.out}.done.json").read_text())
    assert list(mark) == ["report", "outputs", "cpu_seconds", "peak_mb"]
    assert mark["report"]["by_size"] == {"100": math.inf, "2": 0.5}
    assert read_mark(json.dumps(mark | {"later": 1}).encode(), compute).report == first[0]
    with pytest.raises(BadField, match=r"answer: is missing"):
        read_mark(json.dumps(mark | {"report": {}}).encode(), compute)


def test_full_disk_in_a_task_is_a_mistake(tmp_path):
    def fill(_work: str, _out: str) -> Answer:
        with at(tmp_path / "big").writing() as file:
            file.write(b"x")
            raise OSError(errno.ENOSPC, "No space left on device")

    runner = Runner(str(tmp_path / "work"), silent, None, lambda: False)
    with mistake("disk-full", str(tmp_path)):
        runner.run("test", [task("one", fill)])
    assert list(tmp_path.glob("*big*")) == []


def test_second_interrupt_does_not_wait_for_running_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file that recalls queued tasks stays, and the next build removes it."""
    import ray

    waited: list[float] = []

    class Remote:
        def remote(self, *_: object) -> object:
            return object()

    def wait(references: list[object], *, timeout: float, num_returns: int = 1) -> object:
        waited.append(timeout)
        raise KeyboardInterrupt

    monkeypatch.setattr(ray_tasks, "_remote", Remote)
    monkeypatch.setattr(ray, "wait", wait)
    runner = Runner(str(tmp_path / "work"), silent, 2, lambda: False)
    with pytest.raises(KeyboardInterrupt):
        runner.run("stage", [task("stage", run_nothing)])
    assert waited == [0.5]
    assert Path(runner.recall).exists()
    runner.prune()
    assert not Path(runner.recall).exists()


def run_nothing(*_: object) -> Answer:
    return Answer(0)
