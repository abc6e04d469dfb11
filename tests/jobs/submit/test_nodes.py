"""Training across machines of which one is lost (machines.py defines a machine).

Heavy: part of `make cluster-test`; needs PostgreSQL and rclone. Each machine has one CPU, so that
two training processes never share one. Three machines leave a spare; with two there is none. The
corpus is built and the model trained in an S3 store, tracked by an MLflow server on PostgreSQL.
"""

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from elmwright.jobs.rundir.journal_lines import read_journal
from elmwright.pipeline.storage.files import at
from tests.support.cluster.machines import Namespace, Network
from tests.support.cluster.ray_nodes import RayHead
from tests.support.cluster.user import PLANTED, Cluster, digests, until
from tests.support.s3_server import SECRET
from tests.support.servers import BUCKET, environment, mlflow_server, postgres, s3_server
from tests.support.tiny import write_config

pytestmark = pytest.mark.heavy

STEPS = 700
GOES_ON_WITHIN = 460.0
"""Seconds from the loss of a machine to the next step in the journal: on a quiet machine 31 if it
was killed and 91 if it was cut off, because Ray takes about a minute to call a silent node dead."""


class StoreCluster(Cluster):
    """A user whose runs are in an object store: the machines share nothing else."""

    def submit(self, name: str, **changes: Any) -> str:  # type: ignore[override]
        folder = self.home / name
        folder.mkdir()
        settings = {"train_max_steps": STEPS, "checkpoint_every_steps": 50, **changes}
        config = write_config(
            folder,
            self.text,
            run_name=name,
            run_dir=f"s3://{BUCKET}/{name}",
            corpus_sources=[f"s3://{BUCKET}/text.txt"],
            tracking_uri=self.tracking,
            eval_every_steps=350,
            **settings,
        )
        self.run("submit", config, "--to", self.head.address, "--until", "publish")
        return f"s3://{BUCKET}/{name}"


@dataclass
class Lab:
    """Machines, the servers on them, and an undisturbed run."""

    network: Network
    cluster: StoreCluster
    peace: str

    def begin(self, name: str, step: int = 100, **changes: Any) -> str:
        """Submit a run; it trains on several machines when this returns."""
        place = self.cluster.submit(name, **changes)
        until(lambda: newest_step(place) > step, 600, lambda: self.cluster.run("logs", name))
        return place

    def ends_identical(self, name: str, place: str, to: str = "") -> None:
        words = ("finished", "failed", "interrupted")
        assert self.cluster.wait(name, *words)["state"] == "finished"
        assert digests(place) == digests(to or self.peace)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    home = tmp_path_factory.mktemp("lab")
    folder = Path(tempfile.mkdtemp(prefix="elmnet-", dir="/tmp"))
    with ExitStack() as stack:
        network = Network(home, folder)
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        stack.callback(network.close)
        network.build()
        store = stack.enter_context(s3_server(home, network.host))
        stack.enter_context(environment(store))
        database = stack.enter_context(postgres(home))
        tracking = stack.enter_context(
            mlflow_server(home, database, f"s3://{BUCKET}/mlflow", host=network.host)
        )
        network.variables = store
        for _ in range(3):
            network.join()
        cluster = StoreCluster(home, RayHead(network.dashboard, home, folder), tracking)
        cluster.user |= store
        if network.separate:
            # In a namespace the host's name is 127.0.0.1, where gloo finds nobody.
            cluster.user |= {"GLOO_SOCKET_IFNAME": "eth0"}
        at(f"s3://{BUCKET}/text.txt").write_bytes(cluster.text.read_bytes())
        peace = cluster.submit("peace")
        found = cluster.wait("peace", "finished", "failed", "interrupted")
        assert found["state"] == "finished", cluster.run("logs", "peace")
        yield Lab(network, cluster, peace)


def newest_step(place: str) -> int:
    records = read_journal(f"{place}/train/journal", 0)
    return max((record.step for record, _ in records), default=0)


def attempts(place: str) -> int:
    return int((at(f"{place}/train/attempt.json").read_json() or {}).get("attempt", 0))


@pytest.mark.parametrize("how", ["killed", "cut"])
def test_a_lost_machine_is_replaced_by_the_spare_and_the_run_ends_identical(
    how: str, lab: Lab
) -> None:
    if how == "cut" and not lab.network.separate:
        pytest.skip("the machines share one network here")
    place = lab.begin(how)
    victim = next(machine for machine in lab.network.machines[1:] if machine.trains())
    begun = time.monotonic()
    if how == "killed":
        victim.kill()
    else:
        assert isinstance(victim, Namespace)
        victim.cut()
    # What was done before the loss may still arrive: the next attempt must get further than that.
    until(lambda: attempts(place) > 1, GOES_ON_WITHIN, lambda: lab.cluster.run("logs", how))
    step = newest_step(place)
    until(lambda: newest_step(place) > step, GOES_ON_WITHIN, lambda: lab.cluster.run("logs", how))
    seconds = time.monotonic() - begun
    print(f"{how}: training went on {seconds:.0f} s after the loss of {victim.address}")
    lab.ends_identical(how, place)
    assert lab.cluster.status(how)["progress"]["restarts"] >= 1
    assert seconds < GOES_ON_WITHIN
    lab.network.leave(victim)
    lab.network.join()


def test_a_job_that_is_killed_with_its_driver_resumes_identical(lab: Lab) -> None:
    place = lab.begin("driver")
    drivers = lab.network.head.processes("elmwright.jobs.submit.job")
    assert drivers
    for pid in drivers:
        os.kill(pid, signal.SIGKILL)
    words = ("interrupted", "failed", "finished")
    assert lab.cluster.wait("driver", *words, seconds=120)["state"] == "interrupted"
    lab.cluster.run("resume", place, "--follow")
    lab.ends_identical("driver", place)


def test_four_processes_on_four_machines_cancelled_and_resumed_end_identical(lab: Lab) -> None:
    lab.network.join()
    four = {"train_processes": 4, "train_max_steps": 120}
    peace = lab.begin("four", 10, **four)
    assert all(machine.trains() for machine in lab.network.machines)
    assert lab.cluster.wait("four", "finished", "failed", "interrupted")["state"] == "finished"
    place = lab.begin("four-stopped", 10, **four)
    assert "with a checkpoint at step" in lab.cluster.run("cancel", "four-stopped")
    lab.cluster.run("resume", "four-stopped", "--follow")
    lab.ends_identical("four-stopped", place, peace)
    lab.network.leave(lab.network.machines[-1])


def test_without_a_spare_the_run_waits_for_one_and_ends_identical(lab: Lab) -> None:
    lab.network.leave(lab.network.machines[-1])
    place = lab.begin("alone")
    lab.network.leave(lab.network.machines[-1])
    until(
        lambda: "the next one starts in" in lab.cluster.run("logs", "alone"),
        600,
        lambda: lab.cluster.run("logs", "alone"),
    )
    assert lab.cluster.status("alone")["state"] == "running"
    lab.network.join()
    lab.ends_identical("alone", place)


def test_each_step_is_in_mlflow_once_and_no_secret_is_anywhere(lab: Lab) -> None:
    client = MlflowClient(lab.cluster.tracking, lab.cluster.tracking)
    experiment = client.get_experiment_by_name("elmwright")
    runs = {
        run.info.run_name: run.info.run_id for run in client.search_runs([experiment.experiment_id])
    }
    disturbed = ["killed", "driver", "alone", *(["cut"] if lab.network.separate else [])]
    for name in ("peace", *disturbed):
        history = client.get_metric_history(runs[name], "train/loss")
        assert [point.step for point in history] == list(range(2, STEPS + 1, 2)), name
        assert SECRET not in str(client.get_run(runs[name]).to_dictionary())
    looked = 0
    for root in (lab.cluster.home, lab.cluster.head.folder):
        for path in root.rglob("*"):
            if path.is_file() and not path.is_symlink():
                try:
                    content = path.read_bytes()
                except FileNotFoundError:  # the machines are still at work
                    continue
                assert SECRET.encode() not in content, path
                assert PLANTED.encode() not in content, path
                looked += 1
    assert looked > 100
