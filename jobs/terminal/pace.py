"""The time left for some work, estimated from its recent speed.

`Pace` is for work in pieces of any size. It takes the mean over the last minute or so, so that two
workers that finish together do not look like an infinite speed. `StepPace` is for training. It
takes the median over recent records of the journal, which a slow start, a checkpoint or a busy
moment do not move, and adds the cost of each evaluation to come.
"""

from collections import deque
from statistics import median

FIRST_STEPS = 10
"""Steps of an attempt before its speed is known."""


class Pace:
    """The mean speed over a recent window."""

    SECONDS = 60.0

    def __init__(self) -> None:
        self._points: deque[tuple[float, int]] = deque()

    def at(self, seconds: float, done: int) -> None:
        """Record how much was done at this time."""
        self._points.append((seconds, done))
        while len(self._points) > 2 and self._points[1][0] < seconds - self.SECONDS:
            self._points.popleft()

    def left(self, total: int, now: float) -> float | None:
        """Seconds until all is done; None if too little is known."""
        if len(self._points) < 2:
            return None
        (begin, first), (end, last) = self._points[0], self._points[-1]
        if last <= first or end - begin < 1.0:
            return None
        return max(0.0, (end - begin) / (last - first) * (total - last) - (now - end))


class StepPace:
    """The median time of a step, and the mean cost of an evaluation."""

    RECORDS = 21

    def __init__(self, total: int, eval_every: int) -> None:
        """For `total` steps with an evaluation every `eval_every` (0: only at the end)."""
        self._total, self._every = total, eval_every
        self._begin = 0
        self._last: tuple[float, int] | None = None
        self._spans: deque[float] = deque(maxlen=self.RECORDS)
        self._pauses: deque[float] = deque(maxlen=self.RECORDS)

    def begin(self, seconds: float, step: int) -> None:
        """Record the start of an attempt, and forget the speed of earlier ones."""
        self._begin, self._last = step, (seconds, step)
        self._spans.clear()
        self._pauses.clear()

    def at(self, seconds: float, step: int, *, evaluated: bool) -> None:
        """Record the time of a step; `evaluated` if there was an evaluation since the last one."""
        if self._last is None:
            self.begin(seconds, step)
            return
        before, first = self._last
        if step <= first:
            return
        if not evaluated:
            self._spans.append((seconds - before) / (step - first))
        elif self._spans:
            pause = seconds - before - median(self._spans) * (step - first)
            self._pauses.append(max(0.0, pause))
        self._last = seconds, step

    @property
    def step_seconds(self) -> float | None:
        """Seconds per step; None if too little is known."""
        spans = list(self._spans)
        # The first span includes the start of threads and caches.
        return median(spans[1:] or spans) if spans else None

    def left(self, since: float) -> float | None:
        """Seconds to the end, `since` seconds after the last known step."""
        pace = self.step_seconds
        if pace is None or self._last is None or self._last[1] - self._begin < FIRST_STEPS:
            return None
        step = self._last[1]
        pauses = sum(self._pauses) / len(self._pauses) if self._pauses else 0.0
        return max(0.0, pace * (self._total - step) + pauses * self.evaluations_left - since)

    @property
    def evaluations_left(self) -> int:
        """How many evaluations are still to come, the last one included."""
        if self._last is None or self._last[1] >= self._total:
            return 0
        every = self._every or self._total
        return self._total // every - self._last[1] // every + bool(self._total % every)
