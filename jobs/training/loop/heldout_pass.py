"""One pass of a model over the blocks of a held-out set; `evaluate.py` says what it is for.

States pass along a lane from block to block. In the same pass the first sentences of the set, the
probe, are summed up apart. Which of them a block holds depends on the blocks before it, which
other processes may have read: so the processes tell each other how many sentences they have, a
round of blocks at a time, until the probe is complete.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from elmwright.jobs.checkpoints.contents import Probe
from elmwright.jobs.training.loop.exchange import Ranks
from elmwright.jobs.training.loop.stream import Batch, Blocks, Row, evaluation_rounds, round_batches
from elmwright.model.bilm import BiLM, States
from elmwright.model.softmax import Softmax, nll
from elmwright.pipeline.format.block import UNK_ID
from elmwright.pipeline.progress import Advance


class EvaluationStopped(Exception):  # noqa: N818 - a state, not a mistake
    """Training was asked to stop while it evaluated."""


def exp(value: float) -> float:
    """Also of a model that has gone astray."""
    return math.exp(value) if value < 700 else value if math.isnan(value) else math.inf


_FORWARD, _BACKWARD, _TOKENS, _UNKNOWN, _CHARACTERS = range(5)
_PROBE = 5  # where forward, backward and tokens of the probe stand


class Pass:
    """One pass over the blocks of a held-out set, with sums of every lane."""

    def __init__(
        self,
        bilm: BiLM,
        softmax: Softmax,
        blocks: Blocks,
        ranks: Ranks,
        lanes: int,
        window: int,
        probe: int,
        stopped: Callable[[], bool] | None,
        advance: Advance,
    ) -> None:
        self._bilm, self._softmax, self._blocks, self._ranks = bilm, softmax, blocks, ranks
        self._lanes, self._window, self._mine = lanes, window, ranks.lanes(lanes)
        self._probe, self._left = probe, probe
        self._stopped, self._advance = stopped, advance
        self._sums = torch.zeros(lanes, 8, dtype=torch.float64, device=ranks.device)

    @torch.no_grad()
    def run(self, count: int, *, only_probe: bool = False) -> None:
        """Score the first `count` blocks, or as many of them as the probe takes."""
        states = States.zeros(self._bilm.config, len(self._mine), self._ranks.device)
        for here in evaluation_rounds(self._blocks, count, self._mine, self._lanes):
            limits = self._share(here)
            rows = [
                row if steps or not only_probe else None
                for row, steps in zip(here, limits, strict=True)
            ]
            for lane, row in zip(self._mine, rows, strict=True):
                self._sums[lane, _CHARACTERS] += row.characters if row is not None else 0
            behind = torch.tensor(limits).unsqueeze(1)
            at = torch.arange(self._window)
            for batch in round_batches(self._blocks, rows, self._window):
                self._look()
                inside = batch.weights * (at < behind)
                states = self._score(batch, inside, states)
                self._advance(int((inside if only_probe else batch.weights).sum()))
                at = at + self._window
            if only_probe and not self._left:
                break

    def totals(self) -> list[float]:
        """The sums of all lanes, the same on every process: they are added lane after lane."""
        totals = [0.0] * self._sums.size(1)
        for row in self._ranks.sum(self._sums.clone()).tolist():
            totals = [total + value for total, value in zip(totals, row, strict=True)]
        return totals

    def probe(self) -> Probe:
        forward, backward, tokens = self.totals()[_PROBE:]
        mean = (forward + backward) / tokens / 2
        return Probe(self._probe - self._left, int(tokens), exp(mean))

    def _share(self, rows: Sequence[Row | None]) -> list[int]:
        """How many steps of each of these blocks belong to the probe.

        Its sentences are those of the first blocks, which several processes may hold.
        """
        if not self._left:
            return [0] * len(rows)
        counts = torch.zeros(self._lanes, dtype=torch.int64, device=self._ranks.device)
        for lane, row in zip(self._mine, rows, strict=True):
            counts[lane] = len(row.ends) if row is not None else 0
        taken: list[int] = []
        for sentences in self._ranks.sum(counts).tolist():
            taken.append(min(sentences, self._left))
            self._left -= taken[-1]
        return [
            int(row.ends[taken[lane] - 1]) if row is not None and taken[lane] else 0
            for lane, row in zip(self._mine, rows, strict=True)
        ]

    def _look(self) -> None:
        if self._stopped is None:
            return
        wish = torch.tensor([float(self._stopped())], device=self._ranks.device)
        if self._ranks.sum(wish).item():
            raise EvaluationStopped

    def _score(self, batch: Batch, inside: Tensor, states: States) -> States:
        """Add a batch to the sums; the states behind it."""
        device = self._ranks.device
        here = batch.to_device(device)
        output = self._bilm(here.chars, here.forward_index, here.backward_index, states)
        weights, inside = here.weights.double(), inside.to(device).double()
        sums = self._sums[self._mine.start : self._mine.stop]
        for column, (hidden, targets) in enumerate(
            (
                (output.top_forward, here.forward_targets),
                (output.top_backward, here.backward_targets),
            )
        ):
            loss = nll(
                hidden.reshape(-1, hidden.size(-1)),
                targets.reshape(-1),
                self._softmax.weight,
                self._softmax.bias,
            ).view_as(weights)
            sums[:, column] += (loss * weights).sum(1)
            sums[:, _PROBE + column] += (loss * inside).sum(1)
        sums[:, _UNKNOWN] += ((here.forward_targets == UNK_ID).double() * weights).sum(1)
        sums[:, _TOKENS] += weights.sum(1)
        sums[:, _PROBE + 2] += inside.sum(1)
        next_states: States = output.states
        return next_states
