"""Checks whether a cluster has capacity for the training processes, and waits for it."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from elmwright.jobs.config.sections import RunConfig, TrainSection
from elmwright.pipeline.errors import Interrupted, UserError
from elmwright.pipeline.progress import plural
from elmwright.pipeline.storage.files import at

log = logging.getLogger("elmwright")

WAIT_SECONDS = 2.0
"""Seconds between two checks of a cluster's capacity."""
LOST_SECONDS = 10.0
"""Seconds for which capacity may be too small without cluster.wait_minutes: a machine may be
counted twice or not at all while it is being replaced."""
ADVICE = "lower train.processes or train.threads"


class NoCapacity(UserError):  # noqa: N818 - a state of the cluster
    """The cluster is too small: a mistake of the user before training, an interruption later."""


class CapacityLost(NoCapacity):
    """The cluster was large enough when training was started, and has become too small."""


@dataclass(frozen=True)
class Machine:
    """A machine of a Ray cluster."""

    id: str
    """The name that Ray gives it."""
    address: str
    """Its IP address."""
    resources: dict[str, float]
    """Amounts of CPU, GPU and so on, used or not."""


def machines() -> list[Machine]:
    """The machines of the cluster we are connected to that are alive."""
    import ray

    return [
        Machine(node["NodeID"], node["NodeManagerAddress"], node["Resources"])
        for node in ray.nodes()
        if node["Alive"]
    ]


def resources() -> list[dict[str, float]]:
    """The resources of each machine that is alive."""
    return [machine.resources for machine in machines()]


def capacity_for(machines: Iterable[Mapping[str, float]], threads: int, *, gpu: bool) -> int:
    """How many training processes fit, each with all its CPUs (and a GPU) on one machine."""
    processes = 0
    for have in machines:
        fit = int(have.get("CPU", 0) // threads)
        processes += min(fit, int(have.get("GPU", 0))) if gpu else fit
    return processes


def shortage(
    train: TrainSection,
    have: Sequence[Mapping[str, float]],
    *,
    gpu: bool,
    where: str = "the cluster",
    unit: str = "machine",
) -> str:
    """Why the training processes do not fit on machines, and what these have; empty if they fit."""
    processes, threads = train.processes, train.threads
    cpus = sum(machine.get("CPU", 0) for machine in have)
    gpus = sum(machine.get("GPU", 0) for machine in have)
    there = f"{where} has {plural(len(have), unit)} with {cpus:.0f} CPUs and {gpus:.0f} GPUs in all"
    if gpu and gpus < processes:
        return f"train.processes needs {processes} GPUs, but {there}"
    if cpus < processes * threads:
        return f"train.processes × train.threads needs {processes * threads} CPUs, but {there}"
    fitting = capacity_for(have, threads, gpu=gpu)
    if fitting < processes:
        return (
            f"{processes} processes with {threads} CPUs{' and a GPU' * gpu} each do not fit: a "
            f"process needs them on one {unit}, and {there}, with room for {fitting}"
        )
    return ""


def check_capacity(
    train: TrainSection,
    have: Sequence[Mapping[str, float]],
    *,
    gpu: bool,
    where: str = "the cluster",
    advice: str = ADVICE,
    unit: str = "machine",
) -> None:
    """Raise NoCapacity if the training processes do not fit on machines."""
    if reason := shortage(train, have, gpu=gpu, where=where, unit=unit):
        raise NoCapacity("capacity", f"{reason}; {advice}")


def request_capacity(config: RunConfig, *, gpu: bool) -> bool:
    """Request missing machines from a cluster that grows by itself; whether any were missing."""
    if not config.cluster.wait_minutes or not shortage(config.train, resources(), gpu=gpu):
        return False  # launch.py reports at once what is missing
    from ray.autoscaler.sdk import request_resources

    train = config.train
    bundle: dict[str, float] = {"CPU": train.threads}
    if gpu:
        bundle["GPU"] = 1
    request_resources(bundles=[bundle] * train.processes)
    return True


def wait_for_capacity(
    config: RunConfig, stopped: Callable[[], bool], say: Callable[[str], None], *, gpu: bool
) -> None:
    """Wait for up to cluster.wait_minutes until the training processes fit; then Interrupted."""
    minutes = plural(config.cluster.wait_minutes, "minute")
    end = time.monotonic() + 60 * config.cluster.wait_minutes
    announced = ""
    while reason := shortage(config.train, resources(), gpu=gpu):
        if reason != announced:
            say(f"Waiting for up to {minutes}: {reason}.")
            announced = reason
        if time.monotonic() >= end:
            raise Interrupted(
                f"because {reason} after {minutes} of waiting (cluster.wait_minutes); the same "
                "command resumes when the machines are there"
            )
        pause(WAIT_SECONDS, stopped)


def release_capacity() -> None:
    """Release requested machines, which Ray would keep until the next request."""
    from ray.autoscaler.sdk import request_resources

    try:
        request_resources(bundles=[])
    except Exception as error:  # the cluster may be what has ended
        log.warning("requested machines could not be released: %s", error)


def pause(seconds: float, stopped: Callable[[], bool]) -> None:
    """Wait for a cluster; raises Interrupted at once if the run is to stop."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if stopped():
            raise Interrupted("while waiting for the cluster; the same command resumes")
        time.sleep(0.1)


class CapacityWatch:
    """Whether the processes of an attempt can still be placed.

    A machine that has just died counts for as long as Ray has not noticed, so an attempt may begin
    that can never get all of its processes. Ray Train waits for capacity without a limit.
    """

    def __init__(self, config: RunConfig, sign: str) -> None:
        """`sign` is the file that the first process writes when it has begun."""
        self._config = config
        self._sign = sign
        self._patience = 60.0 * config.cluster.wait_minutes or LOST_SECONDS
        self._has_begun = False
        self._next_check = time.monotonic() + WAIT_SECONDS
        self._missing_since = 0.0

    def lost(self) -> CapacityLost | None:
        """What is missing, once it has been missing for too long and no process has begun."""
        from ray.exceptions import RayError

        now = time.monotonic()
        if self._has_begun or now < self._next_check:
            return None
        self._next_check = now + WAIT_SECONDS
        self._has_begun = at(self._sign).exists()
        try:
            is_on_gpu = self._config.train.device == "cuda"
            reason = shortage(self._config.train, resources(), gpu=is_on_gpu)
        except RayError as error:  # the end of the processes will show what is wrong
            log.warning("cannot ask Ray for its machines: %s", error)
            reason = ""
        if self._has_begun or not reason:
            self._missing_since = 0.0
            return None
        self._missing_since = self._missing_since or now
        is_lost = now - self._missing_since > self._patience
        return CapacityLost("capacity", f"{reason}; {ADVICE}") if is_lost else None
