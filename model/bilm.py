"""The bidirectional language model: one token encoder, and a stack of LSTMs in each direction.

Both directions read left to right in their own order: the caller passes, for each row, the sequence
of types that each direction reads (a backward row lists its words in reverse). Training packs
sentences from a stream and inference frames single sentences, both with this code.

Direction is the first axis of every tensor inside (0 forward, 1 backward), so a layer of both
directions is one call of `projected_lstm`. Outside, tensors are [row, time, width].

`forward` is shaped for DistributedDataParallel: tensors in, a dataclass of tensors out, all
parameters used on every call. Each lookup is an `F.embedding`, whose backward is deterministic
(that of `W[ids]` is not on several threads).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor, nn

from elmwright.model.config import ModelConfig
from elmwright.model.encoder import TokenEncoder
from elmwright.model.lstm.projected import projected_lstm
from elmwright.model.precision import EXACT, Operands


@dataclass(frozen=True)
class States:
    """The states of the LSTMs between two windows of a set of rows."""

    c: Tensor
    """Cells, [2 directions, layers, rows, dim]."""
    m: Tensor
    """Projected outputs before the residual sum, [2, layers, rows, projection_dim]."""

    @classmethod
    def zeros(
        cls,
        config: ModelConfig,
        rows: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> "States":
        lead = (2, config.n_layers, rows)
        return cls(
            torch.zeros(*lead, config.dim, device=device, dtype=dtype),
            torch.zeros(*lead, config.projection_dim, device=device, dtype=dtype),
        )

    def detach(self) -> "States":
        return States(self.c.detach(), self.m.detach())

    def rows(self, which: slice) -> "States":
        return States(self.c[:, :, which], self.m[:, :, which])


@dataclass(frozen=True)
class Output:
    """One window of the biLM."""

    top_forward: Tensor
    """Top layer of the forward model after dropout, [N, T, projection_dim]."""
    top_backward: Tensor
    """The same of the backward model, in the order it read."""
    states: States
    """States after the window, attached to the graph; `detach()` them between windows."""
    layers: tuple[Tensor, ...] = ()
    """With `all_layers`: the encoder's output and each LSTM layer's, [2, N, T, projection_dim],
    before the dropout that follows them."""


class LSTMLayer(nn.Module):
    """The parameters of one layer in both directions; matrices as in the file format."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        dim, proj = config.dim, config.projection_dim
        self.config = config
        self.w = nn.Parameter(torch.empty(2, 2 * proj, 4 * dim))
        self.b = nn.Parameter(torch.empty(2, 4 * dim))
        self.w_proj = nn.Parameter(torch.empty(2, dim, proj))

    def forward(
        self,
        x: Tensor,
        c: Tensor,
        m: Tensor,
        lengths: Tensor | None,
        resets: Tensor | None,
        operands: torch.dtype | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        clips = self.config.cell_clip, self.config.proj_clip
        weights = self.w, self.b, self.w_proj
        return projected_lstm(x, *weights, c, m, *clips, lengths, resets, operands)

    @torch.no_grad()
    def initialize(self, generator: torch.Generator) -> None:
        for matrix in (self.w, self.w_proj):
            limit = math.sqrt(6 / (matrix.size(1) + matrix.size(2)))
            matrix.uniform_(-limit, limit, generator=generator)
        self.b.zero_()


class BiLM(nn.Module):
    """Encoder and LSTMs. Initial values are those of bilm-tf, a pure function of the seed."""

    def __init__(self, config: ModelConfig, generator: torch.Generator | int = 0) -> None:
        super().__init__()
        self.config = config
        self.encoder = TokenEncoder(config)
        self.lstm = nn.ModuleList(LSTMLayer(config) for _ in range(config.n_layers))
        if isinstance(generator, int):
            generator = torch.Generator().manual_seed(generator)
        for part in (self.encoder, *self.lstm):
            part.initialize(generator)

    def forward(
        self,
        chars: Tensor,
        forward_index: Tensor,
        backward_index: Tensor,
        states: States,
        dropout: Sequence[Tensor] | None = None,
        lengths: Tensor | None = None,
        resets: Tensor | None = None,
        operands: Operands = EXACT,
    ) -> Output:
        """Encode the types `chars` [U, max_chars], then run both directions over a window."""
        types = self.encoder(chars, operands.encoder)
        rest = states, dropout, lengths, resets
        return self.run(types, forward_index, backward_index, *rest, operands=operands)

    def run(
        self,
        types: Tensor,
        forward_index: Tensor,
        backward_index: Tensor,
        states: States,
        dropout: Sequence[Tensor] | None = None,
        lengths: Tensor | None = None,
        resets: Tensor | None = None,
        all_layers: bool = False,
        operands: Operands = EXACT,
    ) -> Output:
        """Run both directions over a window of encoded types [U, projection_dim].

        `forward_index` and `backward_index` [N, T] are the types that each direction reads,
        `dropout` masks as of dropout.py, and `lengths` [N] the lengths of rows that are
        shorter than T (outputs past a row's end have no meaning, and its states are those at its
        end). Where `resets` [N, T] is true, a row forgets its states before the step.
        """
        resets = None if resets is None else resets.t()
        index = torch.stack([forward_index, backward_index]).transpose(1, 2)
        x = F.embedding(index, types)
        layers, cells, projections = [x], [], []
        for number, layer in enumerate(self.lstm):
            if dropout is not None:
                x = x * dropout[number]
            state = states.c[:, number], states.m[:, number]
            y, c, m = layer(x, *state, lengths, resets, operands.lstm)
            x = x + y if self.config.residual and number else y
            layers.append(x)
            cells.append(c)
            projections.append(m)
        if dropout is not None:
            x = x * dropout[-1]
        return Output(
            x[0].transpose(0, 1),
            x[1].transpose(0, 1),
            States(torch.stack(cells, dim=1), torch.stack(projections, dim=1)),
            tuple(layer.transpose(1, 2) for layer in layers) if all_layers else (),
        )
