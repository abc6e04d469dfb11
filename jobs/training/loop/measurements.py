"""Measures where the time of training goes, and the machine: memory, load and peak speed.

Everything about the machine comes from the kernel's own files and from torch. The peak is the speed
of a large matrix product, measured when training starts, on this process's device and threads.
"""

import os
import time
from pathlib import Path

import torch

from elmwright.jobs.rundir import metrics
from elmwright.jobs.training.loop.exchange import Ranks
from elmwright.model.config import Precision
from elmwright.model.precision import Operands

SAMPLE_SECONDS = 5.0
"""Seconds between samples: steps may be short, and a sample takes time."""
SIZE = 1024
"""Rows and columns of the measured product: 2.1 GFLOP, some 30 ms per core."""


class Clock:
    """The time spent on each part of training between two logged steps."""

    def __init__(self) -> None:
        self._spent: dict[str, float] = {}
        self._lap_start = self._start = time.perf_counter()
        self._start_step: int | None = None

    def lap(self, name: str) -> None:
        """Attribute the time since the last call to `name`."""
        now = time.perf_counter()
        self._spent[name] = self._spent.get(name, 0.0) + now - self._lap_start
        self._lap_start = now

    def metrics(self, step: int, tokens: int, flops: float, peak: float) -> dict[str, float]:
        """Each part's share of the time since the last call, tokens and FLOPs per second, and the
        share of the machine's `peak` FLOPs per second; `tokens` and `flops` are per step."""
        total = max(time.perf_counter() - self._start, 1e-9)
        values = {metrics.time_share(name): spent / total for name, spent in self._spent.items()}
        if self._start_step is not None:
            working = max(total - self._spent.get("evaluate", 0.0), 1e-9)
            steps_per_s = (step - self._start_step) / working
            values[metrics.TOKENS_PER_S.key] = steps_per_s * tokens
            values[metrics.FLOPS_PER_S.key] = steps_per_s * flops
            values[metrics.FLOP_UTILISATION.key] = steps_per_s * flops / peak
        self._spent, self._start, self._start_step = {}, time.perf_counter(), step
        return values


class Machine:
    """Measures this process and its machine (rank 0)."""

    def __init__(self, ranks: Ranks, precision: Precision = "fp32") -> None:
        self._device = ranks.device
        self.peak = matrix_rate(ranks.device, Operands.of(precision).lstm) * ranks.world
        """FLOP/s of all processes together, if they did nothing but large matrix products."""
        self._wall, self._cpu = time.perf_counter(), _cpu_seconds()
        self._next = self._wall

    def metrics(self) -> dict[str, float]:
        """The metrics since the last sample; empty if that was less than SAMPLE_SECONDS ago."""
        wall = time.perf_counter()
        if wall < self._next:
            return {}
        cpu = _cpu_seconds()
        values = {
            metrics.PROCESS_CPUS.key: (cpu - self._cpu) / max(wall - self._wall, 1e-9),
            metrics.PROCESS_MEMORY.key: _resident_mb(),
            metrics.MACHINE_LOAD.key: os.getloadavg()[0],
            metrics.MACHINE_MEMORY.key: _memory_used(),
        }
        self._wall, self._cpu, self._next = wall, cpu, wall + SAMPLE_SECONDS
        if self._device.type == "cuda":
            free, total = torch.cuda.mem_get_info(self._device)
            values[metrics.GPU_MEMORY.key] = 1 - free / total
            peak = torch.cuda.max_memory_allocated(self._device)
            values[metrics.GPU_MEMORY_PEAK.key] = peak / 1e6
        return values


def matrix_rate(device: torch.device, dtype: torch.dtype | None = None) -> float:
    """FLOP/s of a large matrix product, with operands of this type (float32)."""
    a, b = torch.randn(2, SIZE, SIZE, device=device).to(dtype or torch.float32)
    best = 0.0
    for _ in range(4):
        start = time.perf_counter()
        a.mm(b)[0, 0].item()  # waits for a GPU to finish
        best = max(best, 2 * SIZE**3 / (time.perf_counter() - start))
    return best


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system


def _resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def _memory_used() -> float:
    lines = Path("/proc/meminfo").read_text().splitlines()
    kb = {name: int(rest.split()[0]) for name, rest in (line.split(":", 1) for line in lines)}
    return 1 - kb["MemAvailable"] / kb["MemTotal"]
