"""The exchange between processes during a step, besides that of torch DDP.

The softmax has most of the parameters but a step touches few of its rows. All processes draw the
same negatives, gather each other's targets (a fixed number, so no sizes have to be agreed on), and
sum one buffer [touched rows, width + 1]. The statistics that are summed in each step include
requests to stop, so every process leaves the loop at the same step.

Every process also writes its position to the group's key-value store. When an exchange fails or
takes longer than `train.timeout_s`, the others can tell which process is missing.
"""

import re
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import IntEnum
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from elmwright.model.softmax import distinct

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Ranks:
    """This process among its peers. One process needs no process group."""

    rank: int = 0
    world: int = 1
    device: torch.device = CPU
    host_group: dist.ProcessGroup | None = None
    """The group for tensors in main memory, if it is not that of everything else."""

    def with_host_group(self, timeout_s: float) -> "Ranks":
        """The same with a group for tensors in main memory, which that of GPUs does not take. Every
        process must call this."""
        if self.world == 1 or self.device.type == "cpu":
            return self
        group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
        return replace(self, host_group=group)

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
        """The tensors of all processes, of the same shape, joined along `dim` in rank order."""
        if self.world == 1:
            return tensor
        tensor = tensor.contiguous()
        parts = [torch.empty_like(tensor) for _ in range(self.world)]
        dist.all_gather(parts, tensor)
        return torch.cat(parts, dim=dim)

    def gather_on_host(self, tensor: Tensor) -> Tensor:
        """The tensors in main memory of all processes, of the same shape, in rank order."""
        if self.world == 1:
            return tensor
        parts = [torch.empty_like(tensor) for _ in range(self.world)]
        dist.all_gather(parts, tensor, group=self.host_group)
        return torch.cat(parts)

    def from_first(self, value: int) -> int:
        """Rank 0's number, on every process."""
        if self.world == 1:
            return value
        number = torch.tensor([value], dtype=torch.int64, device=self.device)
        dist.broadcast(number, src=0)
        return int(number.item())


def touched_rows(ranks: Ranks, targets: Tensor, negatives: Tensor) -> Tensor:
    """Sorted ids of the softmax rows that any process touches in this step. Everything is in main
    memory: on a GPU their number could not be known without waiting for it."""
    return distinct(ranks.gather_on_host(targets), negatives)


class TableExchange:
    """Sums the gradient of the softmax table over all processes. It is complete before that of
    everything else, so it is sent while the rest of the backward pass is computed."""

    def __init__(self, ranks: Ranks, table: Tensor) -> None:
        self._ranks, self._table = ranks, table
        self._work: dist.Work | None = None
        self.is_last = False
        """Whether the backward pass that comes next is the last of the step."""
        self._hook: RemovableHandle | None = None
        if ranks.world > 1:
            register: Any = table.register_post_accumulate_grad_hook
            self._hook = register(self._send)

    def _send(self, table: Tensor) -> None:
        if self.is_last:
            self._work = dist.all_reduce(table.grad, async_op=True)

    def result(self) -> Tensor:
        """The mean of the gradients; waits for it. Call it once."""
        if self._hook is not None:
            assert self._work is not None, "no backward pass was the last"  # noqa: S101
            self._work.wait()
            self._hook.remove()  # else table and hook keep each other: memory would grow
        assert self._table.grad is not None  # noqa: S101 - every loss depends on it
        return self._table.grad.div_(self._ranks.world)


class PeerLost(RuntimeError):  # noqa: N818 - a state of the world, reported as such
    """Another process no longer takes part in the exchange."""


class Phase(IntEnum):
    """The beginning of a step, and the moment before each of its exchanges."""

    BEGIN = 0
    TARGETS = 1
    BACKWARD = 2
    GRADIENTS = 3


class Positions:
    """The position of each process: its step and phase."""

    ANSWER = timedelta(seconds=10)
    """How long the store may take to answer after a failure."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks, self._step = ranks, 0
        self._store: Any = None
        if ranks.world > 1:
            # Not public. Without it, blame() cannot tell which process is missing.
            find_store = getattr(dist.distributed_c10d, "_get_default_store", None)
            self._store = find_store() if find_store else None

    def publish(self, step: int, phase: Phase) -> None:
        """Publish the position of this process."""
        self._step = step
        if self._store is not None:
            place = step * len(Phase) + phase
            self._store.set(f"elmwright/place/{self._ranks.rank}", str(place))

    def blame(self, error: RuntimeError) -> PeerLost | None:
        """If an exchange failed, an error that names the missing process, if it is known."""
        if self._ranks.world == 1 or not _EXCHANGE.search(str(error)):
            return None
        if self._store is None:
            return PeerLost(
                f"an exchange of step {self._step:,} was not answered; torch {torch.__version__} "
                "does not report which process is missing"
            )
        self._store.set_timeout(self.ANSWER)
        try:
            places = {
                rank: int(self._store.get(f"elmwright/place/{rank}"))
                for rank in range(self._ranks.world)
            }
        except RuntimeError:
            return PeerLost(
                f"at step {self._step:,} rank {self._ranks.rank} waited in vain for the others; "
                "rank 0, which knows where each of them is, does not answer"
            )
        newest = max(places.values())
        late = [rank for rank, place in places.items() if place < newest]
        suspects = late or [rank for rank in places if rank != self._ranks.rank]
        who = " or ".join(f"rank {rank}" for rank in suspects)
        last = min(places[rank] for rank in suspects) // len(Phase)
        return PeerLost(
            f"an exchange of step {newest // len(Phase):,} was not answered; {who} is missing, "
            f"last seen in step {last:,}"
        )


_EXCHANGE = re.compile(
    r"Timed out|[Tt]imeout|Connection (closed|reset|refused)|gloo|NCCL|Broken pipe|Socket", re.I
)
"""Parts of torch's messages about a failed exchange."""
