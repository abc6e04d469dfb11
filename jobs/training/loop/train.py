"""The training loop, read from top to bottom.

lanes → batches → biLM → loss → exchange → clip → update → log → evaluate → checkpoint

`train` knows its rank, the number of processes and a device, and nothing of Ray: a notebook or
torchrun can call it as well as `launch.py`. A step is a pure function of the checkpoint before it:
the data position and the dropout come from (seed, step, lane), the negatives from (seed, step). So
a run that was killed and resumed gives bit for bit the weights of one that was not.

Two things keep it so. DDP rearranges its buckets after the first backward, which changes the order
of sums from 3 processes up, unless `find_unused_parameters` is set; and every lookup whose backward
adds is a deterministic one (`index_select`, `F.embedding`).

A step whose loss or gradient is not finite makes no update; what happens after several of them in a
row is in `rewind.py`.
"""

from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

from elmwright.jobs.checkpoints.checkpoint import (
    check_attempt,
    folder_name,
    list_checkpoints,
    read_info,
)
from elmwright.jobs.checkpoints.contents import TrainingResult, contents_data
from elmwright.jobs.checkpoints.writer import journalled_writer
from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.rundir.journal import Journal
from elmwright.jobs.rundir.journal_records import Begin, Metrics, StepDone
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.rundir.stop_request import StopNote
from elmwright.jobs.training.loop.block_cache import block_cache
from elmwright.jobs.training.loop.evaluate import Score
from elmwright.jobs.training.loop.evaluate_training import evaluate_finally, evaluate_in_passing
from elmwright.jobs.training.loop.exchange import Beats, Phase, Ranks
from elmwright.jobs.training.loop.machine_metrics import Machine
from elmwright.jobs.training.loop.rewind import Trouble
from elmwright.jobs.training.loop.state import (
    FindModel,
    Trainer,
    begin,
    restore,
    saved_probes,
    saved_scores,
    snapshot,
    start_over,
)
from elmwright.jobs.training.loop.step_clock import Clock
from elmwright.jobs.training.loop.stream import Blocks, Prefetch
from elmwright.jobs.training.loop.training_step import Process, make_step
from elmwright.pipeline.format.manifest import Manifest
from elmwright.pipeline.storage.files import join, write_json

EARLY_STEPS = (1, 5, 10)
"""Steps of an attempt that the journal notes besides, for those who wait for the time left."""


def train(
    config: RunConfig,
    folder: RunFolder,
    attempt: int,
    ranks: Ranks,
    drained: Callable[[int], bool] = lambda _step: False,
    find_model: FindModel = Path,
) -> None:
    """Train to the end from the newest valid checkpoint, or until asked to stop.

    `drained` is asked by every process at every step whether its machine is being taken away;
    `find_model` finds the model that `train.init_from` names: the driver passes `registry.resolve`,
    which verifies it; the default takes a folder as it is.
    """
    torch.set_num_threads(config.train.threads)
    manifest = Manifest.load(folder.corpus)
    lanes, section = ranks.lanes(config.train.lanes), config.train

    trainer = begin(config, folder, manifest, ranks, find_model)
    bilm: torch.nn.Module = trainer.bilm
    if ranks.world > 1:
        bilm = DistributedDataParallel(
            trainer.bilm,
            device_ids=[ranks.device] if ranks.device.type == "cuda" else None,
            find_unused_parameters=True,
            gradient_as_bucket_view=True,
        )
    journal = writer = None
    if ranks.rank == 0:
        journal = Journal(folder.journal, lambda: check_attempt(folder.attempt, attempt))
        writer = journalled_writer(config, folder, attempt, journal)
        journal.write(Begin(step=trainer.step, attempt=attempt))
    first_step = trainer.step
    cache = block_cache(folder.corpus, folder.scratch / "blocks", section.cache_mb)
    blocks = Blocks(
        folder.corpus, manifest, "train", config.model.max_chars, keep=2 * len(lanes), cache=cache
    )

    def reading(step: int) -> Prefetch:
        first = step * section.accumulate
        return Prefetch(
            blocks, config.run.seed, first, lanes, section.lanes, section.window, ranks.device
        )

    clock, note, beats = Clock(), StopNote(folder.stop_request), Beats(ranks)
    per_block = blocks.steps // section.window
    this = Process(config, trainer, bilm, ranks, lanes, per_block, clock, beats)
    prefetch = reading(trainer.step)
    machine = Machine(ranks) if journal else None
    trouble = Trouble(section.max_bad_steps)
    stopping = False
    try:
        while not (stopping or _finished(config, trainer)):
            beats.at(trainer.step, Phase.BEGIN)
            batches = [prefetch.next() for _ in range(section.accumulate)]
            clock.lap("load")
            wish = drained(trainer.step) or (ranks.rank == 0 and note.found())
            result = make_step(this, batches, wish)
            clock.lap("compute")  # also giving back the memory of the step
            stopping = result.stop
            if trouble.after(result.finite, trainer):
                if writer:
                    writer.settle()
                first = trouble.begin()
                start_over(trainer, config, folder, ranks, first - 1, find_model)
                trouble.gone_back(trainer)
                prefetch.close()
                prefetch = reading(trainer.step)
                continue

            scores: dict[str, Score] = {}
            best = False
            # The last step is evaluated at the end, when its checkpoint is on disk.
            last = trainer.step == section.max_steps
            every = config.eval.every_steps
            if not last and every and trainer.step % every == 0:
                scores = evaluate_in_passing(config, trainer, folder, manifest, ranks, journal)
                best = result.finite and trainer.judge(scores)
                clock.lap("evaluate")

            # Not in the middle of bad steps: there may be nothing worth keeping.
            due = trainer.step % config.checkpoint.every_steps == 0 and result.finite
            saved = due or best or stopping or _finished(config, trainer)
            copy = None
            if saved:
                copy = snapshot(config, trainer, manifest, attempt, ranks, scores)
                clock.lap("checkpoint")
            if journal and machine and (trainer.step % config.tracking.every_steps == 0 or saved):
                values = result.metrics(trainer)
                values |= clock.metrics(trainer.step, section.tokens, result.flops, machine.peak)
                values |= machine.metrics()
                journal.write(Metrics(step=trainer.step, values=values))
                clock.lap("track")
            elif journal and trainer.step - first_step in EARLY_STEPS:
                journal.write(StepDone(step=trainer.step, attempt=attempt))
            # After the journal: what lies behind a checkpoint is never computed again.
            if writer and copy:
                writer.save(copy)
                clock.lap("checkpoint")
        if writer:
            writer.wait()
        if not stopping:
            _finish(this, folder, manifest, journal, note, drained)
    except RuntimeError as error:
        lost = beats.blame(error)
        if lost is None:
            raise
        raise lost from error
    finally:
        note.close()
        prefetch.close()
        if journal:
            journal.close()


def _finished(config: RunConfig, trainer: Trainer) -> bool:
    """Are all steps made, or have the last evaluations brought nothing?"""
    patience = config.eval.patience
    return trainer.step >= config.train.max_steps or 0 < patience <= trainer.stale


def _finish(
    this: Process,
    folder: RunFolder,
    manifest: Manifest,
    journal: Journal | None,
    note: StopNote,
    drained: Callable[[int], bool],
) -> None:
    """Evaluate the checkpoint that is the result, on all processes, and write result.json.

    The checkpoint is on disk already, so a kill here costs no step. When asked to stop, it returns
    without a result, and the next attempt evaluates again.
    """
    config, trainer, ranks = this.config, this.trainer, this.ranks
    early = trainer.step < config.train.max_steps
    chosen = trainer.step
    if early and ranks.rank == 0:
        kept = {info.step for info in list_checkpoints(folder.checkpoints)}
        chosen = trainer.best_step if trainer.best_step in kept else trainer.step
    if early:  # the others look only after rank 0 has written everything
        chosen = ranks.from_first(chosen)
    checkpoint = join(folder.checkpoints, folder_name(chosen))
    if chosen != trainer.step:
        restore(trainer, checkpoint, config, folder, ranks)
    scores = evaluate_finally(config, trainer, folder, manifest, ranks, journal, note, drained)
    if scores is None:
        return
    if journal:
        result = TrainingResult(
            step=chosen,
            checkpoint=folder_name(chosen),
            checkpoint_sha256=read_info(checkpoint).sha256,
            stopped_early=config.eval.patience if early else 0,
            skipped=len(trainer.skipped),
            evaluation=saved_scores(scores),
            probe=saved_probes(scores),
        )
        journal.flush()  # nothing is written after the result
        write_json(folder.result, contents_data(result))
