"""Runs on a real Ray cluster with a real MLflow server: cancelled, killed, resumed, side by side.

Heavy: `make cluster-test`. Whatever happens to a run, it ends in the bytes of one left in peace on
the same cluster.
"""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster.ray_nodes import ray_head
from tests.support.cluster.user import PLANTED, STEPS, Cluster, digests, until
from tests.support.servers import mlflow_server

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    home = tmp_path_factory.mktemp("cluster")
    environment = {
        "RAY_AUTH_MODE": "disabled",
        "MLFLOW_TRACKING_USERNAME": "",
        "AWS_SECRET_ACCESS_KEY": PLANTED,
    }
    with mlflow_server(home) as tracking, ray_head(home, cpus=4, **environment) as head:
        yield Cluster(home, head, tracking)


@pytest.fixture(scope="module")
def undisturbed(cluster: Cluster) -> Path:
    folder = cluster.submit("peace")
    assert cluster.wait("peace", "finished", "failed", "interrupted")["state"] == "finished"
    return folder


def test_a_finished_run_tells_everything(cluster: Cluster, undisturbed: Path) -> None:
    found = cluster.status("peace")
    progress = found["progress"]
    assert progress["stage"] == "done"
    assert progress["step"] == STEPS
    assert progress["checkpoint_step"] == STEPS
    assert progress["perplexity"]["heldout"] > 1
    assert progress["tokens_per_s"] > 0
    assert progress["tracking"] == cluster.tracking
    assert "Registered peace version 1" in cluster.run("logs", "peace")
    assert "there is nothing to cancel" in cluster.run("cancel", "peace", code=2)
    assert "nothing to resume" in cluster.run("resume", "peace", code=2)


def test_cancelled_and_resumed_ends_identical(cluster: Cluster, undisturbed: Path) -> None:
    folder = cluster.submit("stopped")
    cluster.wait_for_step(folder, 25)
    output = cluster.run("cancel", "stopped")
    assert "stopped is interrupted, with a checkpoint at step" in output
    before = cluster.status("stopped")
    assert 20 < before["progress"]["checkpoint_step"] < STEPS
    assert "training is at step" in cluster.run("logs", "stopped")
    assert "resumes from its newest checkpoint" in cluster.run("resume", "stopped", "--follow")
    after = cluster.status("stopped")
    assert after["state"] == "finished"
    assert after["id"] != before["id"]
    assert digests(folder) == digests(undisturbed)


def test_a_killed_driver_is_started_again_and_ends_identical(
    cluster: Cluster, undisturbed: Path
) -> None:
    folder = cluster.submit("killed")
    cluster.wait_for_step(folder, 45)
    os.kill(json.loads((folder / "run.lock").read_text())["pid"], signal.SIGKILL)
    found = cluster.wait("killed", "interrupted", "failed", "finished")
    assert found["state"] == "finished"
    assert "attempt 1 was interrupted; the next one starts in 10 s (the last one got further)" in (
        cluster.run("logs", "killed")
    )
    assert digests(folder) == digests(undisturbed)


def test_a_job_that_is_killed_with_its_driver_resumes_identical(
    cluster: Cluster, undisturbed: Path
) -> None:
    """Only the user can start it again, given nothing but its folder."""
    folder = cluster.submit("gone")
    cluster.wait_for_step(folder, 45)
    driver = json.loads((folder / "run.lock").read_text())["pid"]
    os.killpg(os.getpgid(driver), signal.SIGKILL)
    found = cluster.wait("gone", "interrupted", "failed", "finished", seconds=120)
    assert found["state"] == "interrupted"
    assert "signal 9" in found["why"]
    assert cluster.status(str(folder))["id"] == found["id"]
    cluster.run("resume", str(folder), "--follow")
    assert digests(folder) == digests(undisturbed)


def test_a_cancel_between_two_attempts_is_the_last_word(cluster: Cluster) -> None:
    folder = cluster.submit("twice")
    cluster.wait_for_step(folder, 25)
    os.kill(json.loads((folder / "run.lock").read_text())["pid"], signal.SIGKILL)
    until(lambda: "the next one starts in" in cluster.run("logs", "twice"), 60, str)
    assert cluster.status("twice")["state"] == "running"
    assert "twice is interrupted, with a checkpoint at step" in cluster.run("cancel", "twice")
    time.sleep(12)  # longer than the pause
    assert cluster.status("twice")["state"] == "interrupted"
    assert json.loads((folder / "train" / "attempt.json").read_text())["attempt"] == 1


def test_a_job_whose_machine_goes_away_checkpoints_and_is_not_over(
    cluster: Cluster, undisturbed: Path
) -> None:
    """The signal of an evicted head's hook: KubeRay submits a lost job again."""
    folder = cluster.submit("evicted")
    cluster.wait_for_step(folder, 25)
    driver = json.loads((folder / "run.lock").read_text())["pid"]
    os.kill(os.getpgid(driver), signal.SIGUSR1)  # the job leads the group
    until(
        lambda: "this machine is being shut down" in cluster.run("logs", "evicted"),
        120,
        lambda: cluster.run("logs", "evicted"),
    )
    found = cluster.status("evicted")
    assert found["state"] == "running"
    assert found["progress"]["checkpoint_step"] > 20
    cluster.run("cancel", "evicted")
    cluster.run("resume", "evicted", "--follow")
    assert digests(folder) == digests(undisturbed)


def test_two_runs_at_once_do_not_disturb_each_other(cluster: Cluster, undisturbed: Path) -> None:
    one, two = cluster.submit("one"), cluster.submit("two")
    refused = cluster.run("submit", one.parent / "tiny.toml", "--to", cluster.head.address, code=2)
    assert "'one' is already running" in refused
    for name, folder in (("one", one), ("two", two)):
        assert cluster.wait(name, "finished", "failed", "interrupted")["state"] == "finished"
        assert digests(folder) == digests(undisturbed)


def test_no_planted_secret_is_anywhere(cluster: Cluster, undisturbed: Path) -> None:
    """Files, logs, run book, job listing, and the server's database and artifacts."""
    import urllib.request

    listing = urllib.request.urlopen(f"{cluster.head.address}/api/jobs/").read()  # noqa: S310
    assert PLANTED.encode() not in listing
    assert b"elmwright.config_sha256" in listing
    looked = 0
    for root in (cluster.home, cluster.head.folder):
        for path in root.rglob("*"):
            if path.is_file() and not path.is_symlink():
                assert PLANTED.encode() not in path.read_bytes(), path
                looked += 1
    assert looked > 100
