"""Which checkpoints of a run are kept, and which are pruned."""

from dataclasses import dataclass

from elmwright.jobs.checkpoints.checkpoint import CheckpointInfo


@dataclass(frozen=True)
class Keep:
    """Which checkpoints outlive the next one."""

    last: int
    """The newest so many."""
    every: int = 0
    """Those whose step is a multiple of this; 0 for none."""

    def doomed(self, infos: list[CheckpointInfo]) -> list[CheckpointInfo]:
        """Those to be removed.

        An evaluation in the loop and the final one score different numbers of tokens and are not
        compared: there can be a best of each kind.
        """
        keep = {info.step for info in infos[-self.last :]}
        keep |= {info.step for info in infos if self.every and info.step % self.every == 0}
        best: dict[int, tuple[float, int]] = {}
        for info in infos:
            for score in list(info.perplexity.values())[:1]:
                mine = (score, info.step)
                best[info.tokens] = min(best.get(info.tokens, mine), mine)
        keep |= {step for _, step in best.values()}
        return [info for info in infos if info.step not in keep]
