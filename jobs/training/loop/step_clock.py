"""Where the time of a training step goes."""

import time

from elmwright.jobs.rundir import metrics


class Clock:
    """Where the time goes, between two logged steps."""

    def __init__(self) -> None:
        self._spent: dict[str, float] = {}
        self._last = self._since = time.perf_counter()
        self._step: int | None = None

    def lap(self, name: str) -> None:
        """Attribute the time since the last call to `name`."""
        now = time.perf_counter()
        self._spent[name] = self._spent.get(name, 0.0) + now - self._last
        self._last = now

    def metrics(self, step: int, tokens: int, flops: float, peak: float) -> dict[str, float]:
        """Since the last call: shares of the time, tokens per second, and the useful arithmetic
        (`flops` per step) as a share of the machine's peak."""
        total = max(time.perf_counter() - self._since, 1e-9)
        values = {metrics.time_share(name): spent / total for name, spent in self._spent.items()}
        if self._step is not None:
            working = max(total - self._spent.get("evaluate", 0.0), 1e-9)
            steps = (step - self._step) / working
            values[metrics.TOKENS_PER_S.key] = steps * tokens
            values[metrics.FLOPS_PER_S.key] = steps * flops
            values[metrics.FLOP_UTILISATION.key] = steps * flops / peak
        self._spent, self._since, self._step = {}, time.perf_counter(), step
        return values
