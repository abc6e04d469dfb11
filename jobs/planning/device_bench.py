"""`elmwright bench`: how fast a device trains a model, and what a step asks of it.

Real steps of one process on made-up input (`measuring.py`), so it needs no text and no corpus. The
speed is that of the steps in a row. What a step starts and waits for is counted in one more step,
because counting is slow. On a CPU it also says what the same step would ask of a GPU.
"""

import time
from dataclasses import dataclass, replace

import torch

from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.environment.machine_facts import machine
from elmwright.jobs.planning.measuring import Rehearsal, documentation
from elmwright.jobs.planning.operations import Operations
from elmwright.jobs.training.loop.measurements import matrix_rate
from elmwright.jobs.training.loop.training_step import make_step
from elmwright.model.kernels.compile import TORCH
from elmwright.model.kernels.native import kernel_name
from elmwright.model.launches import like_a_gpu
from elmwright.model.precision import Operands
from elmwright.pipeline.errors import UserError

WARM_UP = 3
"""Steps that are not timed: libraries choose their algorithms, and memory is allocated."""


@dataclass(frozen=True)
class DeviceBench:
    """The result."""

    machine: str
    device: str
    precision: str
    kernels: str
    tokens_per_s: float
    flops_per_s: float
    """Useful arithmetic (model/flops.py)."""
    peak_flops_per_s: float
    """A large matrix product of the same precision."""
    steps: int
    operations: int
    """Operations that a step starts."""
    waits: int
    """How often a step waits for the device."""
    copies: int
    """Copies between devices per step."""
    operations_on_gpu: int
    """Operations that a step would start on a GPU; the same number if this is one."""
    memory_mb: float
    """Most memory of a GPU that was in use; 0 on a CPU."""

    @property
    def utilisation(self) -> float:
        return self.flops_per_s / self.peak_flops_per_s


def bench_device(config: RunConfig, kind: str, steps: int) -> DeviceBench:
    """Train for some steps on this kind of device."""
    if kind == "cuda" and not torch.cuda.is_available():
        raise UserError(
            "device", f"torch {torch.__version__} sees no GPU here; --device cpu measures the CPU"
        )
    device = torch.device(kind)
    config = replace(config, train=replace(config.train, processes=1))
    precision = config.train.precision
    torch.set_num_threads(config.train.threads)
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    rehearsal = Rehearsal(config, documentation(), config.vocab.max_size, device)
    inputs = [rehearsal.input(step) for step in range(WARM_UP + steps)]
    flops = sum(given.flops for given in inputs[WARM_UP:])
    for given in inputs[:WARM_UP]:
        make_step(rehearsal.process, given, wants_stop=False)
    began = time.perf_counter()
    for given in inputs[WARM_UP:]:  # each waits for the device once
        make_step(rehearsal.process, given, wants_stop=False)
    seconds = time.perf_counter() - began
    counted, on_gpu = Operations(), Operations()
    with counted:
        make_step(rehearsal.process, inputs[0], wants_stop=False)
    with like_a_gpu(), on_gpu:
        make_step(rehearsal.process, inputs[0], wants_stop=False)
    is_gpu = device.type == "cuda"
    return DeviceBench(
        machine=machine(),
        device=device.type,
        precision=precision,
        kernels=TORCH if is_gpu else kernel_name(),
        tokens_per_s=steps * config.train.tokens / seconds,
        flops_per_s=flops / seconds,
        peak_flops_per_s=matrix_rate(device, Operands.of(precision).lstm),
        steps=steps,
        operations=counted.started.total(),
        waits=on_gpu.waits.total(),
        copies=counted.copies.total(),
        operations_on_gpu=on_gpu.started.total(),
        memory_mb=torch.cuda.max_memory_allocated() / 1e6 if is_gpu else 0.0,
    )


def bench_lines(result: DeviceBench) -> list[str]:
    """The result for a terminal."""
    speed, peak = result.flops_per_s / 1e9, result.peak_flops_per_s / 1e9
    rows = {
        "machine": result.machine,
        "computes": f"{result.precision} on {result.device}, kernels {result.kernels}",
        "speed": f"{result.tokens_per_s:,.0f} tokens/s, {result.steps} steps",
        "arithmetic": f"{speed:,.1f} GFLOP/s, {result.utilisation:.0%} of a large product "
        f"({peak:,.1f})",
        "starts": f"{result.operations:,} operations per step; a GPU {result.operations_on_gpu:,}",
        "waits": f"{result.waits} per step for a GPU; {result.copies} copies between devices",
    }
    if result.memory_mb:
        rows["memory"] = f"{result.memory_mb:,.0f} MB at most"
    return [f"  {name:<11} {text}" for name, text in rows.items()]
