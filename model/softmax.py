"""The softmax over the vocabulary: tied between the directions, sampled in training, row-sparse.

With 800 k words the softmax holds four fifths of all parameters, yet a training step touches about
one per cent of its rows. So it is not an `nn.Parameter` inside DDP: a step gathers the touched rows
(targets of all ranks and negatives, sorted) into a compact `table` [U, P+1], weight and bias side
by side, takes the gradient of that, and the optimiser writes the rows back.

    rows = torch.unique(torch.cat([targets, negatives.ids]))      # sorted; of all ranks together
    table = softmax.table(rows).requires_grad_()
    loss = sampled_loss(hidden, targets, weights, rows, table, negatives, vocab_size)

Negatives are n *distinct* log-uniform ids, drawn from (seed, step) alone, the same on every rank.
Logits are corrected by the log of how often an id is expected among them, and a negative that is
the target itself is left out. Where n would reach the vocabulary size, `full_table_loss` takes the
place of `sampled_loss`: as n grows, one becomes the other.

The losses are single autograd functions that compute their gradients on the way forward, piece by
piece: no more than 4 MB of logits exist at a time, whatever V and the number of positions are.
Sampled: three GEMMs. Full: four (logits are computed twice, for the normaliser and again for the
gradient), because V = 800 k times 2,560 positions is 8 GB. Evaluation is `nll`, always full.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

PIECE = 1 << 20
"""Logits in memory at a time: 4 MB in float32, so that the passes over them stay in the cache
(64 MB took 1.1 to 1.6 times as long, with 8,192 negatives and over a vocabulary of 50,000)."""
LEAST = 64
"""Positions at a time, even if their logits are more than that."""
COLUMNS = 1 << 11
"""Words at a time where the sum runs over the whole vocabulary."""
MOST = 0.75
"""From this share of the vocabulary on, negatives are not drawn one by one (which then takes more
than about twenty draws for each)."""
UNIGRAM_ROWS = 0.3
"""Factor on the initial rows where the biases are the unigram model. With rows of the usual size
the first logits would be that model plus noise of the scale of the hidden values."""


class Softmax:
    """Weight [V, P] and bias [V]: plain tensors."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        self.weight = weight
        self.bias = bias

    @classmethod
    def create(
        cls,
        vocab_size: int,
        projection_dim: int,
        seed: int,
        device: torch.device | str = "cpu",
        counts: npt.NDArray[np.int64] | None = None,
    ) -> "Softmax":
        """Fresh values, a pure function of the arguments.

        Without `counts` as in bilm-tf: biases of 0. With the train counts of all ids, the model
        starts as the unigram model (add-one smoothing): short runs hardly train the biases, which
        differ by 10 between frequent and rare words.
        """
        generator = torch.Generator().manual_seed(seed)
        weight = torch.empty(vocab_size, projection_dim)
        weight.normal_(0.0, projection_dim**-0.5, generator=generator)
        bias = torch.zeros(vocab_size)
        if counts is not None:
            weight.mul_(UNIGRAM_ROWS)
            smoothed = torch.from_numpy(counts + 1.0)
            bias.copy_((smoothed / smoothed.sum()).log())
        return cls(weight.to(device), bias.to(device))

    @property
    def vocab_size(self) -> int:
        return self.weight.size(0)

    def table(self, rows: Tensor) -> Tensor:
        """A copy of some rows, bias in the last column."""
        return torch.cat(
            [self.weight.index_select(0, rows), self.bias.index_select(0, rows).unsqueeze(1)], dim=1
        )

    def state(self) -> dict[str, Tensor]:
        return {"weight": self.weight, "bias": self.bias}

    def load(self, state: dict[str, Tensor]) -> None:
        """Copy the values of another `state()`; the caller has compared the shapes."""
        self.weight.copy_(state["weight"])
        self.bias.copy_(state["bias"])


@dataclass(frozen=True)
class Negatives:
    """The ids that represent the rest of the vocabulary in one step."""

    ids: Tensor
    """Distinct ids, sorted, int64."""
    tries: int
    """Draws until they were complete, from which the expected count of each id follows. 0 when
    every id is present: nothing was drawn and nothing is corrected."""


def draw_negatives(seed: int, step: int, n: int, vocab_size: int) -> Negatives:
    """n distinct log-uniform ids, a pure function of (seed, step).

    Draws are numbered; draw k is a hash of (seed, step, k), so the result depends on no library's
    random generator. Ids are taken in order of their first draw until there are n. If that is most
    of the vocabulary, the last ones take many draws (n = V − 1 at V = 793,471 over 100 M), and
    `_race` draws from the same distribution in one pass over the vocabulary.
    """
    if n >= vocab_size:
        return Negatives(torch.arange(vocab_size), 0)
    key = _splitmix64(_splitmix64(np.array([seed % 2**64], np.uint64)) + np.uint64(step))
    if n > MOST * vocab_size:
        return _race(key, n, vocab_size)
    draws = 4 * n
    while True:
        ids = np.exp(_uniform(key, draws) * np.log(vocab_size + 1.0)).astype(np.int64) - 1
        distinct, first = np.unique(np.minimum(ids, vocab_size - 1), return_index=True)
        if len(distinct) >= n:
            break
        draws *= 2
    tries = int(np.partition(first, n - 1)[n - 1]) + 1
    return Negatives(torch.from_numpy(distinct[first < tries]), tries)


def _race(key: npt.NDArray[np.uint64], n: int, vocab_size: int) -> Negatives:
    """The first n ids to be drawn, without the draws.

    Let draws come at the events of a Poisson process of rate 1. Then the first draws of the ids are
    independent: that of k comes at an exponential time of rate P(k), and the n earliest are exactly
    the first n distinct ids. Until the last of them, id k was drawn again P(k) × (time since its
    first) times on average; `tries` adds that up in place of one more random number.
    """
    ids = np.arange(vocab_size)
    p = np.log1p(1 / (ids + 1.0)) / np.log1p(vocab_size)
    time = -np.log1p(-_uniform(key, vocab_size)) / p
    earliest = np.sort(np.argpartition(time, n - 1)[:n])
    repeats = (p[earliest] * (time[earliest].max() - time[earliest])).sum()
    return Negatives(torch.from_numpy(earliest), n + round(float(repeats)))


def _uniform(key: npt.NDArray[np.uint64], count: int) -> npt.NDArray[np.float64]:
    """Numbers in [0, 1), a pure function of the key."""
    drawn = _splitmix64(key + _GOLDEN * np.arange(count, dtype=np.uint64))
    return np.asarray((drawn >> np.uint64(11)) * 2.0**-53, dtype=np.float64)


# Not `hash64` of format/lanes.py: it combines keys by XOR, so resumed runs would draw others.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _splitmix64(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finaliser of splitmix64: a bijection of 64-bit integers that looks random."""
    x = x + _GOLDEN
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def log_expected_count(ids: Tensor, tries: int, vocab_size: int) -> Tensor:
    """log of the chance that each id is among the negatives after `tries` draws, float32.

    P(k) = log1p(1/(k+1)) / log(V+1). In float64 and with log1p/expm1 throughout: the plain formula
    in float32 is up to 4 % wrong for the rarest of 800 k words.
    """
    if tries == 0:
        return torch.zeros(ids.shape, device=ids.device)
    p = torch.log1p(1 / (ids.double() + 1)) / np.log1p(vocab_size)
    chance: Tensor = -torch.expm1(tries * torch.log1p(-p))
    return chance.log().float()


def sampled_loss(
    hidden: Tensor,
    targets: Tensor,
    weights: Tensor,
    rows: Tensor,
    table: Tensor,
    negatives: Negatives,
    vocab_size: int,
) -> Tensor:
    """Sum over positions of weight × negative log-likelihood against target and negatives.

    hidden [M, P]; targets [M] vocabulary ids; weights [M]; `rows` sorted, holding every target and
    negative; `table` [U, P+1] = `softmax.table(rows)`. Differentiable in hidden and table.
    """
    ids = negatives.ids.to(rows.device)
    true_shift = log_expected_count(targets, negatives.tries, vocab_size)
    shift = log_expected_count(ids, negatives.tries, vocab_size)
    at, columns = torch.searchsorted(rows, targets), torch.searchsorted(rows, ids)
    return _loss(_SampledLoss, hidden, table, at, weights, true_shift, columns, shift)


def full_table_loss(hidden: Tensor, targets: Tensor, weights: Tensor, table: Tensor) -> Tensor:
    """The same sum over the whole vocabulary; `table` [V, P+1] holds every row."""
    return _loss(_FullLoss, hidden, table, targets, weights)


@torch.no_grad()
def nll(hidden: Tensor, targets: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Negative log-likelihood of each target under the full softmax, [M] float32.

    Logits are float32, and so is the sum over a piece of the vocabulary (2,048 terms, added
    pairwise: a relative error of about 1e-6 at most). Pieces are combined in float64, so that the
    error does not grow with their number.
    """
    hidden = hidden.to(weight.dtype)
    parts = []
    with torch.autocast(hidden.device.type, enabled=False):
        for piece in _pieces(len(hidden), _positions(COLUMNS)):
            h, at = hidden[piece], targets[piece]
            true = (h * weight.index_select(0, at)).sum(1) + bias.index_select(0, at)
            parts.append((_normaliser(h, weight, bias) - true.double()).float())
    return torch.cat(parts) if parts else hidden.new_zeros(0)


def _normaliser(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """log Σ exp(logits) over the vocabulary, [M] float64."""
    total = torch.full((len(hidden),), -torch.inf, dtype=torch.float64, device=hidden.device)
    for words in _pieces(len(weight), COLUMNS):
        logits = torch.addmm(bias[words], hidden, weight[words].t())
        top = logits.amax(1)  # logsumexp by hand, in place: no second buffer
        sums = logits.sub_(top.unsqueeze(1)).exp_().sum(1)
        total = torch.logaddexp(total, sums.double().log() + top)
    return total


def _pieces(count: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


def _positions(columns: int) -> int:
    """How many positions to compute at a time, with this many columns."""
    return max(LEAST, PIECE // max(1, columns))


def _loss(function: Any, hidden: Tensor, table: Tensor, *rest: Tensor) -> Tensor:
    with torch.autocast(hidden.device.type, enabled=False):
        loss: Tensor = function.apply(hidden.to(table.dtype), table, *rest)
    return loss


class _LossWithGradients(torch.autograd.Function):
    """A scalar whose gradients were computed on the way forward: backward only scales them."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        d_hidden, d_table = ctx.saved_tensors
        return (d_hidden * scale, d_table * scale, *[None] * (len(ctx.needs_input_grad) - 2))


class _SampledLoss(_LossWithGradients):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        table: Tensor,
        at: Tensor,
        weights: Tensor,
        true_shift: Tensor,
        columns: Tensor,
        shift: Tensor,
    ) -> Tensor:
        negative = table.index_select(0, columns)
        w_neg, b_neg = negative[:, :-1].contiguous(), negative[:, -1] - shift
        loss = hidden.new_zeros((), dtype=torch.float64)
        d_hidden, d_true = torch.empty_like(hidden), hidden.new_empty(len(hidden), table.size(1))
        d_w, d_b = torch.zeros_like(w_neg), torch.zeros_like(b_neg)
        for piece in _pieces(len(hidden), _positions(len(columns))):
            h, place, weight = hidden[piece], at[piece], weights[piece]
            true_row = table.index_select(0, place)
            true = (h * true_row[:, :-1]).sum(1) + true_row[:, -1] - true_shift[piece]
            logits = torch.addmm(b_neg, h, w_neg.t())
            _leave_out(logits, columns, place)
            top = torch.maximum(logits.amax(1), true)
            logits.sub_(top.unsqueeze(1)).exp_()
            share = (true - top).exp_()
            total = logits.sum(1) + share
            loss += ((top + total.log() - true) * weight).sum(dtype=torch.float64)

            # From here on `logits` is exp(logit − top). Its factor weight/total is applied to the
            # narrow matrices around it, which saves one pass over the wide one.
            factor = (weight / total).unsqueeze(1)
            d_score = ((share - total) * (weight / total)).unsqueeze(1)  # weight × (P(target) − 1)
            torch.mm(logits, w_neg, out=d_hidden[piece])
            d_hidden[piece].mul_(factor).addcmul_(d_score, true_row[:, :-1])
            d_w.addmm_(logits.t(), h * factor)
            d_b.addmv_(logits.t(), factor.squeeze(1))
            torch.mul(d_score, h, out=d_true[piece, :-1])
            d_true[piece, -1:] = d_score
        d_table = _sum_rows(d_true, at, len(table))
        d_table.index_copy_(
            0, columns, d_table.index_select(0, columns) + torch.cat([d_w, d_b.unsqueeze(1)], dim=1)
        )
        ctx.save_for_backward(d_hidden, d_table)
        return loss.to(hidden.dtype)


class _FullLoss(_LossWithGradients):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, table: Tensor, at: Tensor, weights: Tensor) -> Tensor:
        weight, bias = table[:, :-1].contiguous(), table[:, -1].contiguous()
        loss = hidden.new_zeros((), dtype=torch.float64)
        scale = weights.unsqueeze(1)
        d_true = torch.cat([-scale * hidden, -scale], dim=1).to(table.dtype)
        d_hidden = -scale * weight.index_select(0, at)
        d_w, d_b = torch.zeros_like(weight), torch.zeros_like(bias)
        for piece in _pieces(len(hidden), _positions(COLUMNS)):
            h, true_row = hidden[piece], table.index_select(0, at[piece])
            true = (h * true_row[:, :-1]).sum(1) + true_row[:, -1]
            total = _normaliser(h, weight, bias)
            loss += ((total - true.double()) * weights[piece]).sum()
            shift = total.to(h.dtype).unsqueeze(1)
            for words in _pieces(len(table), COLUMNS):
                logits = torch.addmm(bias[words], h, weight[words].t())
                d_logits = logits.sub_(shift).exp_().mul_(scale[piece])
                d_hidden[piece].addmm_(d_logits, weight[words])
                d_w[words].addmm_(d_logits.t(), h)
                d_b[words] += d_logits.sum(0)
        d_table = _sum_rows(d_true, at, len(table))
        d_table[:, :-1] += d_w
        d_table[:, -1] += d_b
        ctx.save_for_backward(d_hidden, d_table)
        return loss.to(hidden.dtype)


def _leave_out(logits: Tensor, columns: Tensor, place: Tensor) -> None:
    """Take a target that was also drawn as a negative out of its own row (accidental hit)."""
    near = torch.searchsorted(columns, place).clamp_max_(len(columns) - 1)
    hit = columns.index_select(0, near) == place
    near = near.unsqueeze(1)
    kept = logits.gather(1, near).masked_fill_(hit.unsqueeze(1), -torch.inf)
    logits.scatter_(1, near, kept)


def _sum_rows(values: Tensor, at: Tensor, count: int) -> Tensor:
    """Add up the rows of `values` that share a place: the backward of a lookup, in fixed order."""
    summed: Tensor = torch.ops.aten.embedding_dense_backward(values, at, count, -1, False)
    return summed
