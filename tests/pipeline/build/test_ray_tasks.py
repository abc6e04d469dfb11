"""Tasks on Ray whose worker is killed, whose disk is full, or that nobody waits for any more."""

import errno
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from elmwright.pipeline.build import ray_tasks
from elmwright.pipeline.build.ray_tasks import Runner, task
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.progress import silent
from elmwright.pipeline.storage.disk import atomic_file

pytestmark = pytest.mark.usefixtures("ray_here")


def test_a_task_whose_worker_is_killed_is_run_again(tmp_path):
    def die_once(_work: str, _out: str) -> dict[str, int]:
        if not (tmp_path / "died").exists():
            (tmp_path / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return {"answer": 42}

    runner = Runner(str(tmp_path / "work"), silent, None, lambda: False)
    assert runner.run("test", [task("one", die_once)]) == [{"answer": 42}]


def test_a_full_disk_in_a_task_is_told_in_one_sentence(tmp_path):
    def fill(_work: str, _out: str) -> dict[str, int]:
        with atomic_file(tmp_path / "big") as file:
            file.write(b"x")
            raise OSError(errno.ENOSPC, "No space left on device")

    runner = Runner(str(tmp_path / "work"), silent, None, lambda: False)
    with pytest.raises(UserError, match=r"no space left on the disk of .* nothing is lost"):
        runner.run("test", [task("one", fill)])
    assert list(tmp_path.glob("*big*")) == []


def test_pressed_twice_nobody_waits_for_tasks_at_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The note for tasks in the queue stays, and the next build removes it."""
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


def run_nothing(*_: object) -> dict[str, Any]:
    return {}
