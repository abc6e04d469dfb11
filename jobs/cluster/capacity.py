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
"""Seconds between looks at a cluster that is growing."""
LOOK_SECONDS = 2.0
"""Seconds between looks at whether processes that have not begun still fit."""
LOST_SECONDS = 10.0
"""Seconds for which capacity may be too small, where nothing else (cluster.wait_minutes) is
allowed: a machine may be counted twice or not at all while it is being replaced."""


class NoCapacity(UserError):  # noqa: N818 - a state of the cluster
    """The cluster is too small: a user's mistake before training, an interruption later."""


class CapacityLost(NoCapacity):
    """The cluster was large enough when training was started, and has become too small."""


@dataclass(frozen=True)
class Machine:
    """A machine of a Ray cluster."""

    id: str
    """Ray's own name for it."""
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


def check_capacity(
    train: TrainSection,
    have: Sequence[Mapping[str, float]],
    *,
    gpu: bool,
    where: str = "the cluster",
    advice: str = "lower train.processes or train.threads",
    unit: str = "machine",
) -> None:
    """Raise NoCapacity, with the capacity of `where`, if the training processes do not fit."""
    cpus = sum(machine.get("CPU", 0) for machine in have)
    gpus = sum(machine.get("GPU", 0) for machine in have)
    there = f"{where} has {plural(len(have), unit)} with {cpus:.0f} CPUs and {gpus:.0f} GPUs in all"
    if gpu and gpus < train.processes:
        raise NoCapacity(
            "capacity", f"train.processes needs {train.processes} GPUs, but {there}; {advice}"
        )
    if cpus < train.processes * train.threads:
        raise NoCapacity(
            "capacity",
            f"train.processes × train.threads needs {train.processes * train.threads} CPUs, but "
            f"{there}; {advice}",
        )
    fitting = capacity_for(have, train.threads, gpu=gpu)
    if fitting < train.processes:
        raise NoCapacity(
            "capacity",
            f"{train.processes} processes with {train.threads} CPUs{' and a GPU' * gpu} each do "
            f"not fit: a process needs them on one {unit}, and {there}, with room for {fitting}; "
            f"{advice}",
        )


def missing(config: RunConfig, *, gpu: bool) -> NoCapacity | None:
    """What the cluster lacks now for the training processes, or None."""
    try:
        check_capacity(config.train, resources(), gpu=gpu)
    except NoCapacity as lacking:
        return lacking
    return None


def request_capacity(config: RunConfig, *, gpu: bool) -> bool:
    """Ask a cluster that grows by itself for what training lacks; whether it lacked anything."""
    if not config.cluster.wait_minutes or missing(config, gpu=gpu) is None:
        return False  # launch.py says at once what is not there
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
    """Wait until the cluster has what training needs, for as long as allowed; then Interrupted.

    A machine that is late is not the user's mistake: the run exits with 75 and can be resumed.
    """
    minutes = plural(config.cluster.wait_minutes, "minute")
    end = time.monotonic() + 60 * config.cluster.wait_minutes
    announced = ""
    while lacking := missing(config, gpu=gpu):
        reason = str(lacking).rpartition("; ")[0]  # without the advice
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
        log.warning("machines that were asked for could not be given back: %s", error)


def pause(seconds: float, stopped: Callable[[], bool]) -> None:
    """Wait for a cluster; raises Interrupted at once if the run is to stop."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if stopped():
            raise Interrupted("while the cluster was waited for; the same command resumes")
        time.sleep(0.1)


class CapacityWatch:
    """Whether the processes of an attempt can still be placed.

    A machine that has just died counts for as long as Ray has not noticed, so an attempt may begin
    that can never get all of its processes. Ray Train waits for capacity without a limit.
    """

    def __init__(self, config: RunConfig, sign: str) -> None:
        """`sign` is the file that the first process writes when it has begun."""
        self._config, self._sign = config, sign
        self._patience = 60.0 * config.cluster.wait_minutes or LOST_SECONDS
        self._begun = False
        self._next = time.monotonic() + LOOK_SECONDS
        self._since = 0.0

    def lost(self) -> CapacityLost | None:
        """What is missing, once it has been missing for too long and no process has begun."""
        now = time.monotonic()
        if self._begun or now < self._next:
            return None
        self._next = now + LOOK_SECONDS
        self._begun = at(self._sign).exists()
        lacking = None if self._begun else self._lacking()
        self._since = (self._since or now) if lacking else 0.0
        return lacking if lacking and now - self._since > self._patience else None

    def _lacking(self) -> CapacityLost | None:
        from ray.exceptions import RayError

        try:
            lacking = missing(self._config, gpu=self._config.train.device == "cuda")
        except RayError as error:  # the processes' own end tells what is wrong
            log.warning("cannot ask Ray for its machines: %s", error)
            return None
        return CapacityLost("capacity", str(lacking)) if lacking else None
