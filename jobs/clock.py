"""Where the time of a training step goes."""

import time


class Clock:
    """Where the time goes, between two logged steps."""

    def __init__(self) -> None:
        self._spent: dict[str, float] = {}
        self._last = self._since = time.perf_counter()
        self._step: int | None = None

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self._spent[name] = self._spent.get(name, 0.0) + now - self._last
        self._last = now

    def metrics(self, step: int, tokens: int) -> dict[str, float]:
        """Tokens a second and shares of the time since the last call."""
        total = max(time.perf_counter() - self._since, 1e-9)
        found = {f"time/{name}_share": spent / total for name, spent in self._spent.items()}
        if self._step is not None:
            working = max(total - self._spent.get("evaluate", 0.0), 1e-9)
            found["train/tokens_per_s"] = (step - self._step) * tokens / working
        self._spent, self._since, self._step = {}, time.perf_counter(), step
        return found
