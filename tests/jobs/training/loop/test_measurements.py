"""Shares of a step's time and its speed, by a clock that the test moves."""

import pytest

from elmwright.jobs.training.loop import measurements
from elmwright.jobs.training.loop.measurements import Clock


class Time:
    """Seconds that pass only when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def passing(monkeypatch: pytest.MonkeyPatch) -> Time:
    clock = Time()
    monkeypatch.setattr(measurements, "time", clock)
    return clock


def spend(passing: Time, clock: Clock, **seconds: float) -> None:
    for name, duration in seconds.items():
        passing.now += duration
        clock.lap(name)


def test_the_shares_of_a_steps_time_add_up_to_one(passing: Time) -> None:
    clock = Clock()
    spend(passing, clock, load=1, compute=6)
    spend(passing, clock, exchange=2, compute=1)
    first = clock.metrics(1, 100, 1e6, 1e9)
    assert first == {
        "time/load_share": 0.1,
        "time/compute_share": 0.7,
        "time/exchange_share": 0.2,
    }
    spend(passing, clock, track=1, load=1, compute=2)
    second = clock.metrics(2, 100, 1e6, 1e9)
    shares = {name: value for name, value in second.items() if name.startswith("time/")}
    assert shares == {
        "time/track_share": 0.25,
        "time/load_share": 0.25,
        "time/compute_share": 0.5,
    }


def test_speed_is_measured_between_two_logged_steps_and_leaves_evaluation_out(
    passing: Time,
) -> None:
    clock = Clock()
    spend(passing, clock, compute=5)
    clock.metrics(10, 100, 1e6, 1e9)
    spend(passing, clock, compute=4, evaluate=6)
    values = clock.metrics(18, 100, 1e6, 1e9)
    assert values["train/tokens_per_s"] == pytest.approx(200)
    assert values["train/flops_per_s"] == pytest.approx(2e6)
    assert values["train/flop_utilisation"] == pytest.approx(0.002)
