"""Decides which checkpoints of a run to keep."""

from dataclasses import dataclass

from elmwright.jobs.checkpoints.checkpoint import CheckpointInfo


@dataclass(frozen=True)
class Keep:
    """Which checkpoints to keep in addition to the best."""

    last: int
    """How many of the newest to keep."""
    every: int = 0
    """Keep those whose step is a multiple of this; 0 for none."""

    def to_remove(self, infos: list[CheckpointInfo]) -> list[CheckpointInfo]:
        """The checkpoints to remove.

        Evaluations that scored different numbers of tokens (in the loop and at the end) are not
        compared, so each number of tokens has its own best checkpoint.
        """
        keep = {info.step for info in infos[-self.last :]}
        keep |= {info.step for info in infos if self.every and info.step % self.every == 0}
        best: dict[int, tuple[float, int]] = {}
        for info in infos:
            for score in list(info.perplexity.values())[:1]:
                candidate = (score, info.step)
                best[info.tokens] = min(best.get(info.tokens, candidate), candidate)
        keep |= {step for _, step in best.values()}
        return [info for info in infos if info.step not in keep]
