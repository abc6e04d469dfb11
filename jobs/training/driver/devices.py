"""Whether a run trains on CPUs or GPUs: decided once per run, and recorded.

`train.device` is `"cpu"`, `"cuda"` or `"auto"`. With `"auto"` the first training of a run decides:
GPUs if there is one for each process, else CPUs. The decision is kept in `train/device.json`, so
that a GPU which is temporarily missing never moves the rest of a run to CPUs. For a run that was
sent to a target with GPUs (Slurm, Kubernetes), `"auto"` means `"cuda"`.

A run that is bound to GPUs waits `cluster.wait_minutes` for them and then ends with exit code 75.
"""

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from elmwright.jobs.checkpoints.checkpoint import list_checkpoints, read_checked_state
from elmwright.jobs.cluster.capacity import (
    Machine,
    NoCapacity,
    capacity_for,
    machines,
    shortage,
)
from elmwright.jobs.cluster.connection import ask_machines, is_remote
from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.runbook.target import Target
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.pipeline.errors import Interrupted, UserError
from elmwright.pipeline.progress import plural
from elmwright.pipeline.storage.files import at, join

Device = Literal["cpu", "cuda"]


def with_promised_gpus(config: RunConfig, target: Target) -> RunConfig:
    """The config of a run that is sent to a target: it uses the GPUs that the target requests."""
    if target.gpus and config.train.device == "auto":
        return with_device(config, "cuda")
    return config


def with_device(config: RunConfig, device: Device) -> RunConfig:
    return replace(config, train=replace(config.train, device=device))


def bound_device(config: RunConfig, folder: RunFolder) -> Device | None:
    """The device in the config, the run's record or its newest checkpoint; None if in none."""
    return config.train.device if config.train.device != "auto" else past_device(folder)


def past_device(folder: RunFolder) -> Device | None:
    """The device that the run has trained on so far; None before its first training."""
    if recorded := _device((at(_record(folder)).read_json() or {}).get("device")):
        return recorded
    # A run of an earlier version, which kept no record.
    infos = list_checkpoints(folder.checkpoints)
    state = read_checked_state(infos[-1].path) if infos else None
    return _device(state.device) if state else None


def settle_device(
    config: RunConfig,
    folder: RunFolder,
    say: Callable[[str], None],
    warn: Callable[[str], None],
) -> RunConfig:
    """The config with the device that this training uses, which is recorded.

    Called when the machines are available. If CPUs are chosen on a cluster, or although there are
    GPUs, a message says so.
    """
    train, bound = config.train, bound_device(config, folder)
    nodes = machines()
    have = [node.resources for node in nodes]
    gpus = int(sum(one.get("GPU", 0) for one in have))
    device: Device = bound or (
        "cuda" if capacity_for(have, train.threads, gpu=True) >= train.processes else "cpu"
    )
    if device == "cuda":
        _check_gpus(config, folder, have)
        if not bound:
            say(f"Training on {plural(train.processes, 'GPU')}.")
        _check_cuda([node for node in nodes if node.resources.get("GPU")])
    elif bound and gpus and train.device == "auto":
        warn(
            f"training on CPUs, as this run has done before, although there "
            f"{'is' if gpus == 1 else 'are'} {plural(gpus, 'GPU')}; --set train.device=cuda moves "
            "it to GPUs"
        )
    elif not bound and gpus:
        warn(
            f"training on CPUs: {plural(train.processes, 'process', 'processes')} with "
            f"{plural(train.threads, 'CPU')} and a GPU each do not fit on "
            f"{plural(len(have), 'machine')} with {plural(gpus, 'GPU')} in all; to use GPUs, give "
            'the run another run.name and lower train.processes, or set train.device = "cuda" and '
            "cluster.wait_minutes to wait for more"
        )
    elif not bound and is_remote(config):
        say(
            'Training on CPUs, because no machine has a GPU now (train.device = "auto"). Set '
            'train.device = "cuda" and cluster.wait_minutes to wait for GPUs.'
        )
    at(_record(folder)).write_json({"device": device})
    return with_device(config, device)


def _check_gpus(config: RunConfig, folder: RunFolder, have: Sequence[Mapping[str, float]]) -> None:
    """Refuse to bind a run to GPUs that are not available.

    If the run has trained on GPUs before, it ends as resumable, because its settings are right.
    """
    advice = "lower train.processes, or "
    advice += (
        "set cluster.wait_minutes to wait for them"
        if is_remote(config)
        else 'set train.device = "cpu"'
    )
    reason = shortage(config.train, have, gpu=True)
    if reason and past_device(folder) == "cuda":
        raise Interrupted(
            f"this run trains on GPUs, and {reason}; it resumes when they are there, or on CPUs if "
            'train.device is set to "cpu"'
        )
    if reason:
        raise NoCapacity("capacity", f"{reason}; {advice}")


def _check_cuda(nodes: list[Machine]) -> None:
    """Refuse machines with GPUs whose torch cannot use them: the only other error would be that
    NCCL is missing, after every restart."""
    answers = [answer for _, answer in ask_machines(nodes, torch_here)]
    without = sorted({f"{host} (torch {version})" for host, version, cuda in answers if not cuda})
    if without:
        raise UserError(
            "device",
            f"torch was built without CUDA on {', '.join(without)}, where Ray has GPUs; install "
            'the CUDA build of torch there, or set train.device = "cpu"',
        )


def torch_here() -> tuple[str, str, str]:
    """This machine's name, its torch, and the CUDA version that torch was built for."""
    import torch

    return platform.node(), torch.__version__, torch.version.cuda or ""


def _record(folder: RunFolder) -> str:
    return join(folder.train, "device.json")


def _device(value: object) -> Device | None:
    """The value, which may come from a damaged file, if it is a device."""
    if value == "cpu":
        return "cpu"
    return "cuda" if value == "cuda" else None
