"""Decides which checkpoints of a run are kept."""

from dataclasses import dataclass

from elmwright.jobs.checkpoints.checkpoint import CheckpointInfo


@dataclass(frozen=True)
class Keep:
    """Which checkpoints are kept, besides the best."""

    last: int
    """How many of the newest."""
    every: int = 0
    """Those whose step is a multiple of this; 0 for none."""

    def doomed(self, infos: list[CheckpointInfo]) -> list[CheckpointInfo]:
        """The checkpoints to remove.

        Evaluations that scored different numbers of tokens (in the loop and at the end) are not
        compared, so there can be a best checkpoint for each number.
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
