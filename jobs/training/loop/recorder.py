"""The files that training writes: the journal, the checkpoints, and result.json.

All processes run the same loop, and only rank 0 writes.
"""

from elmwright.jobs.checkpoints.checkpoint import check_attempt, folder_name, read_info
from elmwright.jobs.checkpoints.contents import TrainingResult, contents_data
from elmwright.jobs.checkpoints.retention import Keep
from elmwright.jobs.checkpoints.writer import CheckpointWriter, Snapshot
from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.rundir.journal import Journal
from elmwright.jobs.rundir.journal_records import Begin, Metrics, Record, StepDone
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.training.loop.evaluate import Score
from elmwright.jobs.training.loop.exchange import Ranks
from elmwright.jobs.training.loop.measurements import Clock, Machine
from elmwright.jobs.training.loop.state import Trainer, saved_probes, saved_scores
from elmwright.jobs.training.loop.training_step import StepResult
from elmwright.pipeline.storage.files import at, join

EARLY_STEPS = (1, 5, 10)
"""Steps of an attempt that are also written to the journal, for an early estimate of the time."""


class Recorder:
    """Records nothing: the recorder of every process but rank 0."""

    def write(self, record: Record) -> None:
        """Append a record to the journal."""

    def after_step(
        self, trainer: Trainer, result: StepResult, clock: Clock, *, is_saved: bool
    ) -> None:
        """Write the metrics of a step, if they are due or a checkpoint follows."""

    def save(self, snapshot: Snapshot) -> None:
        """Start writing a checkpoint."""

    def settle(self) -> None:
        """Wait until no checkpoint is being written, whether that succeeds or fails."""

    def wait(self) -> None:
        """Wait until the newest checkpoint is safe; raises the error if it could not be written."""

    def finish(
        self, trainer: Trainer, step: int, scores: dict[str, Score], *, is_early: bool
    ) -> None:
        """Write the result: the checkpoint of this step, with its scores."""

    def close(self) -> None:
        """Write the rest of the journal."""


class RunRecorder(Recorder):
    """Records a training in the run's folder."""

    def __init__(
        self, config: RunConfig, folder: RunFolder, attempt: int, ranks: Ranks, step: int
    ) -> None:
        """The attempt begins at `step`."""
        self._config, self._folder = config, folder
        self._attempt, self._first_step = attempt, step
        self._journal = Journal(folder.journal, lambda: check_attempt(folder.attempt, attempt))
        keep = Keep(config.checkpoint.keep_last, config.checkpoint.keep_every_steps)
        self._writer = CheckpointWriter(folder, attempt, keep, self._journal)
        self._journal.write(Begin(step=step, attempt=attempt))
        self._machine = Machine(ranks, config.train.precision)

    def write(self, record: Record) -> None:
        self._journal.write(record)

    def after_step(
        self, trainer: Trainer, result: StepResult, clock: Clock, *, is_saved: bool
    ) -> None:
        step, config = trainer.step, self._config
        if step % config.tracking.every_steps == 0 or is_saved:
            values = result.metrics(trainer)
            values |= clock.metrics(step, config.train.tokens, result.flops, self._machine.peak)
            values |= self._machine.metrics()
            self._journal.write(Metrics(step=step, values=values))
            clock.lap("track")
        elif step - self._first_step in EARLY_STEPS:
            self._journal.write(StepDone(step=step, attempt=self._attempt))

    def save(self, snapshot: Snapshot) -> None:
        self._writer.save(snapshot)

    def settle(self) -> None:
        self._writer.settle()

    def wait(self) -> None:
        self._writer.wait()

    def finish(
        self, trainer: Trainer, step: int, scores: dict[str, Score], *, is_early: bool
    ) -> None:
        checkpoint = join(self._folder.checkpoints, folder_name(step))
        result = TrainingResult(
            step=step,
            checkpoint=folder_name(step),
            checkpoint_sha256=read_info(checkpoint).sha256,
            stopped_early=self._config.eval.patience if is_early else 0,
            skipped=len(trainer.progress.skipped),
            evaluation=saved_scores(scores),
            probe=saved_probes(scores),
        )
        self._journal.flush()  # nothing is written after the result
        at(self._folder.result).write_json(contents_data(result))

    def close(self) -> None:
        self._journal.close()
