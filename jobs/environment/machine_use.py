"""How a command shares the machine with other programs. Decided before torch is loaded.

**Waiting.** The threads of a matrix product meet at barriers, hundreds of times per second, where
OpenMP lets them spin by default. If another program occupies a core, the spinning threads take the
time of the thread that they wait for: on two cores under load an evaluation of the demo took 153 s,
and 7 s with threads that sleep at once (`OMP_WAIT_POLICY=passive`). But sleeping at once takes half
as long again on a quiet machine. So threads spin for a moment (`GOMP_SPINCOUNT`) and then sleep,
also in the processes that Ray starts here. A variable that the user has set is not changed.
`tests/bench/bench_busy.py` measures this on a busy and on a quiet machine.

**Threads.** Training uses `train.threads` on every machine: exact resume depends on it. Everything
else (eval, export, embed, score, neighbours) uses one thread per core that this process may use by
its CPU affinity and the quota of its container, which OpenMP does not know. `OMP_NUM_THREADS`
overrides that. Load is ignored, because results depend on the number of threads in the last digits.

**Niceness.** Ray starts its workers at niceness 15: beside one other busy program training got 27 %
of a core. Training is not background work, so the workers of a local Ray get the niceness of the
command. `nice elmwright run …` lowers all of it. RAY_worker_niceness overrides.
"""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SPINS = "1000"
"""Some microseconds: of 300, 1,000, 5,000 and 20,000 the least without cost on a quiet machine."""
WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""Variables that determine how threads wait."""
THREADS = "OMP_NUM_THREADS"
NICENESS = "RAY_worker_niceness"

_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_chosen: set[str] = set()
"""Variables that were set by share_machine and not by the user."""


def share_machine() -> None:
    """Choose wait policy and number of threads for this process and those it starts."""
    if not any(name in os.environ for name in WAITING):
        os.environ["GOMP_SPINCOUNT"] = SPINS
    if THREADS not in os.environ and cores() < len(os.sched_getaffinity(0)):
        os.environ[THREADS] = str(cores())
        _chosen.add(THREADS)


def cores() -> int:
    """The cores that this process may use: by affinity, and by the quota of its container."""
    available = len(os.sched_getaffinity(0))
    try:
        quota, period = _QUOTA.read_text().split()
    except (OSError, ValueError):
        return available
    if quota == "max":
        return available
    return max(1, min(available, math.ceil(int(quota) / int(period))))


@contextmanager
def starting_ray() -> Iterator[None]:
    """Set the environment for starting a local Ray, which its workers inherit.

    Ray gives each worker as many threads as it has CPUs, unless the user has set a number.
    """
    os.environ.setdefault(NICENESS, "0")  # Ray adds it to our own
    threads = os.environ.pop(THREADS, None) if THREADS in _chosen else None
    try:
        yield
    finally:
        if threads is not None:
            os.environ[THREADS] = threads
