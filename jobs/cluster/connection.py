"""Connecting to Ray: a private one on this machine, or a running cluster.

A local Ray is started for the run and ends with it. Nothing in it needs a fixed port, so runs do
not disturb each other or anything else on the machine. In a cluster, every machine must see
`run.dir` at the same path, which is checked.
"""

import atexit
import logging
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TypeVar

from elmwright.jobs.cluster.capacity import (
    Machine,
    machines,
    pause,
    release_capacity,
    request_capacity,
    wait_for_capacity,
)
from elmwright.jobs.cluster.local_ray import start_local_ray
from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.environment.machine_use import cores
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.pipeline.errors import Failed, Interrupted, UserError
from elmwright.pipeline.progress import plural
from elmwright.pipeline.storage.files import at, join

log = logging.getLogger("elmwright")

Answer = TypeVar("Answer")

ANSWER_SECONDS = 60.0
"""Seconds in which the machines of a cluster must answer a small task."""
FIT_THREAD = "fit"
"""Name of the thread in which launch.py calls `fit()` of Ray Train and waits for its workers."""


def local_cpus(config: RunConfig) -> int:
    """CPUs of a local Ray: cluster.cpus, else those this process may use, at least one per
    training process."""
    return config.cluster.cpus or max(cores(), config.train.processes)


def is_remote(config: RunConfig) -> bool:
    return config.cluster.address not in ("", "local")


@contextmanager
def ray_cluster(
    config: RunConfig,
    on_connect: Callable[[], object],
    stopped: Callable[[], bool],
    say: Callable[[str], None] = lambda _: None,
) -> Iterator[None]:
    """Start a local Ray, or connect to a cluster, and shut down or disconnect after the block.

    `on_connect` is called as soon as Ray has started, to replace Ray's own SIGTERM handler, which
    ends the process. `stopped` says whether the run was asked to stop, and `say` prints a message.
    """
    # Ray reads these when it is imported: no usage reports, no metrics (our journal has them), and
    # a finished worker is noticed at once instead of up to two seconds later.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_TRAIN_METRICS_ENABLED", "0")
    os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.5")
    if not is_remote(config):
        # Only machines of a cluster are preempted, so Ray needs no process to watch for that.
        os.environ.setdefault("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "0")
    import ray

    try:
        if is_remote(config):
            _connect(config, stopped)
        else:
            start_local_ray(local_cpus(config), stopped, say)
    except (SystemExit, KeyboardInterrupt):
        # SystemExit: Ray's own SIGTERM handler, before we replace it. Processes that Ray has
        # already started end with this one.
        ray.shutdown()
        raise Interrupted("while Ray was starting; the same command resumes") from None
    except (UserError, Failed, Interrupted):
        raise
    except Exception as error:  # Ray raises exceptions of many types, even plain Exception
        raise UserError(
            "cluster-unreachable", why_unreachable(config.cluster.address, error)
        ) from error
    try:
        on_connect()
        yield
    finally:
        if stopped() and any(thread.name == FIT_THREAD for thread in threading.enumerate()):
            # That thread waits for workers that will never answer. If it calls Ray after
            # the shutdown, Ray ends the whole process with its own exit code, before our last
            # message. Ray's processes end with this one, so nothing is left behind.
            atexit.unregister(ray.shutdown)
        else:
            ray.shutdown()


@contextmanager
def machines_for(
    config: RunConfig,
    folder: RunFolder,
    *,
    gpu: bool,
    stopped: Callable[[], bool],
    say: Callable[[str], None],
) -> Iterator[None]:
    """Wait for the machines of a cluster, check them, and release them after the block.

    With a local Ray there is nothing to wait for.
    """
    is_requested = False
    try:
        if is_remote(config):
            is_requested = request_capacity(config, gpu=gpu)
            if is_requested:
                wait_for_capacity(config, stopped, say, gpu=gpu)
            if not folder.is_in_store:
                _check_shared(folder.root)
        yield
    finally:
        if is_requested:
            release_capacity()


def ask_machines(
    machines: Sequence[Machine],
    call: Callable[..., Answer],
    *arguments: object,
    seconds: float = ANSWER_SECONDS,
) -> list[tuple[Machine, Answer]]:
    """Call a function on each machine, and return the machines that answered with their results.

    The calls reserve no CPUs. A machine that was just lost gives no answer, but Ray still lists it
    for up to a minute. Raises `Interrupted` if no machine answers.
    """
    import ray
    from ray.exceptions import RayError, RayTaskError, RuntimeEnvSetupError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ask = ray.remote(num_cpus=0)(call)
    references = [
        ask.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(machine.id, soft=False)
        ).remote(*arguments)
        for machine in machines
    ]
    end = time.monotonic() + seconds
    answers = []
    for machine, reference in zip(machines, references, strict=True):
        try:
            answer = ray.get(reference, timeout=max(0.1, end - time.monotonic()))
        except (RayTaskError, RuntimeEnvSetupError):  # the function failed, or can never run
            raise
        except RayError as error:
            log.warning("machine %s does not answer: %s", machine.address, error)
        else:
            answers.append((machine, answer))
    if references and not answers:
        raise Interrupted(
            f"because no machine of the cluster answered within {seconds:.0f} s; the same "
            "command resumes"
        )
    return answers


def why_unreachable(address: str, error: Exception) -> str:
    """Why we cannot connect to a cluster, in a sentence."""
    text = str(error)
    lower = text.lower()
    where = os.environ.get("RAY_ADDRESS", "auto") if address == "auto" else address
    if "version mismatch" in lower:
        versions = [" ".join(pair) for pair in re.findall(r"(Ray|Python): (\d[\w.]*)", text)]
        there, here = " and ".join(versions[:2]), " and ".join(versions[2:4])
        return (
            f"the Ray cluster at {where} has other versions (there {there}, here {here}); the "
            "driver and the cluster must have the same"
        )
    if "token" in lower and ("authenticat" in lower or "unauthorized" in lower):
        return (
            f"the Ray cluster at {where} rejects our token; set RAY_AUTH_MODE=token, and give the "
            "token in RAY_AUTH_TOKEN, in the file RAY_AUTH_TOKEN_PATH or in ~/.ray/auth_token"
        )
    return (
        f"cannot connect to the Ray cluster at {where} ({text.splitlines()[0][:300]}); check "
        "cluster.address and that it is running"
    )


def _connect(config: RunConfig, stopped: Callable[[], bool]) -> None:
    """Connect to a cluster, and try for up to cluster.wait_minutes, because it may be starting.

    Raises `Interrupted` when that time is over; if it is 0, the error of the first attempt.
    """
    import ray

    minutes, address = config.cluster.wait_minutes, config.cluster.address
    end = time.monotonic() + 60 * minutes
    while True:
        try:
            check_reachable(address)
            ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)
        except (ConnectionError, TimeoutError) as error:
            if not minutes:
                raise
            if time.monotonic() >= end:
                raise Interrupted(
                    f"because {why_unreachable(address, error).partition(';')[0]} after "
                    f"{plural(minutes, 'minute')} of waiting (cluster.wait_minutes); the same "
                    "command resumes once the cluster is running"
                ) from error
            ray.shutdown()
            pause(3, stopped)
        else:
            return


def check_reachable(address: str) -> None:
    """Raise OSError if a cluster does not answer; Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=10).close()


@contextmanager
def probe_file(folder: str) -> Iterator[str]:
    """A temporary file in a run's folder, for other machines to look for."""
    is_new = not at(folder).is_folder()
    probe = join(folder, f".probe-{uuid.uuid4().hex}")
    at(probe).write_bytes(b"")
    try:
        yield probe
    finally:
        at(probe).remove()
        if is_new:
            with suppress(OSError):
                os.rmdir(folder)


def _check_shared(folder: str) -> None:
    """Refuse a cluster in which some machine does not see a probe file in run.dir."""
    with probe_file(folder) as probe:
        answers = ask_machines(machines(), os.path.exists, probe)
    addresses = [machine.address for machine, is_visible in answers if not is_visible]
    if addresses:
        raise UserError(
            "shared-path",
            f"run.dir {folder} is not visible on {', '.join(sorted(addresses))}; put it on storage "
            "that every machine of the cluster mounts at the same path",
        )
