"""A local Ray that is slow to start, or never starts."""

import errno
import subprocess
import sys
from typing import Any

import pytest

from elmwright.jobs.cluster import local_ray
from elmwright.jobs.cluster.local_ray import start_local_ray
from elmwright.pipeline.errors import Interrupted
from tests.support.mistakes import mistake

TIMED_OUT = Exception(
    "The current node timed out during startup. This could happen because some of the raylet "
    "failed to startup or the GCS has become overloaded."
)


class SlowRay:
    """A Ray that fails a few times, and leaves a process behind each time."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.started: list[subprocess.Popen[bytes]] = []
        self.tries = 0

    def init(self, **_settings: Any) -> None:
        self.tries += 1
        if self.failures:
            sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
            self.started.append(
                subprocess.Popen([*sleep, "--session_dir=/tmp/ray/session_2026-11-18_x_1"])
            )
            raise self.failures.pop(0)

    def shutdown(self) -> None:
        pass


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Any:
    def install(*failures: Exception) -> SlowRay:
        ray = SlowRay(*failures)
        monkeypatch.setitem(sys.modules, "ray", ray)
        return ray

    return install


def test_a_slow_start_is_tried_again_and_leaves_nothing_running(slow: Any) -> None:
    ray, messages = slow(TIMED_OUT, TIMED_OUT), []
    start_local_ray(2, say=messages.append)
    assert ray.tries == 3
    assert messages[-1] == "Ray has not started yet; trying again (3 of 3)"
    for process in ray.started:
        assert process.wait(timeout=60) == -9


def test_failed_start_of_ray_names_its_logs(slow: Any) -> None:
    slow(*[TIMED_OUT] * local_ray.TRIES)
    with pytest.raises(Interrupted) as told:
        start_local_ray(2)
    sentence = str(told.value)
    assert "did not start on this machine in 3 tries (The current node timed out" in sentence
    assert "its logs are in /tmp/ray/session_2026-11-18_x_1/logs" in sentence
    assert "\n" not in sentence


def test_stop_request_ends_the_tries(slow: Any) -> None:
    ray = slow(*[TIMED_OUT] * local_ray.TRIES)
    with pytest.raises(Interrupted, match="while Ray was starting"):
        start_local_ray(2, stopped=lambda: True)
    assert ray.tries == 1


def test_full_disk_is_reported_and_not_tried_again(slow: Any) -> None:
    full = OSError(errno.ENOSPC, "No space left on device", "/full/disk")
    ray = slow(full, TIMED_OUT)
    with mistake("disk-full", "/full"):
        start_local_ray(2)
    assert ray.tries == 1


def test_ray_asks_for_its_node_for_as_long_as_we_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray itself gives up after 30 s, and has no setting for it."""
    import ray
    from ray._private import services

    answers: list[Any] = [RuntimeError("not yet"), RuntimeError("not yet"), {"node": 1}]

    def get_node(address: str, node: str) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(services, "get_node", get_node)
    with local_ray._more_time(ray, 60, lambda: False):
        assert services.get_node("a", "n") == {"node": 1}
    assert services.get_node is get_node
    answers.append(RuntimeError("never"))
    with local_ray._more_time(ray, 0, lambda: False), pytest.raises(RuntimeError, match="never"):
        services.get_node("a", "n")
    answers.append(RuntimeError("not yet"))
    with local_ray._more_time(ray, 60, lambda: True), pytest.raises(Interrupted, match="resumes"):
        services.get_node("a", "n")


def test_the_function_that_is_given_more_time_is_the_one_that_ray_waits_in() -> None:
    """If a newer Ray waits elsewhere, the limit is 30 s again."""
    import inspect

    from ray._private import node

    assert "ray._private.services.get_node(" in inspect.getsource(node.Node.__init__)


def test_failed_start_ends_only_processes_of_ray(slow: Any) -> None:
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        slow(TIMED_OUT)
        start_local_ray(2)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()
