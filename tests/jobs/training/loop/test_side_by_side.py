"""Evaluation by several threads: the same result, and errors that arrive."""

import threading

import pytest
import torch

from elmwright.jobs.training.loop import side_by_side as module
from elmwright.jobs.training.loop.exchange import Ranks
from elmwright.jobs.training.loop.side_by_side import side_by_side
from elmwright.pipeline.progress import Advance


@pytest.fixture(autouse=True)
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "cores", lambda: 4)


def ignore(_n: int, _detail: str = "", /) -> None:
    pass


def test_threads_share_the_lanes_and_sum_in_order() -> None:
    counted: list[int] = []

    def work(ranks: Ranks, advance: Advance) -> tuple[int, list[float], int]:
        mine = torch.zeros(8, dtype=torch.float64)
        for lane in ranks.lanes(8):
            mine[lane] = lane
            advance(1)
        totals = [ranks.sum(mine.clone()) for _ in range(20)]
        assert all(total.tolist() == list(range(8)) for total in totals)
        return ranks.world, totals[0].tolist(), torch.get_num_threads()

    before = torch.get_num_threads()
    found = side_by_side(8, work, lambda n, _detail="": counted.append(n))
    assert found == (4, [float(n) for n in range(8)], 1)
    assert sum(counted) == 8
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(("lanes", "world"), [(6, 3), (5, 1), (16, 4)])
def test_the_number_of_threads_divides_the_lanes(lanes: int, world: int) -> None:
    assert side_by_side(lanes, lambda ranks, _advance: ranks.world, ignore) == world


@pytest.mark.parametrize("failing", [0, 2])
def test_an_error_of_any_thread_is_raised_and_ends_the_others(failing: int) -> None:
    def work(ranks: Ranks, advance: Advance) -> None:
        if ranks.rank == failing:
            raise ValueError("a damaged block")
        while True:
            advance(1)

    with pytest.raises(ValueError, match="a damaged block"):
        side_by_side(8, work, ignore)
    for thread in threading.enumerate():
        if thread.name.startswith("evaluation-"):
            thread.join(10)
            assert not thread.is_alive()
