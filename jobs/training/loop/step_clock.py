"""Measures what the time of training steps is spent on."""

import time

from elmwright.jobs.rundir import metrics


class Clock:
    """The time spent on each part of training between two logged steps."""

    def __init__(self) -> None:
        self._spent: dict[str, float] = {}
        self._lap_start = self._start = time.perf_counter()
        self._start_step: int | None = None

    def lap(self, name: str) -> None:
        """Attribute the time since the last call to `name`."""
        now = time.perf_counter()
        self._spent[name] = self._spent.get(name, 0.0) + now - self._lap_start
        self._lap_start = now

    def metrics(self, step: int, tokens: int, flops: float, peak: float) -> dict[str, float]:
        """Each part's share of the time since the last call, tokens and FLOPs per second, and the
        share of the machine's `peak` FLOPs per second; `tokens` and `flops` are per step."""
        total = max(time.perf_counter() - self._start, 1e-9)
        values = {metrics.time_share(name): spent / total for name, spent in self._spent.items()}
        if self._start_step is not None:
            working = max(total - self._spent.get("evaluate", 0.0), 1e-9)
            steps_per_s = (step - self._start_step) / working
            values[metrics.TOKENS_PER_S.key] = steps_per_s * tokens
            values[metrics.FLOPS_PER_S.key] = steps_per_s * flops
            values[metrics.FLOP_UTILISATION.key] = steps_per_s * flops / peak
        self._spent, self._start, self._start_step = {}, time.perf_counter(), step
        return values
