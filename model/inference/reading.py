"""Reads sentences with a biLM: encoded word types in, all layers of every word out.

What is frozen is read packed (`packed.py`). Where the encoder or an LSTM layer is trained,
sentences are padded to the longest one and cut into windows in time, as in training.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from elmwright.model.bilm import BiLM, States
from elmwright.model.inference.packed import pack, run_packed
from elmwright.model.inference.word_types import Row
from elmwright.model.precision import EXACT, Operands

WINDOW = 128
"""Steps of a trained biLM that are computed at a time."""


@dataclass(frozen=True)
class Reading:
    """The layers of a batch of sentences, one after the other without padding."""

    layers: list[Tensor]
    """Each layer as [words of all sentences, 2·projection_dim]."""
    counts: Row
    """The number of words of each sentence."""

    def positions(self) -> tuple[Tensor, Tensor]:
        """A mask [sentences, words] of the words, and where it is true when flat."""
        longest = int(self.counts.max(initial=0))
        is_word = np.arange(longest) < self.counts[:, np.newaxis]
        device = self.layers[0].device
        places = torch.from_numpy(np.flatnonzero(is_word)).to(device)
        return torch.from_numpy(is_word).to(device), places


def read(
    bilm: BiLM,
    types: Tensor,
    rows: Sequence[Row],
    states: States,
    boundaries: bool,
    operands: Operands = EXACT,
) -> tuple[Reading, States]:
    """The layers of sentences, and the states after them.

    Sentences are indices into `types`, whose rows 0 and 1 are `<S>` and `</S>`. With `boundaries`
    these two are words of every sentence.
    """
    is_trained = types.requires_grad or any(p.requires_grad for p in bilm.lstm.parameters())
    if torch.is_grad_enabled() and is_trained:
        layers, states, forward, backward = _read_padded(bilm, types, rows, states, operands)
    else:
        layers, states, forward, backward = _read_packed(bilm, types, rows, states, operands)
    words = slice(None) if boundaries else slice(1, -1)
    steps = [
        torch.from_numpy(np.concatenate([np.zeros(0, np.int64), *(row[words] for row in places)]))
        for places in (forward, backward)
    ]
    ahead, back = (step.to(types.device) for step in steps)
    flat = [
        torch.cat([layer[0].index_select(0, ahead), layer[1].index_select(0, back)], dim=-1)
        for layer in layers
    ]
    counts = np.array([len(row[words]) for row in forward], dtype=np.int64)
    return Reading(flat, counts), states


def _read_packed(
    bilm: BiLM, types: Tensor, rows: Sequence[Row], states: States, operands: Operands
) -> tuple[list[Tensor], States, list[Row], list[Row]]:
    packing = pack(rows)
    order = torch.from_numpy(packing.order).to(types.device)
    sorted_states = States(states.c.index_select(2, order), states.m.index_select(2, order))
    layers, ends = run_packed(bilm, types, packing, sorted_states, operands.lstm)
    back = order.argsort()
    ends = States(ends.c.index_select(2, back), ends.m.index_select(2, back))
    return layers, ends, packing.forward, packing.backward


def _read_padded(
    bilm: BiLM, types: Tensor, rows: Sequence[Row], states: States, operands: Operands
) -> tuple[list[Tensor], States, list[Row], list[Row]]:
    counts = np.array([len(row) + 2 for row in rows], dtype=np.int64)
    longest = int(counts.max(initial=2))
    index = np.zeros((2, len(rows), longest), dtype=np.int64)
    for n, row in enumerate(rows):
        index[0, n, : counts[n]] = [0, *row, 1]
        index[1, n, : counts[n]] = [1, *row[::-1], 0]
    inputs = torch.from_numpy(index).to(types.device)
    lengths = torch.from_numpy(counts).to(types.device)
    parts: list[tuple[Tensor, ...]] = []
    for start in range(0, longest, WINDOW):
        window = inputs[:, :, start : start + WINDOW]
        rest = (lengths - start).clamp(0, window.size(2))
        output = bilm.run(
            *(types, window[0], window[1], states),
            lengths=rest,
            all_layers=True,
            operands=operands,
        )
        states = output.states
        parts.append(output.layers)
    layers = [torch.cat(layer, dim=2).flatten(1, 2) for layer in zip(*parts, strict=True)]
    forward = [n * longest + np.arange(count) for n, count in enumerate(counts)]
    return layers, states, forward, [places[::-1] for places in forward]


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
