"""The progress display of training: two lines, updated from the journal.

The first line has the bar and the time left, the second has numbers, most important first, so that
a narrow terminal cuts off only the least important. Speed is computed from the times in the
records, not from when they are read, because records in a store may arrive late and many at once.
"""

import threading
import time
from collections.abc import Callable

from elmwright.jobs.checkpoints.checkpoint import list_checkpoints
from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.rundir.journal_lines import read_journal
from elmwright.jobs.rundir.journal_records import (
    Begin,
    CheckpointSaved,
    Evaluation,
    Metrics,
    NoteGiven,
    Record,
    Scoring,
    StepDone,
    WarningGiven,
)
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.rundir.metrics import LOSS, PERPLEXITY, TOKENS_PER_S, perplexities
from elmwright.jobs.terminal.bars import NAME, Bar
from elmwright.jobs.terminal.console import Console
from elmwright.jobs.terminal.pace import StepPace
from elmwright.jobs.terminal.wording import counted, states_note
from elmwright.pipeline.format.manifest import Manifest
from elmwright.pipeline.progress import plural

LATE_SECONDS = 2.0
"""Seconds by which a record must be overdue before an evaluation is assumed to be running."""


class Watcher:
    """Shows the progress of a run that is training, by reading its journal."""

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        console: Console,
        bar: Bar,
        clock: Callable[[], float] = time.monotonic,
        begun: threading.Event | None = None,
        repeated: range | None = None,
    ) -> None:
        """Warnings and notes that are in the journal already are not shown again.

        `begun` is set while the processes of an attempt are training. `repeated` are the steps of a
        replay, which makes no evaluations.
        """
        self._begun_event = begun or threading.Event()
        self._config, self._journal = config, folder.journal
        self._console, self._bar, self._clock = console, bar, clock
        manifest = Manifest.load(folder.corpus)
        self._epoch_tokens = manifest.splits["train"].blocks * manifest.block_steps
        self._evaluates = repeated is None
        steps = repeated or range(config.train.max_steps)
        self._first, self._last = steps.start, steps.stop
        self._pace = StepPace(self._last, config.eval.every_steps)
        self._position = self._step = self._highest_step = self._repeat_until = 0
        self._loss = self._speed = self._held_out = self._saved = self._scoring = ""
        self._evaluated = self._stopping = self._begun = False
        self._updated_at = clock()
        for record, position in read_journal(self._journal, 0):
            self._position = position
            self._apply(record)
        infos = list_checkpoints(folder.checkpoints)
        self._step = infos[-1].step if infos else 0
        self.begin_attempt()
        if not console.live:
            console.say(f"  {bar.name:<{NAME}} {self._starting()}")

    def begin_attempt(self) -> None:
        """Show no progress until the processes, which are being started, have begun to train."""
        self._begun = False
        self._begun_event.clear()

    def stopping(self) -> None:
        """Show that the user wants to stop."""
        self._stopping = True
        self._show()

    def look(self) -> None:
        """Show new records of the journal."""
        for record, position in read_journal(self._journal, self._position):
            self._position = position
            self._apply(record)
            if isinstance(record, WarningGiven):
                self._console.warn(record.text)
            elif isinstance(record, NoteGiven):
                self._console.say(record.text)
        if self._begun:
            self._begun_event.set()
        self._show()

    def _apply(self, record: Record) -> None:
        step, seconds = record.step, record.time / 1000
        if isinstance(record, Begin):
            # Below `_highest_step` if the previous attempt was killed after its last checkpoint.
            self._step, self._begun, self._evaluated = step, True, False
            self._scoring = ""
            self._repeat_until = self._highest_step
            self._pace.begin(seconds, step)
            self._updated_at = self._clock()
        elif isinstance(record, Metrics | StepDone):
            self._begun, self._step, self._updated_at = True, step, self._clock()
            self._pace.at(seconds, step, evaluated=self._evaluated)
            self._evaluated = False
            if isinstance(record, Metrics):
                self._apply_metrics(record.values)
        elif isinstance(record, Scoring):
            self._step, self._scoring = max(self._step, step), _scoring_text(record)
        elif isinstance(record, Evaluation):
            self._evaluated, self._scoring = True, ""
            self._step = max(self._step, step)
            scores, states = perplexities(record.values)
            for score in list(scores.values())[:1]:
                self._held_out = f"{PERPLEXITY.title} {score:,.1f}{states_note(states)}"
        elif isinstance(record, CheckpointSaved):
            self._saved = f"saved at step {step:,}"
        self._highest_step = max(self._highest_step, step)

    def _apply_metrics(self, values: dict[str, float]) -> None:
        if LOSS.key in values:
            self._loss = f"{LOSS.title} {values[LOSS.key]:.2f}"
        if TOKENS_PER_S.key in values:
            self._speed = f"{values[TOKENS_PER_S.key]:,.0f} {TOKENS_PER_S.unit}"

    def _show(self) -> None:
        self._bar.show(self._step - self._first, self._facts(), self._seconds_left)

    def _seconds_left(self) -> float | None:
        is_over = self._step >= self._last
        if not self._begun or self._stopping or is_over or self._evaluating():
            return None
        return self._pace.left(self._clock() - self._updated_at)

    def _facts(self) -> list[str]:
        if self._stopping:
            return ["saving a checkpoint" if self._begun else "stopping"]
        if not self._begun:
            return [self._starting()]
        if not (self._loss or self._held_out) and self._pace.left(0.0) is None:
            return ["computing the first steps"]
        tokens = self._step * self._config.train.tokens
        facts = [self._held_out, self._loss, self._speed]
        facts.append(f"epoch {tokens / self._epoch_tokens:.2f}" if self._step else "")
        facts.append(self._saved)
        if self._step < self._repeat_until:
            facts.insert(0, f"repeating the steps up to {self._repeat_until:,}")
        elif self._scoring:
            facts.insert(0, self._scoring)
        elif self._evaluating():
            facts.insert(0, "scoring held-out text")
        return list(filter(None, facts))

    def _starting(self) -> str:
        train = self._config.train
        text = f"starting {plural(train.processes, 'process')}"
        if train.threads > 1:
            text += f" of {plural(train.threads, 'thread')}"
        return f"{text}, resuming at step {self._step:,}" if self._step else text

    def _evaluating(self) -> bool:
        """Whether an evaluation seems to be running: one is due before the next record, which is
        late."""
        pace, every = self._pace.step_seconds, self._config.tracking.every_steps
        max_steps = self._config.train.max_steps
        next_record = min(max_steps, (self._step // every + 1) * every)
        eval_every = self._config.eval.every_steps or max_steps
        is_due = next_record == max_steps or self._step // eval_every < next_record // eval_every
        if pace is None or self._evaluated or not (is_due and self._evaluates):
            return False
        expected = 1.5 * pace * (next_record - self._step)
        return self._clock() - self._updated_at > expected + LATE_SECONDS


def _scoring_text(record: Scoring) -> str:
    """The progress of the final evaluation."""
    if not record.done:
        return f"scoring {counted(record.tokens, 'tokens')} of held-out text"
    return f"scoring held-out text: {100 * record.done // record.tokens} %"
