"""What both implementations of the projected LSTM share: the values of a window, and their buffers.

See `projected.py`.
"""

import threading
from typing import NamedTuple

import torch
from torch import Tensor


class Clips(NamedTuple):
    """Limits of the cell values and of the projected outputs."""

    cell: float
    proj: float


class Window(NamedTuple):
    """Values of all steps that the backward pass needs, [direction, time, row, width]."""

    gates: Tensor
    """The sums of the gates i, j, f and o, or their values."""
    cells: Tensor
    hidden: Tensor
    """σ(o)·tanh(c), which is projected."""
    y: Tensor
    """The outputs."""


class Gradients(NamedTuple):
    """Of everything that a window is computed from."""

    x: Tensor
    w: Tensor
    b: Tensor
    w_proj: Tensor
    c0: Tensor
    m0: Tensor

    @classmethod
    def of_window(
        cls,
        x: Tensor,
        w: Tensor,
        m0: Tensor,
        window: Window,
        dz: Tensor,
        dm: Tensor,
        dc0: Tensor,
        keep: Tensor | None,
    ) -> "Gradients":
        """From those of the gates' sums (`dz`), of the outputs before the clip (`dm`) and of the
        first cell: one product over all steps for each weight and for the inputs."""
        width, y, flat = x.size(3), window.y, dz.flatten(1, 2)
        dm0 = dz[:, 0].bmm(w[:, width:].transpose(1, 2)).to(x.dtype)
        read = torch.cat([x.to(y.dtype), m0.to(y.dtype).unsqueeze(1).expand_as(y)], dim=-1)
        read[:, 1:, :, width:] = y[:, :-1]
        if keep is not None:
            read[..., width:].mul_(keep.to(y.dtype).unsqueeze(-1))
            dm0 = dm0 * keep[0].unsqueeze(-1)
        hidden, ones = window.hidden.flatten(1, 2), flat.new_ones(len(flat), 1, flat.size(1))
        return cls(
            x=flat.bmm(w[:, :width].contiguous().transpose(1, 2)).view_as(x).to(x.dtype),
            w=read.flatten(1, 2).transpose(1, 2).bmm(flat).to(x.dtype),
            b=ones.bmm(flat).squeeze(1).to(x.dtype),
            w_proj=hidden.transpose(1, 2).bmm(dm.flatten(1, 2)).to(x.dtype),
            c0=dc0,
            m0=dm0,
        )


class Spare(threading.local):
    """Buffers of finished windows, for the next one.

    A buffer of this size (42 MB for a small model) returns to the system when it is freed, and the
    first touch of every page of a new one is slow. On CUDA the caching allocator does this. Holds
    at most the layers of one step: buffers are dropped when another shape is needed.
    """

    def __init__(self) -> None:
        self.buffers: dict[tuple[tuple[int, ...], torch.dtype], list[Tensor]] = {}

    def take(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        kept = self.buffers.get((shape, dtype))
        if kept and device.type == "cpu":
            return kept.pop()
        self.buffers.clear()
        return torch.empty(shape, dtype=dtype, device=device)

    def give(self, *buffers: Tensor) -> None:
        for buffer in buffers:
            if buffer.device.type == "cpu" and not buffer.is_inference():
                self.buffers.setdefault((tuple(buffer.shape), buffer.dtype), []).append(buffer)


spare = Spare()
