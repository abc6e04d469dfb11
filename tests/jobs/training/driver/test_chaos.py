"""Runs killed at random moments, again and again, must end in the bytes of one left in peace.

Heavy: `make chaos`. CHAOS_KILLS and CHAOS_SEED change how often and when; the seed is printed, so a
failure can be repeated. The whole command is struck (its driver, a training process, Ray's own
processes, a polite SIGTERM), with 2 processes of 1 thread and with 3 of 2; and the bare loop, which
starts in a second and so can be killed at many more moments of a step.
"""

import multiprocessing
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
from mlflow import MlflowClient

from elmwright.jobs.checkpoints.checkpoint import begin_attempt, file_sha256, list_checkpoints
from elmwright.jobs.rundir.journal_lines import read_journal
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.pipeline.storage.files import at
from tests.support.servers import free_port
from tests.support.tiny import elmwright
from tests.support.tiny_runs.training import losses, prepare, process
from tests.support.tiny_runs.whole_run import STEPS, Run, training_process

pytestmark = pytest.mark.heavy

KILLS = int(os.environ.get("CHAOS_KILLS", "20"))
SEED = int(os.environ.get("CHAOS_SEED", str(time.time_ns() % 1_000_000)))
EARLY = 25.0
"""Half of the victims are killed within this many seconds of their start: corpus, Ray starting,
processes starting. The other half are killed some steps after the run's last one."""
SHAPES = {
    "2 processes": {
        "train_processes": 2,
        "train_lanes": 6,
        "train_average_steps": STEPS // 2,
        "eval_lanes": 6,
    },
    "3 processes of 2 threads": {
        "train_processes": 3,
        "train_threads": 2,
        "train_lanes": 6,
        "train_average_steps": STEPS // 2,
        "eval_lanes": 6,
        "cluster_cpus": 6,
    },
}


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_command_killed_at_random_moments_ends_in_the_same_bundle(
    shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    print(f"CHAOS_SEED={SEED} CHAOS_KILLS={KILLS}")
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")  # more threads than cores: no use in spinning
    (tmp_path / "peace").mkdir()
    peace = Run(tmp_path / "peace", **SHAPES[shape])
    done = elmwright("run", peace.config, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr

    draw = random.Random(SEED)
    runs = [Run(tmp_path, **SHAPES[shape])]
    landed = []
    for number in range(KILLS):
        run = runs[-1]
        started = run.start()
        victim = draw.choice(["driver", "worker", "ray", "terminate"])
        if draw.random() < 0.5:
            time.sleep(draw.uniform(0.3, EARLY))
        else:
            run.wait_for_step(min(STEPS, reached(run) + draw.randint(1, STEPS // 3)), started)
        if started.poll() is not None:  # the run came to its end first: begin another
            assert started.returncode == 0, started.stdout and started.stdout.read()
            folder = tmp_path / f"again-{number}"
            folder.mkdir()
            runs.append(Run(folder, **SHAPES[shape]))
            continue
        landed.append((victim, where(run)))
        strike(started, victim)
    done = elmwright("run", runs[-1].config, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr
    print("killed:", ", ".join(f"{victim} at {place}" for victim, place in landed))
    assert landed
    for run in runs:
        assert run.digests() == peace.digests()
        each_step_once(run)


def strike(started: "subprocess.Popen[str]", victim: str) -> None:
    if victim in ("worker", "ray"):
        try:
            if victim == "worker":
                os.kill(training_process(started.pid), signal.SIGKILL)
            else:
                os.kill(ray_process(started.pid), signal.SIGKILL)
            time.sleep(3)
        except (AssertionError, ProcessLookupError):
            pass  # not there yet: the driver dies instead, below
    if victim == "terminate":
        started.terminate()
        try:
            started.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            raise AssertionError("SIGTERM did not end the run within two minutes") from None
        # Before the interpreter has come as far as our handler, SIGTERM simply ends it.
        assert started.returncode in (75, 0, -signal.SIGTERM)
        return
    started.kill()
    started.wait()


def ray_process(driver: int) -> int:
    """One of Ray's own: its node manager or its control store."""
    found = subprocess.run(
        ["pgrep", "-P", str(driver), "-f", "raylet|gcs_server"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.split()
    assert found
    return int(random.choice(found))


def each_step_once(run: Run) -> None:
    """MLflow shows what the journal has, every step once."""
    client = MlflowClient(run.uri, run.uri)
    (found,) = client.search_runs([client.get_experiment_by_name("elmwright").experiment_id])
    history = client.get_metric_history(found.info.run_id, "train/loss")
    steps = [metric.step for metric in history]
    assert sorted(steps) == sorted(set(steps))
    records = read_journal(run.folder / "train" / "journal.jsonl", 0)
    assert sorted(steps) == [r.step for r, _ in records if r.kind == "metrics"]


def reached(run: Run) -> int:
    """The newest step in the journal."""
    records = read_journal(run.folder / "train" / "journal.jsonl", 0)
    return max((record.step for record, _ in records), default=0)


def where(run: Run) -> str:
    """How far the run had come, for the report."""
    if (run.folder / "published.json").exists():
        return "the end"
    if (run.folder / "bundle").exists():
        return "publish"
    if reached(run):
        return f"step {reached(run)}"
    return "train" if (run.folder / "corpus" / "MANIFEST.json").exists() else "corpus"


@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("world", "threads"), [(2, 1), (3, 2)])
def test_a_loop_that_loses_a_process_at_random_moments_ends_in_the_same_weights(
    world: int, threads: int, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    print(f"CHAOS_SEED={SEED} CHAOS_KILLS={KILLS}")
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    steps = 12 * KILLS
    settings = {
        "train_processes": world,
        "train_threads": threads,
        "train_lanes": 6,
        "eval_lanes": 6,
        "train_max_steps": steps,
        "train_average_steps": steps // 3,
        "checkpoint_every_steps": 5,
        "eval_every_steps": 50,
    }
    runs: list[RunFolder] = []
    for name in ("peace", "war"):
        (tmp_path / name).mkdir()
        runs.append(prepare(tmp_path / name, corpus, **settings)[1])
    peace, war = runs
    group(world, tmp_path / "peace", peace)
    assert at(peace.result).exists()
    draw = random.Random(SEED)
    struck = 0
    while not at(war.result).exists():
        goal = newest(war) + draw.randint(1, 10) if struck < KILLS else None
        struck += group(world, tmp_path / "war", war, goal, draw)
    print(f"{world} × {threads}: {struck} processes killed")
    assert struck >= KILLS // 2
    for one, other in zip(
        list_checkpoints(peace.checkpoints), list_checkpoints(war.checkpoints), strict=True
    ):
        for name in ("model", "softmax", "optimizer", "lanes", "average", "average_softmax"):
            file = f"{name}.safetensors"
            assert file_sha256(one.path, file) == file_sha256(other.path, file)
    assert losses(war) == losses(peace)
    assert list(losses(war)) == list(range(1, steps + 1))


def newest(run: RunFolder) -> int:
    return max((record.step for record, _ in read_journal(run.journal, 0)), default=0)


def group(
    world: int,
    home: Path,
    run: RunFolder,
    goal: int | None = None,
    draw: random.Random | None = None,
) -> int:
    """Start all processes; kill one of them when the run comes to step `goal`. How many died."""
    attempt = begin_attempt(run.attempt)
    port = free_port()
    context = multiprocessing.get_context("spawn")
    members = [
        context.Process(target=process, args=(rank, world, str(home / "tiny.toml"), port, attempt))
        for rank in range(world)
    ]
    for member in members:
        member.start()
    killed = 0
    if goal is not None and draw is not None:
        while newest(run) < goal and all(member.is_alive() for member in members):
            time.sleep(0.01)
        time.sleep(draw.uniform(0, 0.2))
        victim = members[draw.randrange(world)]
        if victim.is_alive():
            victim.kill()
            killed = 1
    for member in members:
        member.join(60 if killed else 900)
        if member.is_alive():
            member.kill()
            member.join()
    return killed
