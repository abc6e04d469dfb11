"""The softmax over the vocabulary: tied between the directions, sampled in training, row-sparse.

With 800 k words the softmax holds four fifths of all parameters, yet a training step touches about
one per cent of its rows. So it is not an `nn.Parameter` inside DDP: a step gathers the touched rows
(targets of all ranks and negatives, sorted) into a compact `table`, takes the gradient of that, and
the optimiser writes the rows back. The table is one vector, all weights and then all biases of the
rows, so that processes exchange one buffer.

    rows = distinct(targets, negatives.ids)                       # sorted; of all ranks together
    table = softmax.table(rows).requires_grad_()
    loss = sampled_loss(hidden, targets, weights, rows, table, negatives, vocab_size)

Negatives are n *distinct* log-uniform ids, drawn from (seed, step) alone, the same on every rank.
Logits are corrected by the log of how often an id is expected among them, and a negative that is
the target itself is left out. Where n would reach the vocabulary size, every other word is a
negative and nothing is corrected, which is the full softmax.

The loss is a single autograd function that computes its gradients on the way forward, with three
GEMMs for each piece of the positions: no more than 8 MB of logits exist at a time on a CPU, unless
64 positions need more. Evaluation is `nll`, always over the whole vocabulary.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from elmwright.model.kernels.native import NATIVE_TYPES, native_for
from elmwright.model.launches import wants_few

PIECE = 1 << 21
"""Logits in memory at a time on a CPU: 8 MB in float32, so that the passes over them stay in the
cache (64 MB took 1.1 to 1.6 times as long, with 8,192 negatives and with 50,000 words). With half
as many, two threads take 8 % longer for the softmax of the small model."""
LARGE_PIECE = 1 << 27
"""On other devices: half a gigabyte, because starting an operation takes as long as a small one."""
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
        """A copy of some rows: their weights, and then their biases, in one vector."""
        weight = self.weight.index_select(0, rows)
        return torch.cat([weight.view(-1), self.bias.index_select(0, rows)])

    def state(self) -> dict[str, Tensor]:
        return {"weight": self.weight, "bias": self.bias}

    def load(self, state: dict[str, Tensor]) -> None:
        """Copy the values of another `state()`; the caller has compared the shapes."""
        self.weight.copy_(state["weight"])
        self.bias.copy_(state["bias"])


def parts_of_table(table: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Views of the weights [rows, width] and biases [rows] of a table, or of its gradient."""
    rows = table.numel() // (width + 1)
    return table[: rows * width].view(rows, width), table[rows * width :]


@dataclass(frozen=True)
class Negatives:
    """The ids that represent the rest of the vocabulary in one step."""

    ids: Tensor
    """Distinct ids, sorted, int64."""
    tries: int
    """Draws until they were complete, from which the expected count of each id follows. 0 when
    every id is present: nothing was drawn and nothing is corrected."""


def distinct(*ids: Tensor) -> Tensor:
    """The sorted distinct ids of tensors in main memory, where their number is known at once."""
    return torch.from_numpy(np.unique(np.concatenate([part.numpy().reshape(-1) for part in ids])))


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
    operands: torch.dtype | None = None,
) -> Tensor:
    """Sum over positions of weight × negative log-likelihood against target and negatives.

    hidden [M, P]; targets [M] vocabulary ids; weights [M]; `rows` sorted, holding every target and
    negative; `table` = `softmax.table(rows)`. Differentiable in hidden and table. With `operands`,
    products read that type.
    """
    ids = negatives.ids.to(rows.device)
    shift = log_expected_count(rows, negatives.tries, vocab_size)
    at, columns = torch.searchsorted(rows, targets), torch.searchsorted(rows, ids)
    shifts = shift.index_select(0, at), shift.index_select(0, columns)
    sampled = _Sample(at, weights, shifts[0], columns, shifts[1])
    return _loss(hidden, table, sampled, operands)


def full_table_loss(
    hidden: Tensor,
    targets: Tensor,
    weights: Tensor,
    table: Tensor,
    operands: torch.dtype | None = None,
) -> Tensor:
    """The same sum over the whole vocabulary; `table` holds every row."""
    return _loss(hidden, table, _Sample(targets, weights), operands)


@torch.no_grad()
def nll(hidden: Tensor, targets: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Negative log-likelihood of each target under the full softmax, [M] float32.

    Logits are float32, and so is the sum over a piece of the vocabulary (2,048 terms, in parts: a
    relative error of about 1e-6 at most). Pieces are combined in float64, so that the error does
    not grow with their number.
    """
    hidden = hidden.to(weight.dtype)
    parts = []
    with torch.autocast(hidden.device.type, enabled=False):
        for piece in _pieces(len(hidden), _positions(COLUMNS, hidden.device)):
            h, at = hidden[piece], targets[piece]
            true = (h * weight.index_select(0, at)).sum(1) + bias.index_select(0, at)
            parts.append((_normaliser(h, weight, bias) - true.double()).float())
    return torch.cat(parts) if parts else hidden.new_zeros(0)


def _normaliser(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """log Σ exp(logits) over the vocabulary, [M] float64."""
    total = torch.full((len(hidden),), -torch.inf, dtype=torch.float64, device=hidden.device)
    buffer = hidden.new_empty(len(hidden) * COLUMNS)
    for words in _pieces(len(weight), COLUMNS):
        rows, top = weight[words], hidden.new_full((len(hidden),), -torch.inf)
        logits = buffer[: len(hidden) * len(rows)].view(len(hidden), len(rows))
        torch.mm(hidden, rows.t(), out=logits)
        sums, top = _exponentials(logits, bias[words], None, top)
        total = torch.logaddexp(total, sums.double().log() + top)
    return total


def _exponentials(
    logits: Tensor, bias: Tensor, hit: Tensor | None, top: Tensor
) -> tuple[Tensor, Tensor]:
    """Replace `logits` [rows, columns] by exp(logits + bias − t), where t is the largest of a row
    and of `top`; return their sums and t, [rows] each. The logit at column hit[row] does not count,
    unless that is −1."""
    kernels = native_for(top)
    if kernels is not None and logits.dtype in NATIVE_TYPES:
        top = top.to(torch.float32, copy=True)
        return kernels.softmax_rows(logits, bias.contiguous(), hit, top), top
    exact = logits.to(top.dtype).add_(bias)
    if hit is not None:
        column = hit.clamp_min(0).unsqueeze(1)
        rest = exact.gather(1, column).masked_fill_((hit >= 0).unsqueeze(1), -torch.inf)
        exact.scatter_(1, column, rest)
    top = torch.maximum(exact.amax(1), top)
    exact.sub_(top.unsqueeze(1)).exp_()
    if exact is not logits:
        logits.copy_(exact)
    return exact.sum(1), top


def _pieces(count: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


def _positions(columns: int, device: torch.device) -> int:
    """How many positions to compute at a time, with this many columns."""
    return max(LEAST, (LARGE_PIECE if wants_few(device) else PIECE) // max(1, columns))


@dataclass(frozen=True)
class _Sample:
    """What the positions of a loss are compared with."""

    at: Tensor
    """[M] Row of the table of each target."""
    weights: Tensor
    """[M]"""
    true_shift: Tensor | None = None
    """[M] What is subtracted from the logits of the targets."""
    columns: Tensor | None = None
    """Sorted rows of the table of the negatives; None for all rows."""
    shift: Tensor | None = None
    """What is subtracted from their logits."""


def _loss(hidden: Tensor, table: Tensor, sample: _Sample, operands: torch.dtype | None) -> Tensor:
    with torch.autocast(hidden.device.type, enabled=False):
        loss: Tensor = _Loss.apply(  # type: ignore[no-untyped-call]
            hidden.to(table.dtype), table, sample, operands or table.dtype
        )
    return loss


class _Loss(torch.autograd.Function):
    """The loss, whose gradients are computed on the way forward: backward only scales them."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, table: Tensor, sample: _Sample, operands: torch.dtype
    ) -> Tensor:
        weight, bias = parts_of_table(table, hidden.size(1))
        columns = sample.columns
        w_neg = weight if columns is None else weight.index_select(0, columns)
        b_neg = bias if columns is None else bias.index_select(0, columns)
        b_neg = b_neg if sample.shift is None else b_neg - sample.shift
        w_operand, h_operand = w_neg.to(operands), hidden.to(operands)
        loss = hidden.new_zeros((), dtype=torch.float64)
        d_hidden, d_true = torch.empty_like(hidden), torch.empty_like(hidden)
        d_scores = hidden.new_empty(len(hidden))
        d_w, d_b = torch.zeros_like(w_neg), torch.zeros_like(b_neg)
        positions = _positions(len(w_neg), hidden.device)
        buffer = h_operand.new_empty(min(positions, len(hidden)), len(w_neg))
        for piece in _pieces(len(hidden), positions):
            h, place, weights = hidden[piece], sample.at[piece], sample.weights[piece]
            true_row = weight.index_select(0, place)
            true = (h * true_row).sum(1) + bias.index_select(0, place)
            true = true if sample.true_shift is None else true - sample.true_shift[piece]
            # From here on `exps` is exp(logit − top). Its factor weight/total is applied to the
            # narrow matrices around it, which saves one pass over the wide one.
            exps = torch.mm(h_operand[piece], w_operand.t(), out=buffer[: len(h)])
            sums, top = _exponentials(exps, b_neg, _hits(columns, place), true)
            share = (true - top).exp_()
            total = sums + share
            loss += ((top + total.log() - true) * weights).sum(dtype=torch.float64)
            scale = weights / total
            factor, d_score = (
                scale.unsqueeze(1),
                (share - total) * scale,
            )  # weight × (P(target) − 1)
            torch.mul(exps.mm(w_operand), factor, out=d_hidden[piece])
            d_hidden[piece].addcmul_(d_score.unsqueeze(1), true_row)
            if operands == d_w.dtype:
                d_w.addmm_(exps.t(), h * factor)
                d_b.addmv_(exps.t(), scale)
            else:
                d_w += exps.t().mm((h * factor).to(operands))
                d_b += exps.t().mv(scale.to(operands))
            torch.mul(d_score.unsqueeze(1), h, out=d_true[piece])
            d_scores[piece] = d_score
        d_table = torch.cat(
            [
                _sum_rows(d_true, sample.at, len(weight)).view(-1),
                _sum_rows(d_scores.unsqueeze(1), sample.at, len(weight)).view(-1),
            ]
        )
        d_weight, d_bias = parts_of_table(d_table, hidden.size(1))
        if columns is None:
            d_weight += d_w
            d_bias += d_b
        else:  # distinct, so the order of the sums is fixed
            d_weight.index_copy_(0, columns, d_weight.index_select(0, columns) + d_w)
            d_bias.index_copy_(0, columns, d_bias.index_select(0, columns) + d_b)
        ctx.save_for_backward(d_hidden, d_table)
        return loss.to(hidden.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        d_hidden, d_table = ctx.saved_tensors
        return d_hidden * scale, d_table * scale, None, None


def _hits(columns: Tensor | None, place: Tensor) -> Tensor:
    """The column of each target, if it is also a negative (an accidental hit), else −1."""
    if columns is None:
        return place
    near = torch.searchsorted(columns, place).clamp_max_(len(columns) - 1)
    return torch.where(columns.index_select(0, near) == place, near, -1)


def _sum_rows(values: Tensor, at: Tensor, count: int) -> Tensor:
    """Add up the rows of `values` that share a place: the backward of a lookup, in fixed order."""
    summed: Tensor = torch.ops.aten.embedding_dense_backward(values, at, count, -1, False)
    return summed
