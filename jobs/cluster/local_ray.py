"""Starts a local Ray, also on a machine where that takes long.

Ray gives itself 30 s and then raises a bare `Exception`. A first start reads hundreds of megabytes
and takes 9 to 19 CPU seconds, so a cold disk or a busy machine needs more than that. Here Ray gets
`START_SECONDS`, and another try if that was not enough, with the files of the first in memory. The
processes of a failed try are ended before the next begins, or they would starve each other. If Ray
never starts, the run ends as resumable, because the machine may be less busy later.
"""

import logging
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from elmwright.jobs.environment.machine_use import starting_ray
from elmwright.pipeline.errors import Interrupted
from elmwright.pipeline.storage.disk import explain

log = logging.getLogger("elmwright")

START_SECONDS = 90.0
"""Seconds that one try may take."""
TRIES = 3
OBJECT_STORE_BYTES = 256 * 2**20
"""Shared memory for Ray's objects: tasks pass names, not data."""
_SESSION = re.compile(r"(/[^\s=\x00]*/session_[\w.-]+)")


def start_local_ray(
    cpus: int,
    stopped: Callable[[], bool] = lambda: False,
    say: Callable[[str], None] = lambda _: None,
) -> None:
    """Start Ray and connect to it; raises Interrupted if it does not start."""
    import ray

    os.environ.setdefault("RAY_gcs_server_port_wait_time_s", f"{START_SECONDS:.0f}")
    before = set(_children())
    for number in range(1, TRIES + 1):
        try:
            with starting_ray(), _more_time(ray, START_SECONDS, stopped):
                ray.init(
                    address="local",
                    num_cpus=cpus,
                    include_dashboard=False,
                    object_store_memory=OBJECT_STORE_BYTES,
                    log_to_driver=False,
                    logging_level=logging.WARNING,
                )
        except Exception as error:  # Ray raises bare ones
            log.warning("Ray did not start (try %d of %d)", number, TRIES, exc_info=error)
            logs = _clear_away(ray, before)
            if isinstance(error, Interrupted):
                raise
            cause = isinstance(error, OSError) and explain(error, Path(error.filename or logs))
            if cause:
                raise cause.saying(f"Ray could not start: {cause}") from error
            if stopped():
                raise Interrupted("while Ray was starting; the same command resumes") from error
            if number == TRIES:
                lines = str(error).strip().splitlines() or [repr(error)]
                raise Interrupted(
                    f"because Ray did not start on this machine in {TRIES} tries "
                    f"({lines[0][:200]}); its logs are in {logs}; if the machine is busy or short "
                    "of memory, run the same command again later"
                ) from error
            say(f"Ray has not started yet; trying again ({number + 1} of {TRIES})")
        else:
            return


@contextmanager
def _more_time(ray: Any, seconds: float, stopped: Callable[[], bool]) -> Iterator[None]:
    """Let Ray wait longer for its own node, by repeating its query for that long.

    Ray has no setting for it. A version of Ray without this function keeps its own limit.
    """
    services: Any = getattr(getattr(ray, "_private", None), "services", None)
    get_node = getattr(services, "get_node", None)
    if get_node is None:
        yield
        return
    end = time.monotonic() + seconds

    def patient_get_node(*arguments: Any) -> Any:
        while True:
            try:
                return get_node(*arguments)
            except RuntimeError:
                if time.monotonic() >= end:
                    raise
                if stopped():
                    raise Interrupted("while Ray was starting; the same command resumes") from None
                time.sleep(0.2)

    services.get_node = patient_get_node
    try:
        yield
    finally:
        services.get_node = get_node


def _clear_away(ray: Any, before: set[int]) -> str:
    """End the processes of a failed try; the folder of its logs."""
    started = {pid: line for pid, line in _children().items() if pid not in before}
    ray.shutdown()
    for pid in started:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    session = _SESSION.search(" ".join(started.values()))
    temporary = os.environ.get("RAY_TMPDIR") or "/tmp"  # noqa: S108 - Ray's own default
    return f"{session[1] if session else f'{temporary}/ray/session_latest'}/logs"


def _children() -> dict[int, str]:
    """The command lines of this process's children that have not ended, by process number."""
    lines = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            line = (entry / "cmdline").read_bytes().decode("utf-8", "replace")
        except OSError:  # it has just ended
            continue
        if int(parent) == os.getpid() and state != "Z":
            lines[int(entry.name)] = line
    return lines
