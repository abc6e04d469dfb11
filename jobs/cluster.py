"""Connecting to Ray: a private one on this machine, or a running cluster.

A local Ray is started for the run and ends with it. Nothing in it needs a fixed port, so runs do
not disturb each other or anything else on the machine. For a cluster of several machines it is
checked, not assumed, that each of them sees `run.dir`.
"""

import logging
import os
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from elmwright.jobs.config import RunConfig
from elmwright.jobs.layout import RunFolder
from elmwright.pipeline.errors import Interrupted, UserError


def local_cpus(config: RunConfig) -> int:
    """CPUs of a local Ray: as asked, else those this process may use, else one a process."""
    available = len(os.sched_getaffinity(0))
    return config.cluster.cpus or max(available, config.train.processes)


def is_remote(config: RunConfig) -> bool:
    return config.cluster.address not in ("", "local")


@contextmanager
def ray_cluster(config: RunConfig, folder: RunFolder) -> Iterator[None]:
    """Ray for the length of a run."""
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
            ray.init(address=config.cluster.address, **arguments)
        else:
            ray.init(
                address="local",
                num_cpus=local_cpus(config),
                include_dashboard=False,
                object_store_memory=256 * 2**20,  # tasks pass names, not data
                **arguments,
            )
    except SystemExit:
        # Ray's own SIGTERM handler, between its coming into force and our taking it back.
        ray.shutdown()
        raise Interrupted("while Ray was starting; the same command goes on") from None
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        if is_remote(config):
            raise UserError(
                f"cannot connect to the Ray cluster at {config.cluster.address} "
                f"({str(error).splitlines()[0]}); check cluster.address and that it is running"
            ) from error
        raise
    try:
        if is_remote(config) and not folder.remote:
            _check_shared(Path(folder.root))
        yield
    finally:
        ray.shutdown()


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
