"""`elmwright verify RUN --replay`: the same steps again give the same bits, or a reason is named.

Most tests train in this process, without Ray. The whole command is run once here, and with several
processes in `make chaos`.
"""

import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from elmwright.jobs.checkpoints.checkpoint import begin_attempt, list_checkpoints
from elmwright.jobs.cli.command import main
from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.config.toml_file import load_config, to_dict
from elmwright.jobs.rundir.layout import RunFolder, open_run_folder
from elmwright.jobs.rundir.run_lock import locked
from elmwright.jobs.rundir.work_folder import alone_in
from elmwright.jobs.training.loop import training_step
from elmwright.jobs.training.loop.exchange import Ranks
from elmwright.jobs.training.loop.train import train
from elmwright.jobs.upkeep import replay as replaying
from elmwright.pipeline.storage.files import at
from tests.support.tiny import command, damage, elmwright, write_config
from tests.support.tiny_runs.resealed import change_state, change_train, change_weight, checkpoint
from tests.support.tiny_runs.training import prepare
from tests.support.tiny_runs.whole_run import Run
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow(40)

Fit = Callable[[RunConfig, RunFolder, int, bool], None]
WEIGHT = "lstm.0.b"


def fit_here(config: RunConfig, folder: RunFolder, attempt: int, _again: bool) -> None:
    """Train in this process, to the only step at which a replay writes a checkpoint."""
    last = config.checkpoint.every_steps
    train(config, folder, attempt, Ranks(), lambda step: step + 1 >= last)


@contextmanager
def no_ray(*_: object) -> Iterator[None]:
    yield


@pytest.fixture
def without_ray(monkeypatch: pytest.MonkeyPatch) -> Callable[[Fit], None]:
    """Let the command replay with another `fit`; at first, in this process."""
    replay = replaying.replay

    def use(fit: Fit) -> None:
        monkeypatch.setattr(replaying, "replay", partial(replay, connect=no_ray, fit=fit))

    use(fit_here)
    monkeypatch.setattr("elmwright.jobs.cluster.capacity.WAIT_SECONDS", 1e9)  # asks Ray
    return use


def files(run: Path) -> dict[str, tuple[int, int]]:
    """Every file and folder of a run, with its time of change and its size."""
    return {
        str(path): (path.lstat().st_mtime_ns, path.lstat().st_size)
        for path in run.rglob("*")
        if path != run / "scratch"
    }


def test_the_command_repeats_steps_bit_for_bit_and_no_others(run: Path) -> None:
    before = files(run)
    done = elmwright("verify", run, "--replay", "12")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith(f"ok: steps 13 to 18 of {run} repeated on 1 process in ")
    assert done.stdout.endswith(" tensors are bit for bit those of step-00000018\n")
    assert re.search(r"✓ repeating +6 steps ", done.stderr)
    assert all(len(line) <= 80 for line in done.stderr.splitlines())
    assert files(run) == before


@pytest.mark.usefixtures("without_ray")
def test_without_a_step_the_last_but_one_checkpoint_is_replayed(
    run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = files(run)
    assert main(["verify", str(run), "--replay", "--json"]) == 0
    result = json.loads(capfd.readouterr().out)
    assert result["ok"] is True
    assert result["replay"]["from_step"] == 18
    assert result["replay"]["to_step"] == 20
    assert result["replay"]["tensors"] > 20
    assert result["replay"]["mismatch"] is None
    assert files(run) == before


@pytest.mark.usefixtures("without_ray")
def test_a_run_that_is_being_trained_can_be_replayed(run: Path) -> None:
    with locked(RunFolder.at(run)):
        assert main(["verify", str(run), "--replay"]) == 0


@pytest.mark.usefixtures("without_ray")
def test_steps_without_an_update_are_repeated_without_one(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two losses of step 4 are not finite, in the run and in the replay."""
    config, folder = prepare(tmp_path, corpus, train_max_steps=6, eval_every_steps=0)
    at(folder.config).write_json(to_dict(config))
    loss, step = training_step.sampled_loss, training_step.make_step
    now = []

    def make_step(process: Any, *others: Any) -> Any:
        now.append(process.trainer.step)
        return step(process, *others)

    def maybe_nan(*arguments: Any) -> Any:
        return loss(*arguments) * (float("nan") if now[-1] == 4 else 1)

    monkeypatch.setattr("elmwright.jobs.training.loop.train.make_step", make_step)
    monkeypatch.setattr(training_step, "sampled_loss", maybe_nan)
    train(config, folder, begin_attempt(folder.attempt), Ranks())
    assert [info.step for info in list_checkpoints(folder.checkpoints)] == [3, 6]
    assert main(["verify", folder.root, "--replay"]) == 0
    monkeypatch.setattr(training_step, "sampled_loss", loss)
    assert main(["verify", folder.root, "--replay"]) == 1


@pytest.mark.usefixtures("without_ray")
def test_a_changed_weight_is_named(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    change_weight(checkpoint(run, 20), WEIGHT, 0.25)
    assert main(["verify", str(run), "--replay"]) == 1
    output = capfd.readouterr().err
    assert "failed: steps 19 to 20 of " in output
    assert "1 of " in output
    assert f"{WEIGHT} in model.safetensors, by at most 0.25;" in output
    assert "no logged loss or gradient norm differs" in output
    assert "may have been changed after it was written" in output
    assert not (run / "scratch").exists()


@pytest.mark.usefixtures("without_ray")
def test_the_first_logged_step_that_differs_is_named(
    run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    change_weight(checkpoint(run, 12), WEIGHT, 0.25)
    assert main(["verify", str(run), "--replay", "12", "--json"]) == 1
    out, err = capfd.readouterr()
    result = json.loads(out)
    assert result["ok"] is False
    mismatch = result["replay"]["mismatch"]
    assert mismatch["logged"]["step"] == 13
    assert mismatch["logged"]["metric"] == "loss"
    assert mismatch["tensors"] > 10
    error = json.loads(err.splitlines()[-1])["error"]
    assert (error["exit"], error["code"]) == (1, "failed")
    assert "please report" in error["message"]


REASONS = {
    "torch": ({"libraries": {"torch": "1.0", "numpy": "1"}}, "torch was 1.0 and then "),
    "processor": ({"machine": "8 × Zilog Z80"}, "the processor was Zilog Z80 and then "),
    "unknown": ({"libraries": {}}, "which the checkpoint does not record"),
}


@pytest.mark.usefixtures("without_ray")
@pytest.mark.parametrize("kind", REASONS)
def test_another_machine_or_library_is_the_likely_reason(
    run: Path, capfd: pytest.CaptureFixture[str], kind: str
) -> None:
    changes, words = REASONS[kind]
    change_state(checkpoint(run, 20), changes)
    assert main(["verify", str(run), "--replay"]) == 0  # no reason to complain
    change_weight(checkpoint(run, 20), WEIGHT, 0.25)
    assert main(["verify", str(run), "--replay"]) == 1
    assert words in capfd.readouterr().err


@pytest.mark.usefixtures("without_ray")
def test_settings_that_changed_between_the_checkpoints_are_the_likely_reason(
    run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A run that was resumed with another number of threads at step 15, of which nothing is left
    but the journal."""
    change_train(checkpoint(run, 12), {"threads": 2})
    change_weight(checkpoint(run, 18), WEIGHT, 0.25)
    assert main(["verify", str(run), "--replay", "12"]) == 1
    assert "train.threads" not in capfd.readouterr().err  # changed at step 12, if at all
    journal = run / "train" / "journal.jsonl"
    with journal.open("a") as file:
        file.write(json.dumps({"kind": "begin", "step": 15, "time": 1, "attempt": 2}) + "\n")
    assert main(["verify", str(run), "--replay", "12"]) == 1
    assert "train.threads was 2 and then 1" in capfd.readouterr().err


@pytest.mark.usefixtures("without_ray")
def test_a_damaged_checkpoint_is_named_by_its_own_path(
    run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    damage(checkpoint(run, 20) / "lanes.safetensors", "flip")
    assert main(["verify", str(run), "--replay"]) == 2
    assert f"{checkpoint(run, 20)}/lanes.safetensors does not match" in capfd.readouterr().err


@pytest.mark.parametrize("how", ["once", "twice"])
def test_nothing_is_left_after_ctrl_c(
    run: Path,
    without_ray: Callable[[Fit], None],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    how: str,
) -> None:
    before, ended = files(run), threading.Event()
    monkeypatch.setattr("elmwright.jobs.training.driver.launch.POLL_SECONDS", 0.01)

    def fit(_config: RunConfig, folder: RunFolder, attempt: int, _again: bool) -> None:
        at(f"{folder.train}/begun-{attempt}").write_bytes(b"")
        os.kill(os.getpid(), signal.SIGINT)
        assert wait_until(at(folder.stop_request).exists, 20, 0.01)
        if how == "twice":
            os.kill(os.getpid(), signal.SIGINT)
            ended.wait(20)

    without_ray(fit)
    try:
        assert main(["verify", str(run), "--replay"]) == 75
    finally:
        ended.set()
    error = capfd.readouterr().err
    assert "stopping (Ctrl-C again ends at once)" in error
    assert "stopped: during the replay; the run is as it was" in error
    assert files(run) == before
    assert not (run / "scratch").exists()


@pytest.mark.usefixtures("without_ray")
def test_what_a_killed_replay_left_is_removed_by_the_next(run: Path) -> None:
    leftover = run / "scratch" / "replay" / "run-abc" / "run" / "train"
    leftover.mkdir(parents=True)
    cache = run / "scratch" / "blocks"
    cache.mkdir()
    assert main(["verify", str(run), "--replay"]) == 0
    assert list((run / "scratch").iterdir()) == [cache]


def test_two_replays_of_a_run_do_not_meet(
    run: Path, without_ray: Callable[[Fit], None], capfd: pytest.CaptureFixture[str]
) -> None:
    with alone_in(run / "scratch" / "replay", run):
        assert main(["verify", str(run), "--replay"]) == 2
    assert "is in use by" in capfd.readouterr().err


def test_after_a_failure_the_log_is_kept(
    run: Path,
    without_ray: Callable[[Fit], None],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("elmwright.jobs.training.driver.launch.BACK_OFF", (0.0,))

    def fit(*_: object) -> None:
        raise RuntimeError("bad memory")

    without_ray(fit)
    assert main(["verify", str(run), "--replay"]) == 1
    log = run / "scratch" / "replay.log"
    assert f"details are in {log}" in capfd.readouterr().err
    assert "bad memory" in log.read_text()
    assert list((run / "scratch").iterdir()) == [log]


@pytest.mark.usefixtures("without_ray", "s3")
def test_a_run_in_an_object_store_is_fetched(corpus: Path, tmp_path: Path) -> None:
    changes = {
        "run_dir": "s3://bucket/replayed",
        "run_scratch": str(tmp_path / "scratch"),
        "corpus_dir": str(corpus),
        "tracking_uri": "http://127.0.0.1:1",
        "train_processes": 1,
        "train_max_steps": 6,
        "eval_every_steps": 0,
    }
    config = load_config(str(write_config(tmp_path, tmp_path / "text.txt", **changes)))
    folder = open_run_folder(config)
    at(folder.config).write_json(to_dict(config))
    train(config, folder, begin_attempt(folder.attempt), Ranks())
    before = at(folder.root).list_files()
    assert main(["verify", folder.root, "--replay"]) == 0
    assert at(folder.root).list_files() == before


@pytest.mark.heavy
@pytest.mark.timeout(900)
def test_several_processes_repeat_their_steps_and_stop_when_asked(tmp_path: Path) -> None:
    one = Run(tmp_path, train_processes=2, checkpoint_keep_last=3)
    done = elmwright("train", one.config, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    before = files(one.folder)
    done = elmwright("verify", one.folder, "--replay", "200", timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "steps 201 to 220" in done.stdout
    assert "on 2 processes in " in done.stdout

    first = list_checkpoints(one.folder / "train" / "checkpoints")[0].step
    process = subprocess.Popen(
        command("verify", one.folder, "--replay", first),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        work = one.folder / "scratch" / "replay"
        has_begun = partial(work.glob, "run-*/run/train/begun-1")
        assert wait_until(lambda: list(has_begun()) or process.poll() is not None, 300, 0.05)
        os.killpg(process.pid, signal.SIGINT)
        output = process.communicate(timeout=120)[0]
    finally:
        process.kill()
    assert process.returncode == 75, output
    assert "stopped: during the replay" in output
    assert files(one.folder) == before
