"""Runs a frozen biLM over sentences of any lengths, without a graph and without padding.

Sentences are sorted by length, and a step computes only those that have not ended, so a batch of
random sentences costs as many products as one of equal sentences. A position of a sentence is a row
of a *packed* tensor: all sentences' first steps, then all second ones, and so on. Both directions
are packed in the same way, because they have the same lengths.

Training keeps its padded windows (`projected.py`), whose backward pass wants steps of one size.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor

from elmwright.model.bilm import BiLM, LSTMLayer, States
from elmwright.model.inference.word_types import Row
from elmwright.model.kernels.native import Native, native_for
from elmwright.model.precision import operand

POSITIONS = 512
"""Positions whose gates are in memory at a time. Larger buffers (16 MB here for the small model)
return to the system when they are freed, and the first touch of every page of a new one is slow."""


@dataclass(frozen=True)
class Packing:
    """Where the positions of framed sentences are in a packed tensor."""

    order: npt.NDArray[np.int64]
    """The sentences by falling length."""
    active: npt.NDArray[np.int64]
    """For each step, how many sentences have it."""
    index: npt.NDArray[np.int64]
    """The word types that each direction reads, [2, positions]."""
    ends: npt.NDArray[np.int64]
    """The last position of each sentence, in this order."""
    forward: list[Row]
    """For each sentence, the forward model's packed positions of its words, `<S>` first."""
    backward: list[Row]
    """The same of the backward model, also in the order of the sentence."""


def pack(rows: Sequence[Row]) -> Packing:
    """Frame sentences, given as numbers of word types, with 0 (`<S>`) and 1 (`</S>`)."""
    lengths = np.array([len(row) + 2 for row in rows], dtype=np.int64)
    order = np.argsort(-lengths, kind="stable")
    active = np.array(
        [np.count_nonzero(lengths > step) for step in range(lengths.max(initial=0))], dtype=np.int64
    )
    starts = np.cumsum(active) - active
    index = np.empty((2, int(active.sum())), dtype=np.int64)
    places: list[Row] = [starts] * len(rows)
    for place, number in enumerate(order):
        row, positions = rows[number], starts[: lengths[number]] + place
        index[0, positions] = [0, *row, 1]
        index[1, positions] = [1, *row[::-1], 0]
        places[number] = positions
    ends = np.array([places[number][-1] for number in order], dtype=np.int64)
    return Packing(order, active, index, ends, places, [each[::-1] for each in places])


@torch.inference_mode()
def run_packed(
    bilm: BiLM,
    types: Tensor,
    packing: Packing,
    states: States,
    operands: torch.dtype | None = None,
) -> tuple[list[Tensor], States]:
    """Each layer as [2, positions, projection_dim], and the states [2, layers, sentences, …] at the
    end of each sentence, both in the order of `packing`. With `operands`, products read that type,
    and everything else is as without.

    The results are inference tensors: no graph can have them, only what is selected from them.
    """
    index = torch.from_numpy(packing.index).to(types.device)
    x = F.embedding(index, types).to(states.c.dtype)
    layers, cells, projections = [x], [], []
    with torch.autocast(types.device.type, enabled=False):
        for number, layer in enumerate(bilm.lstm):
            assert isinstance(layer, LSTMLayer)  # noqa: S101 - for the type checker
            c = states.c[:, number].clone(memory_format=torch.contiguous_format)
            m = states.m[:, number]
            y = _run_layer(layer, x, packing.active, c, m, operands or x.dtype)
            x = x + y if bilm.config.residual and number else y
            layers.append(x)
            cells.append(c)
            projections.append(y)
    ends = torch.from_numpy(packing.ends).to(types.device)
    last = [y.index_select(1, ends) for y in projections]
    return layers, States(torch.stack(cells, 1), torch.stack(last, 1))


def _run_layer(
    layer: LSTMLayer,
    x: Tensor,
    active: npt.NDArray[np.int64],
    c: Tensor,
    m: Tensor,
    operands: torch.dtype,
) -> Tensor:
    """The outputs of one layer. `c` becomes the cells at the end of each sentence."""
    width, dim, proj = x.size(2), c.size(2), m.size(2)
    cell_clip = layer.config.cell_clip or torch.inf  # 0 never clips
    proj_clip = layer.config.proj_clip or torch.inf
    w, w_proj = operand(layer.w, operands), operand(layer.w_proj, operands)
    is_mixed = operands != x.dtype
    bias = layer.b.to(x.dtype, copy=True)
    bias[:, 2 * dim : 3 * dim] += 1.0  # the forget bias that no file stores
    w_in, w_rec = w[:, :width], w[:, width:]
    y = x.new_empty(2, x.size(1), proj)
    kernels = native_for(x, c, layer.w)
    step = _TorchStep(c, cell_clip) if kernels is None else _NativeStep(kernels, c, cell_clip)
    for first, last in _portions(active):
        steps = active[first:last].tolist()
        start = int(active[:first].sum())
        portion = slice(start, start + sum(steps))
        if is_mixed:
            z = x[:, portion].to(operands).bmm(w_in).to(x.dtype).add_(bias.unsqueeze(1))
        else:
            z = torch.baddbmm(bias.unsqueeze(1), x[:, portion], w_in)
        # A step of few rows costs little more than its calls, so there are few of them: views of
        # all steps are taken at once.
        parts = (torch.split(part, steps, 1) for part in (z, y[:, portion]))
        for gates, out in zip(*parts, strict=True):
            rows = gates.size(1)
            m = m if rows == m.size(1) else m[:, :rows]
            if is_mixed:
                hidden = step(gates.add_(m.to(operands).bmm(w_rec)))
                m = out.copy_(hidden.to(operands).bmm(w_proj))
            else:
                m = torch.bmm(step(gates.baddbmm_(m, w_rec)), w_proj, out=out)
            m.clamp_(-proj_clip, proj_clip)
    return y


class _NativeStep:
    """Makes new cells of the sums of the gates with the kernel in C."""

    def __init__(self, kernels: Native, c: Tensor, clip: float) -> None:
        self.kernels, self.c, self.clip = kernels, c, clip
        self.hidden = torch.empty_like(c)

    def __call__(self, gates: Tensor) -> Tensor:
        """Update the cells of the first rows, as many as `gates` has; returns σ(o)·tanh(c)."""
        self.kernels.lstm_read(gates, self.c, self.hidden, self.clip)
        return self.hidden[:, : gates.size(1)]


class _TorchStep:
    """The same in torch, in few calls: one sigmoid has all gates, that of j in vain."""

    def __init__(self, c: Tensor, clip: float) -> None:
        self.clip = clip
        empty = torch.empty_like(c)
        self.buffers: tuple[Tensor, ...] = (c, empty, empty.clone(), c.repeat(1, 1, 4))

    def __call__(self, gates: Tensor) -> Tensor:
        rows, dim = gates.size(1), gates.size(2) // 4
        if rows < self.buffers[0].size(1):
            self.buffers = tuple(each[:, :rows] for each in self.buffers)
        c, hidden, j, sigmoids = self.buffers
        torch.sigmoid(gates, out=sigmoids)
        torch.tanh(gates.narrow(-1, dim, dim), out=j)
        i, _, f, o = sigmoids.chunk(4, dim=-1)
        c.mul_(f).addcmul_(i, j).clamp_(-self.clip, self.clip)
        return torch.tanh(c, out=hidden).mul_(o)


def _portions(active: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """The steps in portions of at most `POSITIONS` positions, or of one step."""
    portions, first, size = [], 0, 0
    for step, rows in enumerate(active.tolist()):
        if size and size + rows > POSITIONS:
            portions.append((first, step))
            first, size = step, 0
        size += rows
    return [*portions, (first, len(active))] if size else portions
