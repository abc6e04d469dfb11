"""Connecting to Ray: a private one on this machine, or a running cluster.

A local Ray is started for the run and ends with it. Nothing in it needs a fixed port, so runs do
not disturb each other or anything else on the machine. For a cluster of several machines it is
checked, not assumed, that each of them sees `run.dir`.
"""

import atexit
import logging
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from elmwright.jobs.config import RunConfig
from elmwright.jobs.layout import RunFolder
from elmwright.jobs.machine_use import cores, starting_ray
from elmwright.jobs.room import ask_for_room, give_room_back, pause, wait_for_room
from elmwright.pipeline.errors import Interrupted, UserError

FITTING = "fit"
"""Name of the thread that waits for Ray Train's workers (launch.py)."""


def local_cpus(config: RunConfig) -> int:
    """CPUs of a local Ray: as asked, else those this process may use, else one a process."""
    return config.cluster.cpus or max(cores(), config.train.processes)


def is_remote(config: RunConfig) -> bool:
    return config.cluster.address not in ("", "local")


@contextmanager
def ray_cluster(
    config: RunConfig,
    folder: RunFolder,
    connected: Callable[[], object],
    stopped: Callable[[], bool],
) -> Iterator[None]:
    """Ray for the length of a run.

    `connected` is called as soon as Ray is there, for it takes SIGTERM for itself when it starts,
    and dies of it; `stopped` is asked while a cluster is waited for.
    """
    # Ray reads these when it is imported. Nothing is reported to anyone; our own journal has the
    # metrics; and a finished worker is noticed at once instead of up to two seconds later.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_TRAIN_METRICS_ENABLED", "0")
    os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.5")
    if not is_remote(config):
        # A machine of one's own is not drained: a process less to start.
        os.environ.setdefault("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "0")
    import ray

    arguments = {"log_to_driver": False, "logging_level": logging.WARNING}
    try:
        if is_remote(config):
            _check_answers(config.cluster.address)
            _connect(config, arguments, stopped)
        else:
            with starting_ray():
                ray.init(
                    address="local",
                    num_cpus=local_cpus(config),
                    include_dashboard=False,
                    object_store_memory=256 * 2**20,  # tasks pass names, not data
                    **arguments,
                )
    except (SystemExit, KeyboardInterrupt):
        # SystemExit: Ray's own SIGTERM handler, before we take the signal back. Processes that
        # Ray had started already end with this one.
        ray.shutdown()
        raise Interrupted("while Ray was starting; the same command resumes") from None
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        if is_remote(config):
            raise UserError(_why_not(config.cluster.address, error)) from error
        raise
    asked = False
    try:
        connected()
        if is_remote(config):
            asked = ask_for_room(config)
            if asked:
                wait_for_room(config, stopped)
            if not folder.remote:
                _check_shared(Path(folder.root))
        yield
    finally:
        if asked:
            give_room_back()
        if stopped() and any(thread.name == FITTING for thread in threading.enumerate()):
            # That thread waits for workers that will not answer any more. When it speaks to a Ray
            # that was shut down, Ray ends the whole process, with an exit code of its own and
            # before our last sentence. Ray's processes end with this one, so nothing is left.
            atexit.unregister(ray.shutdown)
        else:
            ray.shutdown()


def _why_not(address: str, error: Exception) -> str:
    """Why a cluster does not take us, in a sentence."""
    text = str(error)
    where = os.environ.get("RAY_ADDRESS", "auto") if address == "auto" else address
    if "ersion mismatch" in text:
        found = re.findall(r"(Ray|Python): (\d[\w.]*)", text)
        told = ", then here ".join(
            " and ".join(f"{name} {number}" for name, number in pair)
            for pair in (found[:2], found[2:4])
        )
        return (
            f"the Ray cluster at {where} has other versions (there {told}); the driver and the "
            "cluster must have the same"
        )
    if "oken" in text and ("uthenticat" in text or "nauthorized" in text):
        return (
            f"the Ray cluster at {where} does not take our token; set RAY_AUTH_MODE=token and "
            "RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH, or put it into ~/.ray/auth_token"
        )
    return (
        f"cannot connect to the Ray cluster at {where} ({text.splitlines()[0][:300]}); check "
        "cluster.address and that it is running"
    )


def _connect(config: RunConfig, arguments: dict[str, Any], stopped: Callable[[], bool]) -> None:
    """Connect, as often as cluster.wait_minutes allows: a cluster may just be coming up."""
    import ray

    end = time.monotonic() + 60 * config.cluster.wait_minutes
    while True:
        try:
            ray.init(address=config.cluster.address, **arguments)
        except ConnectionError:
            if time.monotonic() >= end:
                raise
            ray.shutdown()
            pause(3, stopped)
        else:
            return


def _check_answers(address: str) -> None:
    """Ray itself would try for minutes to reach a cluster that is not there."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=10).close()


def _check_shared(root: Path) -> None:
    """Every machine of the cluster must see run.dir; ask each of them for a probe file."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    probe = root / f".probe-{uuid.uuid4().hex}"
    probe.touch()
    try:
        look = ray.remote(num_cpus=0)(os.path.exists)
        nodes = [node for node in ray.nodes() if node["Alive"]]
        answers = ray.get(
            [
                look.options(
                    scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
                ).remote(str(probe))
                for node in nodes
            ]
        )
    finally:
        probe.unlink()
    blind = [
        node["NodeManagerAddress"] for node, sees in zip(nodes, answers, strict=True) if not sees
    ]
    if blind:
        raise UserError(
            f"run.dir {root} is not visible on {', '.join(sorted(blind))}; put it on storage that "
            "every machine of the cluster mounts at the same path"
        )
