"""What to do about losses and gradients that are not finite.

One bad step makes no update and is forgotten. After several in a row the weights themselves must be
bad: training goes back to a checkpoint before them and leaves out those updates, and as many
before. If that happens again at once, going back does not help, and training fails.

Every process decides the same, because loss and norm are those of all processes.
"""

import logging

from elmwright.jobs.training.loop.state import Trainer
from elmwright.pipeline.errors import Failed

log = logging.getLogger("elmwright")


class BadSteps:
    """Steps in a row whose loss or gradient was not finite, and what was done about them."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bad: list[int] = []
        self._planned: set[int] = set()
        """Steps whose updates are left out after going back. They do not count again."""
        self._until = -1

    def are_too_many(self, finite: bool, trainer: Trainer) -> bool:
        """Count a step; is it time to go back to a checkpoint?"""
        step = trainer.step - 1
        if finite:
            self._bad.clear()
        elif step not in self._planned:
            self._bad.append(step)
        return len(self._bad) >= self._limit

    def first(self) -> int:
        """The first bad step; whatever broke the weights happened before it."""
        first = self._bad[0]
        if first <= self._until:
            raise Failed(
                f"from step {first:,} on, {self._limit} losses or gradients in a row are not "
                "finite, and going back and leaving out the updates before them has not helped; "
                "lower optim.lr or optim.clip_norm and begin a run of another name"
            )
        return first

    def leave_out(self, trainer: Trainer) -> None:
        """After going back to a checkpoint, leave out the updates of the bad steps, and of as many
        before them."""
        first, last = self._bad[0], self._bad[-1]
        offending = range(max(trainer.step, first - self._limit), last + 1)
        trainer.skip(offending)
        self._planned |= set(offending)
        log.warning(
            "%d losses or gradients in a row were not finite: back to step %d, without the "
            "updates of steps %d to %d",
            self._limit,
            trainer.step,
            offending[0],
            last,
        )
        self._until = last + self._limit
        self._bad.clear()
