"""What processes tell each other during a step, besides what torch DDP does by itself.

The softmax has most of the parameters but a step touches few of its rows. All processes draw the
same negatives, gather each other's targets (a fixed number, so no sizes have to be agreed on), and
sum one buffer [touched rows, width + 1]. The buffer of statistics that goes round each step also
carries the wish to stop, so every process leaves the loop at the same step.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Ranks:
    """This process among its peers. One process needs no process group."""

    rank: int = 0
    world: int = 1
    device: torch.device = CPU

    def lanes(self, total: int) -> range:
        """The lanes of the global batch that this process owns."""
        share = total // self.world
        return range(self.rank * share, (self.rank + 1) * share)

    def sum(self, tensor: Tensor) -> Tensor:
        """Sum over all processes, in place."""
        if self.world > 1:
            dist.all_reduce(tensor)
        return tensor

    def gather(self, tensor: Tensor, dim: int) -> Tensor:
        """Everybody's tensors of the same shape, joined along `dim` in rank order."""
        if self.world == 1:
            return tensor
        tensor = tensor.contiguous()
        parts = [torch.empty_like(tensor) for _ in range(self.world)]
        dist.all_gather(parts, tensor)
        return torch.cat(parts, dim=dim)

    def from_first(self, value: int) -> int:
        """Rank 0's number, on every process."""
        if self.world == 1:
            return value
        number = torch.tensor([value], dtype=torch.int64, device=self.device)
        dist.broadcast(number, src=0)
        return int(number.item())


def touched_rows(ranks: Ranks, targets: Tensor, negatives: Tensor) -> Tensor:
    """Sorted ids of the softmax rows that any process touches in this step."""
    everybody = ranks.gather(targets.reshape(-1), dim=0)
    rows: Tensor = torch.unique(torch.cat([everybody, negatives]), sorted=True)
    return rows
