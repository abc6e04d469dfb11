"""The token encoder: a word's characters in, its context-free representation out.

Character embedding → parallel convolutions → max over positions → activation → highway layers →
linear projection. The result depends on the word alone, so each distinct word of a batch is encoded
once.

**Positions that cannot matter are not computed.** Let a word's ids be constant from position n on
(its padding), and a filter have width w. The windows starting at n or later all hold the same w
ids, so they have the same value, and the maximum over all windows equals the maximum over the
starts 0 … n (or all, if there are fewer): every different window is among them, and start n is as
good as the rest. So a group of words needs only n_max + 1 windows per filter. Words are sorted by n
and cut into a few groups with similar n. On the types of 2,560-token batches of WikiText-2 this
leaves 21 % of the windows. The bias is added after the maximum, which is the same number by
monotonicity.

With the kernels in C a word looks at exactly its own windows, where they are in the row of its
characters, and the backward pass follows the one window that won (`kernels.c: convolve`). In torch
the convolutions are GEMMs over gathered windows, channels last: up to twice as fast as `F.conv1d`
forward and backward on CPU for narrow filters, 1.3 times for the widest. On a GPU words are not
grouped, because the sizes of groups depend on the data, and asking for them would wait for the GPU.
"""

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from elmwright.model.chars import N_CHARS, char_ids
from elmwright.model.config import ModelConfig
from elmwright.model.kernels.native import Native, native_for
from elmwright.model.launches import wants_few
from elmwright.model.precision import product

GROUP_LIMITS = (6, 8, 10, 13, 18, 28)
"""Words whose ids vary over at most this many positions are grouped. One more group has the rest.
Most English types vary over 5 to 14 (marks included)."""


class Convolution(nn.Module):
    """A filter bank over character windows, reduced to each filter's maximum."""

    def __init__(self, width: int, char_dim: int, number: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, char_dim, number))
        self.bias = nn.Parameter(torch.empty(number))

    def forward(self, embedded: Tensor, starts: int, operands: torch.dtype | None = None) -> Tensor:
        """[U, positions, char_dim] → [U, number]: the maximum over the first `starts` windows."""
        width, char_dim, number = self.weight.shape
        starts = min(starts, embedded.size(1) - width + 1)
        windows = embedded[:, : starts + width - 1].unfold(1, width, 1).transpose(2, 3)
        windows = windows.reshape(-1, width * char_dim)
        values = product(windows, self.weight.view(-1, number), None, operands)
        values = values.view(-1, starts, number)
        # `amax` is faster forward, but shares the gradient among ties backward at a higher cost.
        best: Tensor = values.max(dim=1).values if values.requires_grad else values.amax(dim=1)
        return best + self.bias

    def in_one(self, embedded: Tensor, operands: torch.dtype | None = None) -> Tensor:
        """The maxima over all windows of [U, char_dim, positions] without the bias, in few
        operations."""
        weight = self.weight.permute(2, 1, 0)
        if operands is not None:
            embedded, weight = embedded.to(operands), weight.to(operands)
        maxima: Tensor = F.conv1d(embedded, weight).max(dim=2).values
        return maxima


class Highway(nn.Module):
    """y = g·relu(x·W_transform + b) + (1 − g)·x with g = σ(x·W_carry + b), as in bilm-tf."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.w_carry = nn.Parameter(torch.empty(width, width))
        self.b_carry = nn.Parameter(torch.empty(width))
        self.w_transform = nn.Parameter(torch.empty(width, width))
        self.b_transform = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor, operands: torch.dtype | None = None) -> Tensor:
        gate = product(x, self.w_carry, self.b_carry, operands).sigmoid()
        changed = product(x, self.w_transform, self.b_transform, operands).relu()
        return torch.lerp(x, changed.to(x.dtype), gate.to(x.dtype))


class Projection(nn.Module):
    """x·W + b, with W stored [in, out] as in the file format."""

    def __init__(self, width: int, projection_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, projection_dim))
        self.bias = nn.Parameter(torch.empty(projection_dim))

    def forward(self, x: Tensor, operands: torch.dtype | None = None) -> Tensor:
        return product(x, self.weight, self.bias, operands)


class TokenEncoder(nn.Module):
    """Character ids [U, max_chars] → representations [U, projection_dim].

    Rows may be shorter (`char_ids`): as long as the longest word and the widest filter together.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.widest = max(width for width, _ in config.filters)
        self.char_embed = nn.Parameter(torch.empty(N_CHARS - 1, config.char_dim))
        self.conv = nn.ModuleList(
            Convolution(width, config.char_dim, number) for width, number in config.filters
        )
        self.highway = nn.ModuleList(Highway(config.n_filters) for _ in range(config.n_highway))
        self.projection = (
            Projection(config.n_filters, config.projection_dim) if config.has_projection else None
        )

    def ids(self, words: Sequence[str]) -> Tensor:
        """The input of `forward` for these words."""
        return torch.from_numpy(char_ids(words, self.config.max_chars, self.widest))

    def forward(self, chars: Tensor, operands: torch.dtype | None = None) -> Tensor:
        """With `operands`, products read that type."""
        if chars.size(0) == 0:
            return self.char_embed.new_zeros(0, self.config.projection_dim)
        return self.above(self.maxima(chars, operands), operands)

    def maxima(self, chars: Tensor, operands: torch.dtype | None = None) -> Tensor:
        """The maxima of every filter, [U, filters]."""
        chars = chars.to(torch.int32)
        kernels = self.kernels()
        if kernels is not None:
            weights = [conv.weight for conv in self._banks()]
            maxima: Tensor = _Maxima.apply(  # type: ignore[no-untyped-call]
                kernels, chars, self.char_embed, *weights
            )
            return maxima + torch.cat([conv.bias for conv in self._banks()])
        if wants_few(chars.device):
            embedded = F.embedding(chars, _with_mask(self.char_embed)).transpose(1, 2)
            maxima = torch.cat([conv.in_one(embedded, operands) for conv in self._banks()], dim=1)
            return maxima + torch.cat([conv.bias for conv in self._banks()])
        varying = varying_positions(chars)
        order = varying.argsort(stable=True)
        x = torch.cat(
            [
                self.convolve(chars.index_select(0, order[start:end]), longest, operands)
                for start, end, longest in groups(varying)
            ]
        )
        # Back to the caller's order, by a lookup with a deterministic backward.
        return F.embedding(order.argsort(), x)

    def kernels(self) -> Native | None:
        """The kernels in C, if `maxima` uses them. Then a word's maxima have the same bits whatever
        it is encoded with."""
        if torch.is_autocast_enabled("cpu"):
            return None
        return native_for(*self.conv.parameters(), self.char_embed)

    def above(self, x: Tensor, operands: torch.dtype | None = None) -> Tensor:
        """The layers above the convolutions: [U, filters] → [U, projection_dim]."""
        x = x.relu() if self.config.activation == "relu" else x.tanh()
        for highway in self.highway:
            x = highway(x, operands)
        if self.projection is not None:
            x = self.projection(x, operands)
        return x

    def convolve(self, chars: Tensor, longest: int, operands: torch.dtype | None = None) -> Tensor:
        """`maxima` in torch, for words that vary over at most `longest` positions."""
        embedded = F.embedding(chars[:, : longest + self.widest], _with_mask(self.char_embed))
        return torch.cat([conv(embedded, longest + 1, operands) for conv in self.conv], dim=1)

    def _banks(self) -> list[Convolution]:
        return [conv for conv in self.conv if isinstance(conv, Convolution)]

    @torch.no_grad()
    def initialize(self, generator: torch.Generator) -> None:
        """The initial values of bilm-tf, as a pure function of the generator."""
        self.char_embed.uniform_(-1.0, 1.0, generator=generator)
        for conv in self._banks():
            if self.config.activation == "relu":
                conv.weight.uniform_(-0.05, 0.05, generator=generator)
            else:
                fan_in = conv.weight.size(0) * conv.weight.size(1)
                conv.weight.normal_(0.0, 1 / math.sqrt(fan_in), generator=generator)
            conv.bias.zero_()
        std = 1 / math.sqrt(self.config.n_filters)
        for highway in self.highway:
            assert isinstance(highway, Highway)  # noqa: S101
            highway.w_carry.normal_(0.0, std, generator=generator)
            highway.b_carry.fill_(-2.0)
            highway.w_transform.normal_(0.0, std, generator=generator)
            highway.b_transform.zero_()
        if self.projection is not None:
            self.projection.weight.normal_(0.0, std, generator=generator)
            self.projection.bias.zero_()


class _Maxima(torch.autograd.Function):
    """Each filter's maximum over the windows of each word, by the kernels in C."""

    @staticmethod
    def forward(
        ctx: Any, kernels: Native, chars: Tensor, char_embed: Tensor, *weights: Tensor
    ) -> Tensor:
        embedded = F.embedding(chars, _with_mask(char_embed))
        starts = (varying_positions(chars) + 1).to(torch.int32)
        filters = sum(weight.size(2) for weight in weights)
        maxima = embedded.new_empty(len(chars), filters)
        places = torch.empty(len(chars), filters, dtype=torch.int16)
        weights = tuple(weight.contiguous() for weight in weights)
        for offset, weight in _offsets(weights):
            kernels.convolve(embedded, starts, weight, maxima, places, offset)
        ctx.save_for_backward(chars, embedded, places, *weights)
        ctx.kernels = kernels
        return maxima

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        chars, embedded, places, *weights = ctx.saved_tensors
        grad, d_embedded = grad.contiguous(), torch.zeros_like(embedded)
        d_weights = [
            ctx.kernels.convolve_back(embedded, weight, grad, places, offset, d_embedded)
            for offset, weight in _offsets(weights)
        ]
        d_table = torch.ops.aten.embedding_dense_backward(d_embedded, chars, N_CHARS, -1, False)
        return None, None, d_table[1:], *d_weights


def _offsets(weights: Sequence[Tensor]) -> list[tuple[int, Tensor]]:
    """Each filter bank with the number of filters before it."""
    sizes = [weight.size(2) for weight in weights]
    return list(zip(accumulate([0, *sizes[:-1]]), weights, strict=True))


def _with_mask(char_embed: Tensor) -> Tensor:
    """The embeddings with those of the mask, 0, in front, which are zero and stay so."""
    return F.pad(char_embed, (0, 0, 1, 0))


def varying_positions(chars: Tensor) -> Tensor:
    """For each row the smallest n such that the ids from position n on are all the same."""
    position = torch.arange(1, chars.size(1) + 1, device=chars.device)
    return ((chars != chars[:, -1:]) * position).amax(dim=1)


def groups(varying: Tensor) -> list[tuple[int, int, int]]:
    """(start, end, longest) of each non-empty group of the rows sorted by `varying`."""
    ordered = varying.sort().values
    limits = torch.tensor(GROUP_LIMITS, device=varying.device)
    ends = [*torch.searchsorted(ordered, limits, right=True).tolist(), len(ordered)]
    starts = [0, *ends[:-1]]
    spans = [(start, end) for start, end in zip(starts, ends, strict=True) if end > start]
    longest = ordered[[end - 1 for _, end in spans]].tolist()
    return [(start, end, n) for (start, end), n in zip(spans, longest, strict=True)]
