"""Runs a frozen biLM over sentences of any lengths, without a graph and without padding.

Sentences are sorted by length, and a step computes only those that have not ended, so a batch of
random sentences costs as many products as one of equal sentences. A position of a sentence is a row
of a *packed* tensor: all sentences' first steps, then all second ones, and so on. Both directions
are packed in the same way, because they have the same lengths.

Training keeps its padded windows (`lstm.py`), whose backward pass wants steps of one size.
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
from elmwright.model.lstm_step import Clips, forward_step, gate_views

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
    return Packing(order, active, index, places, [positions[::-1] for positions in places])


@torch.no_grad()
def run_packed(
    bilm: BiLM, types: Tensor, packing: Packing, states: States
) -> tuple[list[Tensor], States]:
    """Each layer as [2, positions, projection_dim], and the states [2, layers, sentences, …] at the
    end of each sentence, both in the order of `packing`."""
    dtype = states.c.dtype
    index = torch.from_numpy(packing.index).to(types.device)
    x = F.embedding(index, types).to(dtype)
    layers = [x]
    cells, projections = states.c.clone(), states.m.clone()
    with torch.autocast(types.device.type, enabled=False):
        for number, layer in enumerate(bilm.lstm):
            assert isinstance(layer, LSTMLayer)  # noqa: S101 - for the type checker
            y = _run_layer(layer, x, packing.active, cells[:, number], projections[:, number])
            x = x + y if bilm.config.residual and number else y
            layers.append(x)
    return layers, States(cells, projections)


def _run_layer(
    layer: LSTMLayer, x: Tensor, active: npt.NDArray[np.int64], c: Tensor, m: Tensor
) -> Tensor:
    """The outputs of one layer. `c` and `m` become the states at the end of each sentence."""
    width, dim, proj = x.size(2), c.size(2), m.size(2)
    clips = Clips(layer.config.cell_clip or torch.inf, layer.config.proj_clip or torch.inf)
    w, w_proj = layer.w.to(x.dtype), layer.w_proj.to(x.dtype)
    bias = layer.b.to(x.dtype, copy=True)
    bias[:, 2 * dim : 3 * dim] += 1.0  # the forget bias that no file stores
    w_in, w_rec = w[:, :width], w[:, width:]
    y = x.new_empty(2, x.size(1), proj)
    tanh_c, hidden = torch.empty_like(c), torch.empty_like(c)
    for first, last in _portions(active):
        steps = active[first:last].tolist()
        start = int(active[:first].sum())
        portion = slice(start, start + sum(steps))
        z = torch.baddbmm(bias.unsqueeze(1), x[:, portion], w_in)
        for gates, out in zip(z.split(steps, 1), y[:, portion].split(steps, 1), strict=True):
            rows = gates.size(1)
            cell, before = c[:, :rows], m[:, :rows]
            gates.baddbmm_(before, w_rec)
            views = gate_views(gates, -1)
            forward_step(views, cell, cell, tanh_c[:, :rows], hidden[:, :rows], clips.cell)
            torch.bmm(hidden[:, :rows], w_proj, out=out)
            before.copy_(out.clamp_(-clips.proj, clips.proj))
    return y


def _portions(active: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """The steps in portions of at most `POSITIONS` positions, or of one step."""
    portions, first, size = [], 0, 0
    for step, rows in enumerate(active.tolist()):
        if size and size + rows > POSITIONS:
            portions.append((first, step))
            first, size = step, 0
        size += rows
    return [*portions, (first, len(active))] if size else portions
