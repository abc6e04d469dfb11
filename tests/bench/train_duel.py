"""Training steps of one model on both sides: AllenNLP's modules, and ours in each precision.

Every side reads the same windows, negatives and initial weights (workload.py), so in float32 its
losses must be the peer's. Each warms up for `WARM_UP` steps, and then all take turns, `STEPS` steps
each. Before and after our steps a large product is timed in the same process, and the share of its
rate that a step's useful arithmetic reaches is the median over the rounds.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

import numpy as np
import torch
from duel import Side
from verdict import Bar, processor_flags, shown
from workload import PEER_PYTHON

from elmwright.model.config import ModelConfig
from elmwright.model.flops import step_flops

WARM_UP, STEPS = 3, 3
SAME = {"fp32": 1e-4, "bf16": 1e-2}
"""How much the losses of a precision may differ from the peer's, relative to them."""


@dataclass(frozen=True)
class Duel:
    """What one comparison gave."""

    ours: dict[str, Side]
    """By precision."""
    peer: Side
    tokens: int
    """Per step."""
    flops: float
    """Useful arithmetic per step."""

    def ratio(self, precision: str) -> float:
        return self.peer.median / self.ours[precision].median

    def share(self, precision: str) -> float:
        """The part of a large product's rate that our steps reach."""
        side = self.ours[precision]
        beside = [mean(pair) for pair in zip(side.gemms[::2], side.gemms[1::2], strict=True)]
        rates = zip(side.seconds, beside, strict=True)
        return median(self.flops / seconds / gemm for seconds, gemm in rates)

    def gap(self, precision: str) -> float:
        """The largest relative difference of a loss to the peer's: after the warm-up, and in the
        last step of every round."""
        pairs = zip(self.ours[precision].losses, self.peer.losses, strict=True)
        return max(abs(ours - peer) / peer for ours, peer in pairs)

    def speed_bar(self, name: str, precision: str, least: float, hoped: float | None) -> Bar:
        rate = {
            side.name: f"{shown(self.tokens / side.median)} tokens/s"
            for side in (self.ours[precision], self.peer)
        }
        return Bar(
            f"{name}, {precision}, against AllenNLP",
            self.ratio(precision),
            least,
            is_least=True,
            hoped=hoped,
            ours=rate[precision],
            peer=f"AllenNLP {rate['allennlp']}",
        )

    def loss_bar(self, name: str, precision: str) -> Bar:
        return Bar(
            f"{name}, {precision}: largest difference of a loss",
            self.gap(precision),
            SAME[precision],
        )


def precisions() -> tuple[str, ...]:
    """What this processor has instructions for."""
    has_bf16 = {"avx512_bf16", "amx_bf16"} & set(processor_flags())
    return ("fp32", "bf16") if has_bf16 else ("fp32",)


def has_wide_vectors() -> bool:
    """Whether products are so fast that other work weighs more, and bars are lower."""
    return "avx512f" in processor_flags()


def train_duel(
    folder: Path,
    config: ModelConfig,
    threads: int,
    rounds: int,
    kinds: tuple[str, ...],
    dropout: float = 0.0,
) -> Duel:
    """Run it, and print a line for each side."""
    work = np.load(folder / "work.npz")
    windows, negatives = work["windows"], work["negatives"].shape[1]
    tokens = windows[0, :, 1:-1].size
    flops = mean(
        step_flops(config, tokens, negatives, torch.from_numpy(work["chars"][np.unique(read)]))
        for read in windows[WARM_UP:, :, 1:-1]
    )
    where = str(folder), str(threads)

    def side(name: str, python: str, script: str, precision: str) -> Side:
        return Side(name, python, script, *where, precision, str(dropout), threads=threads)

    ours = {kind: side(kind, sys.executable, "side_ours.py", kind) for kind in kinds}
    peer = side("allennlp", str(PEER_PYTHON), "side_allennlp.py", "fp32")
    sides = [*ours.values(), peer]
    for each in sides:
        each.warm_up(WARM_UP)
    for _ in range(rounds):
        for each in sides:
            each.gemm()
            each.run(STEPS)
            if each is not peer:
                each.gemm()
    for each in sides:
        each.close()
    duel = Duel(ours, peer, tokens, flops)
    _print(duel, dropout)
    return duel


def _print(duel: Duel, dropout: float) -> None:
    print(
        f"  {'side':9} {'tokens/s':>9} {'spread':>11} {'large product':>15}   "
        f"loss   dropout {dropout}"
    )
    for side in (*duel.ours.values(), duel.peer):
        print(
            f"  {side.name:9} {duel.tokens / side.median:>9,.0f} {side.spread:>11} "
            f"{median(side.gemms) / 1e9:>7.1f} GFLOP/s   {side.losses[0]:.5f} → "
            f"{side.losses[-1]:.5f}"
        )
    for name in duel.ours:
        print(
            f"  {name}: {duel.ratio(name):.2f} × AllenNLP; {duel.flops / 1e9:,.0f} GFLOP per step "
            f"at {duel.share(name):.0%} of a large product in float32 beside it; losses differ by "
            f"{duel.gap(name):.1e}",
            flush=True,
        )
