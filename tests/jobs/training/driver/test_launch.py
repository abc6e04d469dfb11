"""Starting again after a failure, without Ray: each test gives its own `fit`."""

import dataclasses
import io
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from elmwright.jobs.cluster import capacity
from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.config.toml_file import load_config
from elmwright.jobs.rundir.journal import Journal
from elmwright.jobs.rundir.journal_records import Metrics
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.terminal.console import Console
from elmwright.jobs.training.driver import launch as launching
from elmwright.jobs.training.driver.launch import launch
from elmwright.pipeline.errors import Failed, Interrupted, UserError
from elmwright.pipeline.storage.files import at
from tests.support.mistakes import mistake
from tests.support.tiny import manifest, write_config


class Fits:
    """Attempts with the given outcomes, one after the other."""

    def __init__(self, *outcomes: Exception | str) -> None:
        self.outcomes = list(outcomes)
        self.attempts: list[int] = []
        self.again: list[bool] = []

    def __call__(self, config: RunConfig, folder: RunFolder, attempt: int, again: bool) -> None:
        self.again.append(again)
        self.attempts.append(attempt)
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        if outcome == "finish":
            journal = Journal(folder.journal)
            journal.write(Metrics(step=config.train.max_steps, values={"train/loss": 1.5}))
            journal.close()
            at(folder.result).write_json({"step": config.train.max_steps})


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[RunConfig, RunFolder, Console]:
    monkeypatch.setattr(launching, "BACK_OFF", (0.0,))
    monkeypatch.setattr(launching, "POLL_SECONDS", 0.01)
    config = load_config(str(write_config(tmp_path, tmp_path, train_max_restarts=2)))
    folder = RunFolder.of(config)
    Path(folder.train).mkdir(parents=True)
    manifest().save(folder.corpus)
    return config, folder, Console(io.StringIO())


def test_failed_workers_are_started_again_under_a_higher_attempt_number(
    run: tuple[RunConfig, RunFolder, Console],
) -> None:
    fits = Fits(RuntimeError("a worker died"), RuntimeError("again"), "finish")
    launch(*run, stopped=lambda: False, fit=fits)
    assert fits.attempts == [1, 2, 3]
    assert fits.again == [False, True, True]
    output = run[2].stream.getvalue()  # type: ignore[attr-defined]
    assert "a worker died" in output
    assert "restart 2 of 2" in output
    assert "✓ training         12 steps" in output


def test_training_fails_after_the_last_restart(
    run: tuple[RunConfig, RunFolder, Console],
) -> None:
    with pytest.raises(Failed, match=r"3 times without .*bad memory.*checkpoints are safe"):
        launch(*run, stopped=lambda: False, fit=Fits(*[RuntimeError("bad memory")] * 3))


def test_a_user_error_is_not_retried(run: tuple[RunConfig, RunFolder, Console]) -> None:
    fits = Fits(UserError("device", "no such GPU"))
    with mistake("device", "no such GPU"):
        launch(*run, stopped=lambda: False, fit=fits)

    class WorkerGroupError(Exception):
        worker_failures = {1: OSError(28, "No space left on device", "/full/disk")}  # noqa: RUF012

    with mistake("disk-full", "/full"):
        launch(*run, stopped=lambda: False, fit=Fits(WorkerGroupError()))


def test_a_short_failure_of_the_store_does_not_end_the_run(
    run: tuple[RunConfig, RunFolder, Console], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def away(_watcher: object) -> None:
        calls.append(1)
        if len(calls) < 4:
            raise OSError("the store is away")

    def fit(config: RunConfig, folder: RunFolder, *_: object) -> None:
        while len(calls) < 5:
            time.sleep(0.01)
        at(folder.result).write_json({"step": config.train.max_steps})

    monkeypatch.setattr(launching.Watcher, "look", away)
    launch(*run, stopped=lambda: False, fit=fit)
    assert len(calls) >= 5


def test_losing_machines_interrupts_the_run_and_is_no_user_error(
    run: tuple[RunConfig, RunFolder, Console],
) -> None:
    lost = launching.NoCapacity("capacity", "needs 2 CPUs, the cluster has 1")
    with pytest.raises(Interrupted, match=r"lost machines .*resumes when there is capacity"):
        launch(*run, stopped=lambda: False, fit=Fits(RuntimeError("a node died"), lost))
    with mistake("capacity", "2 CPUs"):
        launch(*run, stopped=lambda: False, fit=Fits(lost))


@pytest.fixture
def one_machine(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, float]]:
    """Of the two machines that a run needs, one is gone; the list may be changed."""
    have = [{"CPU": 1.0}]
    monkeypatch.setattr(capacity, "resources", lambda: have)
    monkeypatch.setattr(capacity, "WAIT_SECONDS", 0.01)
    monkeypatch.setattr(capacity, "LOST_SECONDS", 0.1)
    return have


def test_an_attempt_without_capacity_is_given_up(
    run: tuple[RunConfig, RunFolder, Console],
    one_machine: list[dict[str, float]],
) -> None:
    """The machine died, and Ray noticed only when the next attempt had begun to wait for it."""
    ended = threading.Event()
    try:
        with pytest.raises(Interrupted, match=r"lost machines .*needs 2 CPUs, but .* 1 machine"):
            launch(*run, stopped=lambda: False, fit=lambda *_: ended.wait(30))
    finally:
        ended.set()


def test_an_attempt_waits_for_machines_that_come_back(
    run: tuple[RunConfig, RunFolder, Console],
    one_machine: list[dict[str, float]],
) -> None:
    config, folder, console = run
    fits = Fits("finish")

    def fit(*args: Any) -> None:
        time.sleep(0.2)  # longer than LOST_SECONDS, shorter than the minutes that are allowed
        one_machine.append({"CPU": 1.0})
        fits(*args)

    cluster = dataclasses.replace(config.cluster, wait_minutes=1)
    launch(dataclasses.replace(config, cluster=cluster), folder, console, lambda: False, fit=fit)
    assert fits.attempts == [1]


def test_capacity_is_not_checked_once_an_attempt_has_begun(
    run: tuple[RunConfig, RunFolder, Console],
    one_machine: list[dict[str, float]],
) -> None:
    fits = Fits("finish")

    def fit(config: RunConfig, folder: RunFolder, attempt: int, again: bool) -> None:
        at(launching._begun_file(folder, attempt)).write_bytes(b"")
        time.sleep(0.4)
        fits(config, folder, attempt, again)

    launch(*run, stopped=lambda: False, fit=fit)
    assert fits.attempts == [1]


def test_a_stop_request_reaches_the_workers_and_the_run_is_resumable(
    run: tuple[RunConfig, RunFolder, Console],
) -> None:
    _, folder, _ = run
    seen = []

    def fit(*_: object) -> None:
        for _ in range(500):
            if at(folder.stop_request).exists():
                seen.append(True)
                return
            import time

            time.sleep(0.01)

    with pytest.raises(Interrupted, match="the same command resumes"):
        launch(*run, stopped=lambda: True, fit=fit)
    assert seen == [True]


def test_the_processes_get_absolute_paths_of_corpus_and_scratch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They run in other folders: a path that is relative to the command's would be lost."""
    import ray
    import ray.train.torch

    from elmwright.jobs.training.loop import train as loop

    class Here:
        """Calls the training function in this process."""

        def __init__(self, call: Any, train_loop_config: dict[str, Any], **_: Any) -> None:
            self.fit = lambda: call(train_loop_config)

    monkeypatch.chdir(tmp_path)
    path = write_config(tmp_path, tmp_path, run_dir="run", run_scratch="fast", train_processes=1)
    config = load_config(str(path), ["corpus.dir=s3://bucket/corpus"])
    folder = RunFolder.of(config)
    Path(folder.train).mkdir(parents=True)
    told: list[RunFolder] = []
    context = SimpleNamespace(get_world_rank=lambda: 0, get_world_size=lambda: 1)
    node = {"Alive": True, "NodeID": "n", "NodeManagerAddress": "", "Resources": {"CPU": 8.0}}
    monkeypatch.setattr(ray, "nodes", lambda: [node])
    monkeypatch.setattr(ray.train, "get_context", lambda: context)
    monkeypatch.setattr(ray.train.torch, "TorchTrainer", Here)
    monkeypatch.setattr(loop, "train", lambda _config, folder, *_: told.append(folder))
    launching.fit_with_ray(config, folder, 1, again=False)
    assert told == [folder]
    assert told[0].corpus == "s3://bucket/corpus"
    assert told[0].scratch == tmp_path / "fast"
