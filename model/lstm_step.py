"""One step of the projected LSTM, forward and back, and the buffers of a window.

Both layouts use this, `lstm_rows.py` and `lstm_columns.py`. See `lstm.py`.
"""

import threading
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

sigmoid_back = torch.ops.aten.sigmoid_backward.grad_input
tanh_back = torch.ops.aten.tanh_backward.grad_input
clip_back = torch.ops.aten.hardtanh_backward.grad_input


class Clips(NamedTuple):
    """Limits of the cell values and of the projected outputs."""

    cell: float
    proj: float


class Window(NamedTuple):
    """Values of all steps that the backward pass needs, in the memory layout of the layer."""

    gates: Tensor
    cells: Tensor
    tanh_cells: Tensor
    y: Tensor
    """The outputs as [direction, time, row, width], whatever their order in memory."""


def gate_views(gates: Tensor, axis: int) -> tuple[Tensor, ...]:
    """i, j, f with o, f, and o of one step: f and o are next to each other, and both sigmoids."""
    i, j, f, o = gates.chunk(4, dim=axis)
    return i, j, gates.narrow(axis, 2 * i.size(axis), 2 * i.size(axis)), f, o


def forward_step(
    gates: Sequence[Tensor], c: Tensor, cell: Tensor, tanh_cell: Tensor, hidden: Tensor, clip: float
) -> None:
    """Turn sums into gate values; fill the next cell, its tanh, and `hidden` = σ(o)·tanh(c)."""
    i, j, f_o, f, o = gates
    i.sigmoid_()
    j.tanh_()
    f_o.sigmoid_()
    torch.mul(f, c, out=cell)
    cell.addcmul_(i, j).clamp_(-clip, clip)
    torch.tanh(cell, out=tanh_cell)
    torch.mul(o, tanh_cell, out=hidden)


def backward_step(
    gates: Sequence[Tensor],
    c: Tensor,
    cell: Tensor,
    tanh_cell: Tensor,
    dh: Tensor,
    dc: Tensor,
    dc_end: Tensor | None,
    part: Tensor,
    clip: float,
) -> None:
    """Turn gate values into the gradient of z, and `dc` into the gradient of the cell before, `c`.

    `dh` is the gradient of `hidden`, and `dc_end` that of a row's final cell. Both `dh` and `part`
    are overwritten. `tanh_cell` becomes `hidden`. `hardtanh_backward` on the clipped value is zero
    exactly where the clip binds, in one pass.
    """
    i, j, f, o = gates
    torch.mul(dh, tanh_cell, out=part)
    tanh_back(dh.mul_(o), tanh_cell, grad_input=dh)
    tanh_cell.mul_(o)
    sigmoid_back(part, o, grad_input=o)
    dc.add_(dh)
    if dc_end is not None:
        dc.add_(dc_end)
    clip_back(dc, cell, -clip, clip, grad_input=dc)
    torch.mul(dc, j, out=part)
    torch.mul(dc, i, out=dh)
    sigmoid_back(part, i, grad_input=i)
    tanh_back(dh, j, grad_input=j)
    torch.mul(dc, c, out=part)
    dc.mul_(f)
    sigmoid_back(part, f, grad_input=f)


class Spare(threading.local):
    """Buffers of finished backward passes, for the next forward pass.

    A buffer of this size (42 MB for a small model) returns to the system when it is freed, and the
    first touch of every page of a new one is slow. On CUDA the caching allocator does this. Holds
    at most the layers of one step: buffers are dropped when another shape is needed.
    """

    def __init__(self) -> None:
        self.buffers: dict[tuple[tuple[int, ...], torch.dtype], list[Tensor]] = {}

    def take(self, like: Tensor, shape: tuple[int, ...]) -> Tensor:
        kept = self.buffers.get((shape, like.dtype))
        if kept and like.device.type == "cpu":
            return kept.pop()
        self.buffers.clear()
        return like.new_empty(shape)

    def give(self, *buffers: Tensor) -> None:
        for buffer in buffers:
            if buffer.device.type == "cpu":
                self.buffers.setdefault((tuple(buffer.shape), buffer.dtype), []).append(buffer)


spare = Spare()
