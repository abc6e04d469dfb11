"""Runs killed at random moments, again and again, must end in the bytes of one left in peace.

Heavy: `make chaos`. CHAOS_KILLS and CHAOS_SEED change how often and when; the seed is printed, so a
failure can be repeated.
"""

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from elmwright.jobs.journal import read_journal
from tests.jobs.test_run import STEPS, Run, training_process
from tests.jobs.tiny import elmwright

pytestmark = pytest.mark.heavy

KILLS = int(os.environ.get("CHAOS_KILLS", "10"))
SEED = int(os.environ.get("CHAOS_SEED", str(time.time_ns() % 1_000_000)))
EARLY = 25.0
"""Half of the victims are struck within so many seconds of their start: corpus, Ray starting,
processes starting. The other half are struck some steps further than the run has come."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = Run(tmp_path_factory.mktemp("undisturbed"))
    done = elmwright("run", run.config)
    assert done.returncode == 0, done.stdout + done.stderr
    return run


def test_random_kills_end_in_the_same_bundle(undisturbed: Run, tmp_path: Path) -> None:
    print(f"CHAOS_SEED={SEED} CHAOS_KILLS={KILLS}")
    draw = random.Random(SEED)
    run = Run(tmp_path)
    landed = []
    for number in range(KILLS):
        process = run.start()
        victim = draw.choice(["driver", "driver", "worker", "terminate"])
        if draw.random() < 0.5:
            time.sleep(draw.uniform(0.3, EARLY))
        else:
            run.wait_for_step(min(STEPS, reached(run) + draw.randint(1, STEPS // 3)), process)
        if process.poll() is not None:  # the run came to its end first: begin another
            assert process.returncode == 0, process.stdout and process.stdout.read()
            assert run.digests() == undisturbed.digests()
            folder = tmp_path / f"again-{number}"
            folder.mkdir()
            run = Run(folder)
            continue
        landed.append((victim, where(run)))
        strike(process, victim)
    done = elmwright("run", run.config)
    assert done.returncode == 0, done.stdout + done.stderr
    print("killed:", ", ".join(f"{victim} at {place}" for victim, place in landed))
    assert landed
    assert run.digests() == undisturbed.digests()


def strike(process: "subprocess.Popen[str]", victim: str) -> None:
    if victim == "worker":
        try:
            os.kill(training_process(process.pid), signal.SIGKILL)
            time.sleep(3)
        except AssertionError:
            pass  # no training yet: the driver dies instead, below
    if victim == "terminate":
        process.terminate()
        try:
            process.communicate(timeout=90)
        except subprocess.TimeoutExpired:
            raise AssertionError("SIGTERM did not end the run within 90 s") from None
        # Before the interpreter has come as far as our handler, SIGTERM simply ends it.
        assert process.returncode in (75, 0, -signal.SIGTERM)
        return
    process.kill()
    process.wait()


def reached(run: Run) -> int:
    """The newest step in the journal."""
    records = read_journal(run.folder / "train" / "journal.jsonl", 0)
    return max((record["step"] for record, _ in records), default=0)


def where(run: Run) -> str:
    """How far the run had come, for the report."""
    if (run.folder / "published.json").exists():
        return "the end"
    if (run.folder / "bundle").exists():
        return "publish"
    if reached(run):
        return f"step {reached(run)}"
    return "train" if (run.folder / "corpus" / "MANIFEST.json").exists() else "corpus"
