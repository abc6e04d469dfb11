"""Decides which checkpoints of a run to keep."""

from dataclasses import dataclass

from elmwright.jobs.checkpoints.checkpoint import CheckpointInfo
from elmwright.jobs.rundir.metrics import Regime


@dataclass(frozen=True)
class Keep:
    """Which checkpoints to keep in addition to the best."""

    last: int
    """How many of the newest to keep."""
    every: int = 0
    """Keep those whose step is a multiple of this; 0 for none."""

    def to_remove(self, infos: list[CheckpointInfo]) -> list[CheckpointInfo]:
        """The checkpoints to remove.

        Evaluations that scored different numbers of tokens (in the loop and at the end), or read
        them with different states, are not compared: each kind has its own best checkpoint.
        """
        keep = {info.step for info in infos[-self.last :]}
        keep |= {info.step for info in infos if self.every and info.step % self.every == 0}
        best: dict[tuple[int, Regime], tuple[float, int]] = {}
        for info in infos:
            for score in list(info.perplexity.values())[:1]:
                kind, candidate = (info.tokens, info.perplexity_states), (score, info.step)
                best[kind] = min(best.get(kind, candidate), candidate)
        keep |= {step for _, step in best.values()}
        return [info for info in infos if info.step not in keep]
