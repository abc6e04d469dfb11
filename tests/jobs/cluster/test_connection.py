"""Why a cluster cannot be reached, and waiting for one that grows."""

import os
import signal
import sys
import threading
import time
import types
from pathlib import Path

import pytest

from elmwright.jobs.cluster.capacity import request_capacity, wait_for_capacity
from elmwright.jobs.cluster.connection import (
    FIT_THREAD,
    _connect,
    machines_for,
    ray_cluster,
    why_unreachable,
)
from elmwright.jobs.config.toml_file import load_config
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.terminal.signals import stop_signals
from elmwright.pipeline.errors import Interrupted

NODE = {"Alive": True, "NodeID": "n", "NodeManagerAddress": "10.0.0.1"}


def never() -> bool:
    return False


def test_other_versions_are_named() -> None:
    error = RuntimeError(
        "Version mismatch: The cluster was started with:\n    Ray: 2.9.0\n    Python: 3.9.1\n"
        "This process on node 10.0.0.1 was started with:\n    Ray: 2.60.0\n    Python: 3.11.7\n"
    )
    sentence = why_unreachable("10.0.0.9:6379", error)
    assert "there Ray 2.9.0 and Python 3.9.1, here Ray 2.60.0 and Python 3.11.7" in sentence
    assert "\n" not in sentence


def test_a_refused_token_names_every_place_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.9:6379")
    sentence = why_unreachable("auto", RuntimeError("Authentication failed: invalid token"))
    assert "10.0.0.9:6379 rejects our token" in sentence
    assert "RAY_AUTH_TOKEN_PATH" in sentence


def test_other_errors_keep_their_first_line() -> None:
    sentence = why_unreachable("h:1", ConnectionError("refused\nmore"))
    assert "cannot connect to the Ray cluster at h:1 (refused)" in sentence


def test_a_cluster_is_given_time_to_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machines are requested once and then waited for."""
    # The second has enough in all, but a process would lie on two machines.
    scattered = [{"CPU": 1.0, "GPU": 1.0}] * 4
    have = [[{"CPU": 1.0}], scattered, [{"CPU": 2.0, "GPU": 1.0}] * 2]
    asked = []

    def nodes() -> list[dict[str, object]]:
        found = have.pop(0) if len(have) > 1 else have[0]
        return [{**NODE, "Resources": one} for one in found]

    fake = types.SimpleNamespace(nodes=nodes)

    def request_resources(bundles: list[dict[str, float]]) -> None:
        asked.append(bundles)

    sdk = types.SimpleNamespace(request_resources=request_resources)
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setitem(sys.modules, "ray.autoscaler.sdk", sdk)
    monkeypatch.setattr("elmwright.jobs.cluster.capacity.pause", lambda *_: None)
    config = load_config(
        "demo",
        ["cluster.wait_minutes=1", "train.processes=2", 'train.device="cuda"', "train.threads=2"],
    )
    messages: list[str] = []
    assert request_capacity(config, gpu=True)
    wait_for_capacity(config, never, messages.append, gpu=True)
    assert asked == [[{"CPU": 2, "GPU": 1}] * 2]
    assert len(have) == 1
    (sentence,) = messages
    assert "Waiting for up to 1 minute: 2 processes with 2 CPUs and a GPU each" in sentence
    assert not request_capacity(load_config("demo"), gpu=False), "nothing may be waited for"


def test_a_cluster_that_is_coming_up_is_tried_again_if_it_may_take_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = [ConnectionError("not yet"), ConnectionError("not yet"), None]
    tried = []

    def init(address: str, **_: object) -> None:
        tried.append(address)
        problem = answers.pop(0)
        if problem is not None:
            raise problem

    fake = types.SimpleNamespace(init=init, shutdown=lambda: None)
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setattr("elmwright.jobs.cluster.connection.pause", lambda *_: None)
    server = ["cluster.address=auto", "tracking.uri=http://mlflow:5000"]
    with pytest.raises(ConnectionError):
        _connect(load_config("demo", server), never)
    _connect(load_config("demo", [*server, "cluster.wait_minutes=1"]), never)
    assert tried == ["auto"] * 3


def test_stop_request_ends_the_wait_for_a_cluster(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Ray installs its own SIGTERM handler, which would end the driver with exit 15."""
    shut, asked = [], []

    def request_resources(bundles: list[object]) -> None:
        asked.append(bundles)
        if bundles:
            os.kill(os.getpid(), signal.SIGTERM)

    def init(**_: object) -> None:
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(number))

    fake = types.SimpleNamespace(init=init, nodes=list, shutdown=lambda: shut.append(True))
    sdk = types.SimpleNamespace(request_resources=request_resources)
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setitem(sys.modules, "ray.autoscaler.sdk", sdk)
    config = load_config(
        "demo",
        ["cluster.address=auto", "tracking.uri=http://mlflow:5000", "cluster.wait_minutes=5"],
    )
    folder = RunFolder(str(tmp_path), tmp_path)
    begun = time.monotonic()
    with (
        stop_signals() as stop,
        stop.saving("stopping", lambda _: None),
        pytest.raises(Interrupted, match="while waiting for the cluster"),
        ray_cluster(config, stop.take, stop.is_set),
        machines_for(config, folder, gpu=False, stopped=stop.is_set, say=lambda _: None),
    ):
        pytest.fail("there is no room")
    assert time.monotonic() - begun < 60, "0.2 s on a quiet machine; cluster.wait_minutes is 5"
    assert shut == [True]
    assert asked == [[{"CPU": 1}] * config.train.processes, []], "asked for, and given back"


def test_machines_that_do_not_come_in_time_end_the_run_as_resumable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not as a mistake: Slurm and Kubernetes would not try again."""
    nodes = [{**NODE, "Resources": {"CPU": 8.0}}]
    monkeypatch.setitem(sys.modules, "ray", types.SimpleNamespace(nodes=lambda: nodes))
    config = load_config("demo", ["cluster.wait_minutes=1", "train.processes=2"])
    now = iter((0.0, 30.0, 61.0))
    monkeypatch.setattr("elmwright.jobs.cluster.capacity.time.monotonic", lambda: next(now))
    monkeypatch.setattr("elmwright.jobs.cluster.capacity.pause", lambda *_: None)
    messages: list[str] = []
    with pytest.raises(Interrupted, match=r"needs 2 GPUs, but .* after 1 minute of waiting"):
        wait_for_capacity(config, never, messages.append, gpu=True)
    assert len(messages) == 1, "a message is not repeated"


@pytest.mark.parametrize("stopping", [False, True])
def test_ray_is_not_shut_down_while_a_thread_still_uses_it(
    stopping: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray would end the process with its own exit code before the last message."""
    down = []
    fake = types.SimpleNamespace(
        init=lambda **_settings: None, shutdown=lambda: down.append("shut down")
    )
    monkeypatch.setitem(sys.modules, "ray", fake)
    config = load_config("demo", [f"run.dir={tmp_path}"])
    done = threading.Event()
    thread = threading.Thread(target=done.wait, name=FIT_THREAD, daemon=True)
    thread.start()
    with ray_cluster(config, lambda: None, lambda: stopping):
        pass
    assert down == ([] if stopping else ["shut down"])
    done.set()
    thread.join()
    with ray_cluster(config, lambda: None, lambda: stopping):
        pass
    assert down[-1:] == ["shut down"]
