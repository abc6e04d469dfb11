"""Evaluation on all cores of one process: each thread has its own lanes.

torch would divide every small product among the cores, and its threads wait for each other after
each. Here a thread computes with one core, for its own lanes, and the threads wait only where the
processes of a training run would, so that a core that is busy with something else delays only its
own thread. `tests/bench/bench_busy.py` measures that. Like the number of processes, the number of
threads does not change a result beyond its last digits.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from elmwright.jobs.environment.machine_use import cores
from elmwright.jobs.training.loop.exchange import Ranks
from elmwright.pipeline.progress import Advance

T = TypeVar("T")


class _Group:
    """The state that the threads share."""

    def __init__(self, world: int) -> None:
        self.barrier = threading.Barrier(world)
        self.parts: list[Tensor | None] = [None] * world
        self.lock = threading.Lock()
        self.error: BaseException | None = None


@dataclass(frozen=True)
class ThreadRanks(Ranks):
    """A thread among its peers."""

    group: _Group = field(default_factory=lambda: _Group(1))

    def sum(self, tensor: Tensor) -> Tensor:
        """Sum over all threads in their order, in place."""
        self.group.parts[self.rank] = tensor.clone()
        self.group.barrier.wait()
        total = torch.zeros_like(tensor)
        for part in self.group.parts:
            assert part is not None  # noqa: S101 - every thread has passed the barrier
            total += part
        self.group.barrier.wait()
        return tensor.copy_(total)


def side_by_side(lanes: int, work: Callable[[Ranks, Advance], T], advance: Advance) -> T:
    """The result of `work`, in as many threads as there are cores and the lanes allow.

    The calling thread is one of them, so that Ctrl-C reaches it.
    """
    world = max(n for n in range(1, cores() + 1) if lanes % n == 0)
    if world == 1:
        return work(Ranks(), advance)
    group = _Group(world)

    def count(n: int, detail: str = "", /) -> None:
        if group.barrier.broken:
            raise threading.BrokenBarrierError
        with group.lock:
            advance(n, detail)

    def helper(rank: int) -> None:
        try:
            work(ThreadRanks(rank, world, group=group), count)
        except threading.BrokenBarrierError:
            return  # another thread has the reason
        except BaseException as error:
            group.error = error
            group.barrier.abort()

    threads = [
        threading.Thread(target=helper, args=(rank,), name=f"evaluation-{rank}", daemon=True)
        for rank in range(1, world)
    ]
    with _one_thread_each():
        for thread in threads:
            thread.start()
        try:
            result = work(ThreadRanks(0, world, group=group), count)
        except threading.BrokenBarrierError:
            raise group.error or RuntimeError("a thread of the evaluation was lost") from None
        except BaseException:
            group.barrier.abort()
            raise
        for thread in threads:
            thread.join()
    if group.error is not None:
        raise group.error
    return result


@contextmanager
def _one_thread_each() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
