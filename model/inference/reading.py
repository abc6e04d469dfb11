"""Reads sentences with a biLM: encoded word types in, all layers of every word out."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from elmwright.model.bilm import BiLM, States
from elmwright.model.inference.word_types import Row

WINDOW = 128
"""Steps of the biLM that are in memory at a time."""


def read_rows(
    bilm: BiLM, types: Tensor, rows: Sequence[Row], states: States, boundaries: bool
) -> tuple[list[Tensor], States]:
    """All layers [N, T, 2·projection_dim] of sentences, and the states after them.

    Sentences are indices into `types`, whose rows 0 and 1 are `<S>` and `</S>`. With `boundaries`
    these two are words of every sentence. Values past the end of a sentence have no meaning.
    """
    counts = np.array([len(row) for row in rows], dtype=np.int64)
    longest = int(counts.max(initial=0))
    index = np.zeros((2, len(rows), longest + 2), dtype=np.int64)
    for n, row in enumerate(rows):
        index[0, n, : len(row) + 2] = [0, *row, 1]
        index[1, n, : len(row) + 2] = [1, *row[::-1], 0]
    read = torch.from_numpy(index).to(types.device)
    lengths = torch.from_numpy(counts + 2).to(types.device)
    read_layers, states = _run(bilm, types, read, lengths, states)

    # Position t of the framed sentence is step t of the forward model, and step length − 1 − t of
    # the backward one.
    first, end = (0, longest + 2) if boundaries else (1, longest + 1)
    position = torch.arange(first, end, device=types.device)
    step = (lengths.unsqueeze(1) - 1 - position).clamp_min(0).unsqueeze(-1)
    layers = []
    for layer in read_layers:
        back = layer[1].gather(1, step.expand(-1, -1, layer.size(-1)))
        layers.append(torch.cat([layer[0, :, first:end], back], dim=-1))
    return layers, states


def _run(
    bilm: BiLM, types: Tensor, read: Tensor, lengths: Tensor, states: States
) -> tuple[list[Tensor], States]:
    """The biLM over [2, N, T] in windows; each layer as [2, N, T, projection_dim]."""
    parts: list[tuple[Tensor, ...]] = []
    for start in range(0, read.size(2), WINDOW):
        window = read[:, :, start : start + WINDOW]
        rest = (lengths - start).clamp(0, window.size(2))
        output = bilm.run(types, window[0], window[1], states, lengths=rest, all_layers=True)
        states = output.states
        parts.append(output.layers)
    return [torch.cat(layer, dim=2) for layer in zip(*parts, strict=True)], states


class CarriedStates:
    """The states after the last call, row by row, for the next one."""

    def __init__(self) -> None:
        self.states: States | None = None

    def take(self, zeros: States) -> States:
        """The states that earlier calls have kept, and `zeros` for the other rows."""
        if self.states is not None:
            known = min(zeros.c.size(2), self.states.c.size(2))
            zeros.c[:, :, :known] = self.states.c[:, :, :known]
            zeros.m[:, :, :known] = self.states.m[:, :, :known]
        return zeros

    def keep(self, states: States) -> None:
        """Keep states for the next call; further rows of earlier calls stay as they were."""
        states = states.detach()
        if self.states is not None and self.states.c.size(2) > states.c.size(2):
            rest = self.states.rows(slice(states.c.size(2), None))
            states = States(torch.cat([states.c, rest.c], 2), torch.cat([states.m, rest.m], 2))
        self.states = states
