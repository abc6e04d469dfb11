"""On what a run trains: decided once, recorded, and never CPUs in the place of GPUs."""

import sys
import types
from pathlib import Path
from typing import Any

import pytest

from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.config.toml_file import load_config
from elmwright.jobs.runbook.submission import Submission
from elmwright.jobs.runbook.target import Target
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.submit.send import prepare
from elmwright.jobs.training.driver import devices
from elmwright.jobs.training.driver.devices import (
    bound_device,
    past_device,
    settle_device,
    with_device,
    with_promised_gpus,
)
from elmwright.pipeline.errors import Interrupted
from elmwright.pipeline.storage.files import at
from tests.support import saved
from tests.support.mistakes import mistake
from tests.support.tiny import write_config

GPU_MACHINE = {"CPU": 4.0, "GPU": 1.0}


class Cluster:
    """A Ray whose machines a test changes."""

    def __init__(self, *machines: dict[str, float]) -> None:
        self.machines = list(machines)
        self.messages: list[str] = []
        self.warned: list[str] = []

    def nodes(self) -> list[dict[str, Any]]:
        about = {"Alive": True, "NodeID": "n", "NodeManagerAddress": "10.0.0.1"}
        return [{**about, "Resources": one} for one in self.machines]

    def settle(self, config: RunConfig, folder: RunFolder) -> str:
        return settle_device(config, folder, self.messages.append, self.warned.append).train.device


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Two machines with a GPU each, on which torch can use it."""
    cluster = Cluster(GPU_MACHINE, GPU_MACHINE)
    monkeypatch.setitem(sys.modules, "ray", types.SimpleNamespace(nodes=cluster.nodes))
    answer = "gpu-1", "2.13.0+cu130", "13.0"
    monkeypatch.setattr(devices, "ask_machines", lambda nodes, _call: [(n, answer) for n in nodes])
    return cluster


@pytest.fixture
def run(tmp_path: Path) -> tuple[RunConfig, RunFolder]:
    config = load_config(
        str(write_config(tmp_path, tmp_path, tracking_uri="http://mlflow:5000")),
        ["cluster.address=head:6379"],
    )
    folder = RunFolder.of(config)
    Path(folder.train).mkdir(parents=True)
    return config, folder


def test_auto_decides_once_per_run(cluster: Cluster, run: tuple[RunConfig, RunFolder]) -> None:
    assert cluster.settle(*run) == "cuda"
    assert cluster.messages == ["Training on 2 GPUs."]
    assert at(f"{run[1].train}/device.json").read_json() == {"device": "cuda"}
    assert bound_device(*run) == "cuda"
    cluster.machines = [{"CPU": 8.0}]
    with pytest.raises(Interrupted, match=r"trains on GPUs, and train.processes needs 2 GPUs"):
        cluster.settle(*run)
    assert cluster.settle(with_device(run[0], "cpu"), run[1]) == "cpu", "if the user says so"
    assert bound_device(*run) == "cpu", "and then it stays there"
    cluster.machines = [GPU_MACHINE] * 2
    assert cluster.settle(*run) == "cpu"
    assert "as this run has done before, although there are 2 GPUs" in cluster.warned[-1]


def test_a_checkpoint_of_an_earlier_version_binds_a_run_to_its_gpus(
    cluster: Cluster, run: tuple[RunConfig, RunFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also before its first attempt: exit 2 would look like a mistake, and CPUs like a choice."""
    monkeypatch.setattr(devices, "list_checkpoints", lambda _: [types.SimpleNamespace(path="x")])
    monkeypatch.setattr(devices, "read_checked_state", lambda _: saved.state(device="cuda"))
    assert bound_device(*run) == "cuda"
    cluster.machines = [{"CPU": 8.0}]
    with pytest.raises(Interrupted, match="it resumes when they are there"):
        cluster.settle(*run)


def test_a_message_says_why_cpus_were_chosen(
    cluster: Cluster, run: tuple[RunConfig, RunFolder]
) -> None:
    cluster.machines = [{"CPU": 8.0}]
    assert cluster.settle(*run) == "cpu"
    assert "because no machine has a GPU now" in cluster.messages[0]
    Path(run[1].train, "device.json").unlink()
    cluster.machines = [GPU_MACHINE, {"CPU": 8.0}]
    assert cluster.settle(*run) == "cpu"
    assert "do not fit on 2 machines with 1 GPU in all" in cluster.warned[0]
    cluster.machines = [{"CPU": 8.0}]
    cluster.settle(*run)
    assert len(cluster.messages + cluster.warned) == 2, "a decision is reported once"


def test_a_run_is_not_bound_to_gpus_it_never_had(
    cluster: Cluster, run: tuple[RunConfig, RunFolder]
) -> None:
    """The same mistake is reported again, and can be corrected."""
    cluster.machines = [{"CPU": 8.0}]
    for _ in range(2):
        with mistake("capacity", "train.processes", "2 GPUs", "cluster.wait_minutes"):
            cluster.settle(with_device(run[0], "cuda"), run[1])
    assert past_device(run[1]) is None
    assert cluster.settle(*run) == "cpu"


def test_a_torch_without_cuda_is_named_with_its_machine(
    cluster: Cluster, run: tuple[RunConfig, RunFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "ask_machines", lambda *_: [({}, ("gpu-1", "2.13.0+cpu", ""))])
    with mistake("device", "gpu-1", "2.13.0+cpu"):
        cluster.settle(*run)
    assert past_device(run[1]) is None, "it has trained on nothing yet"


def test_a_damaged_device_record_is_ignored(run: tuple[RunConfig, RunFolder]) -> None:
    for content in ({"device": "tpu"}, {"device": 3}, {}):
        at(f"{run[1].train}/device.json").write_json(content)
        assert bound_device(*run) is None


@pytest.mark.parametrize(
    ("target", "asked", "device"),
    [
        (Target("slurm", gpus=1), "auto", "cuda"),
        (Target("k8s", gpus=2), "auto", "cuda"),
        (Target("slurm", gpus=1), "cpu", "cpu"),
        (Target("slurm"), "auto", "auto"),
        (Target("ray", address="http://head:8265"), "auto", "auto"),
    ],
    ids=["slurm", "k8s", "cpu in config", "no gpus", "ray"],
)
def test_auto_means_cuda_on_a_target_with_gpus(
    target: Target, asked: str, device: str, run: tuple[RunConfig, RunFolder]
) -> None:
    config = run[0] if asked == "auto" else with_device(run[0], "cpu")
    assert with_promised_gpus(config, target).train.device == device
    sent: Submission = prepare(config, target, "publish")
    assert sent.config["train"]["device"] == device
