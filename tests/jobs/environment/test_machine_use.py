"""How threads wait, how many there are, and the niceness of Ray's workers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from elmwright.jobs.cli.command import main
from elmwright.jobs.environment import machine_use
from elmwright.jobs.environment.machine_use import (
    THREADS,
    WAITING,
    cores,
    share_machine,
    starting_ray,
)

pytestmark = pytest.mark.slow(6)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*WAITING, THREADS, machine_use.NICENESS):
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)
    monkeypatch.setattr(machine_use, "_chosen", set())
    monkeypatch.setattr(machine_use, "_QUOTA", Path("/nowhere"))


def test_every_command_lets_waiting_threads_sleep_before_torch_is_loaded() -> None:
    script = (
        "import sys, os; from elmwright.jobs.cli.command import main; "
        "assert 'torch' not in sys.modules; "
        "main(['config']); assert 'torch' not in sys.modules; "
        "print(os.environ['GOMP_SPINCOUNT'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "1000"


@pytest.mark.parametrize("name", WAITING)
def test_wait_policy_of_the_user_is_kept(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "1")
    assert main(["config"]) == 0
    assert {n: os.environ[n] for n in WAITING if n in os.environ} == {name: "1"}


@pytest.mark.parametrize(
    ("content", "expected"), [("max 100000", 4), ("150000 100000", 2), ("50000 100000", 1)]
)
def test_threads_are_as_many_as_the_container_may_use(
    content: str, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpu.max").write_text(f"{content}\n")
    monkeypatch.setattr(machine_use, "_QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    assert cores() == expected
    share_machine()
    assert os.environ.get(THREADS) == (None if expected == 4 else str(expected))
    with starting_ray():
        assert THREADS not in os.environ, "Ray chooses for its workers"
    assert os.environ.get(THREADS) == (None if expected == 4 else str(expected))


def test_number_of_threads_of_the_user_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(THREADS, "3")
    share_machine()
    with starting_ray():
        assert os.environ[THREADS] == "3"
    assert os.environ[THREADS] == "3"


IN_A_WORKER = """
import json, os, threading
from elmwright.jobs.environment.machine_use import share_machine
share_machine()
from elmwright.jobs.cluster.connection import ray_cluster
from elmwright.jobs.config.toml_file import load_config
config = load_config("demo", ["cluster.cpus=2"])
with ray_cluster(config, lambda: None, lambda: False):
    import ray
    def look():
        blocked = open("/proc/self/status").read().split("SigBlk:")[1].split()[0]
        return {"nice": os.nice(0), "policy": os.environ.get("GOMP_SPINCOUNT"),
                "threads": os.environ.get("OMP_NUM_THREADS"),
                "sigint": bool(int(blocked, 16) & 2), "group": os.getpgrp()}
    found = ray.get(ray.remote(look).remote())
    print(json.dumps({**found, "own": os.getpgrp(), "own_nice": os.nice(0)}))
"""


def test_rays_workers_are_as_nice_as_the_command_and_their_threads_sleep() -> None:
    done = subprocess.run(
        ["nice", "-n", "3", sys.executable, "-c", IN_A_WORKER],
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["nice"] == found["own_nice"]
    assert (found["policy"], found["threads"]) == ("1000", "1")
    # Ctrl-C in a terminal goes to the foreground process group.
    assert found["sigint"] or found["group"] != found["own"]
