"""Promised GPUs are waited for, on a real Ray whose GPUs are pretended (`ray start --num-gpus`).

Nothing can be trained on them. That a run wants them is seen by what it says: torch here was built
without CUDA, which is found out on the machine that has the GPUs.
"""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster.ray_nodes import RayHead, ray_head, ray_worker
from tests.support.tiny import command, elmwright, write_config, write_text

pytestmark = pytest.mark.heavy

NO_TOKEN = {"RAY_AUTH_MODE": "disabled"}
WITHOUT_CUDA = "torch was built without CUDA on"
SECONDS = 300


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayHead]:
    """A head with two CPUs and no GPU."""
    with ray_head(tmp_path_factory.mktemp("gpus"), cpus=2, **NO_TOKEN) as head:
        yield head


class Run:
    """A run on that cluster whose corpus is built."""

    def __init__(self, head: RayHead, config: Path) -> None:
        self.folder = config.parent / "run"
        self.words = ("run", config, "--until", "train", "--set", f"cluster.address={head.gcs}")

    def __call__(self, *settings: str) -> tuple[int, str]:
        more = [word for setting in settings for word in ("--set", setting)]
        done = elmwright(*self.words, *more, timeout=SECONDS, **NO_TOKEN)
        assert "Traceback" not in done.stdout + done.stderr
        return done.returncode, " ".join((done.stdout + done.stderr).split())

    def begin(self, *settings: str) -> "subprocess.Popen[str]":
        more = [word for setting in settings for word in ("--set", setting)]
        return subprocess.Popen(
            command(*self.words, *more),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **NO_TOKEN},
        )

    def device(self) -> str:
        record = self.folder / "train" / "device.json"
        return str(json.loads(record.read_text())["device"]) if record.exists() else ""


@pytest.fixture
def run(head: RayHead, tmp_path: Path) -> Run:
    config = write_config(
        tmp_path,
        write_text(tmp_path / "text.txt", 40),
        tracking_uri="http://127.0.0.1:9",
        train_processes=1,
        train_max_steps=3,
    )
    run = Run(head, config)
    done = elmwright("corpus", config, "--set", f"cluster.address={head.gcs}", **NO_TOKEN)
    assert done.returncode == 0, done.stdout + done.stderr
    return run


def test_a_run_that_asks_for_gpus_waits_and_ends_as_resumable(run: Run) -> None:
    begun = time.monotonic()
    code, output = run("train.device=cuda", "cluster.wait_minutes=1")
    assert code == 75, output
    assert "Waiting for up to 1 minute: train.processes needs 1 GPU" in output
    assert "after 1 minute of waiting" in output
    assert time.monotonic() - begun > 60
    assert not (run.folder / "train" / "checkpoints").exists(), "nothing was trained on a CPU"
    code, output = run("train.device=cuda")
    assert code == 2, "no waiting is allowed, so it fails at once"
    assert "set cluster.wait_minutes" in output
    assert run.device() == "", "and nothing binds the run"


def test_gpus_that_come_while_they_are_waited_for_are_used(head: RayHead, run: Run) -> None:
    waiting = run.begin("train.device=cuda", "cluster.wait_minutes=5")
    try:
        assert waiting.stdout is not None
        for line in waiting.stdout:
            if "Waiting for up to 5 minutes" in line:
                break
        with ray_worker(head, cpus=1, gpus=1, **NO_TOKEN):
            output = " ".join(waiting.communicate(timeout=SECONDS)[0].split())
    finally:
        waiting.kill()
        waiting.wait()
    assert WITHOUT_CUDA in output
    assert waiting.returncode == 2


def test_auto_uses_gpus_and_a_run_on_gpus_never_moves_to_cpus(head: RayHead, run: Run) -> None:
    with ray_worker(head, cpus=1, gpus=1, **NO_TOKEN):
        code, output = run()
        assert "Training on 1 GPU." in output
        assert WITHOUT_CUDA in output
        assert code == 2
    assert run.device() == "", "nothing was trained"
    (run.folder / "train" / "device.json").write_text('{"device": "cuda"}')
    code, output = run()
    assert "trains on GPUs, and train.processes needs 1 GPU" in output
    assert code == 75
    assert run.device() == "cuda"
    code, output = run("train.device=cpu")
    assert code == 0, output
    assert run.device() == "cpu"


def test_a_run_that_auto_puts_on_cpus_says_so(head: RayHead, run: Run) -> None:
    code, output = run()
    assert code == 0, output
    assert "Training on CPUs, because no machine has a GPU now" in output
    assert run.device() == "cpu"


def test_a_machine_that_was_just_lost_does_not_end_a_run(head: RayHead, run: Run) -> None:
    """Ray still counts it when every machine is asked whether it sees run.dir."""
    with pytest.raises(Lost), ray_worker(head, cpus=1, **NO_TOKEN):
        raise Lost
    code, output = run()
    assert code == 0, output
    head.wait_for_nodes(1)


class Lost(Exception):  # noqa: N818 - what happens to the worker
    """Ends a worker without waiting until Ray has noticed."""
