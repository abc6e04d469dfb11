"""The training loop, read from top to bottom.

lanes → batches → biLM → loss → exchange → clip → update → log → evaluate → checkpoint

`train` takes its rank, the number of processes and a device, and does not need Ray: a notebook or
torchrun can call it as well as `launch.py`. A step is a pure function of the checkpoint before it:
the data position and the dropout come from (seed, step, lane), the negatives from (seed, step). So
a run that was killed and resumed gives bit for bit the weights of one that was not.

Three details are needed for that. DDP rearranges its buckets after the first backward, which
changes the order of sums from 3 processes up, so `distributed` lets that happen before step 1.
Every lookup whose backward adds is a deterministic one (`index_select`, `F.embedding`). And all
processes use the same kernels (`kernel_choice.py`).

A step whose loss or gradient is not finite makes no update. `rewind.py` handles several in a row.
"""

import logging
from collections.abc import Callable
from pathlib import Path

import torch

from elmwright.jobs.checkpoints.checkpoint import folder_name, list_checkpoints
from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.rundir.journal_records import NoteGiven, WarningGiven
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.rundir.stop_request import StopNote
from elmwright.jobs.training.loop.distributed import distributed
from elmwright.jobs.training.loop.evaluate import Score
from elmwright.jobs.training.loop.evaluate_training import (
    evaluate_and_record,
    evaluate_finally,
    judging,
)
from elmwright.jobs.training.loop.exchange import Phase, Positions, Ranks
from elmwright.jobs.training.loop.heldout_pass import HeldOut
from elmwright.jobs.training.loop.input.block_cache import block_cache
from elmwright.jobs.training.loop.input.blocks import Blocks
from elmwright.jobs.training.loop.input.step_input import StepInput, StepInputs
from elmwright.jobs.training.loop.input.stream import Prefetch, Reading
from elmwright.jobs.training.loop.kernel_choice import settle_kernels
from elmwright.jobs.training.loop.measurements import Clock
from elmwright.jobs.training.loop.recorder import Recorder, RunRecorder
from elmwright.jobs.training.loop.rewind import BadSteps
from elmwright.jobs.training.loop.starting import FindModel, begin, restore, start_over
from elmwright.jobs.training.loop.state import Trainer, snapshot
from elmwright.jobs.training.loop.training_step import Process, make_step
from elmwright.pipeline.format.lanes import skipped_windows
from elmwright.pipeline.format.manifest import Manifest
from elmwright.pipeline.progress import plural
from elmwright.pipeline.storage.files import join

log = logging.getLogger("elmwright")


def train(
    config: RunConfig,
    folder: RunFolder,
    attempt: int,
    ranks: Ranks,
    drained: Callable[[int], bool] = lambda _step: False,
    find_model: FindModel = Path,
) -> None:
    """Train to the end from the newest valid checkpoint, or until asked to stop.

    Every process calls `drained` at every step, to know whether a machine is being taken away.
    `find_model` finds the model that `train.init_from` names: the driver passes `resolve.py:
    resolve`, which verifies it, and the default takes a folder as it is.
    """
    torch.set_num_threads(config.train.threads)
    manifest = Manifest.load(folder.corpus)
    settings = config.train
    ranks = ranks.with_host_group(settings.timeout_s)
    lanes = ranks.lanes(settings.lanes)

    trainer = begin(config, folder, manifest, ranks, find_model)
    settle_kernels(trainer, ranks)
    # A switch of the whole process: with tf32, evaluation during training has it too.
    torch.set_float32_matmul_precision("high" if settings.precision == "tf32" else "highest")
    bilm = distributed(trainer.bilm, ranks) if ranks.world > 1 else trainer.bilm
    recorder = Recorder()
    if ranks.rank == 0:
        recorder = RunRecorder(config, folder, attempt, ranks, trainer.step)
    _pass_on_warnings(trainer, recorder)
    if trainer.adopted:
        recorder.write(NoteGiven(step=trainer.step, text=trainer.adopted))
    cache = block_cache(folder.corpus, folder.scratch / "blocks", settings.cache_mb)
    blocks = Blocks(
        folder.corpus,
        manifest,
        "train",
        config.model.max_chars,
        keep=2 * len(lanes),
        cache=cache,
        widest=trainer.bilm.encoder.widest,
    )
    heldout = HeldOut(
        trainer.bilm,
        trainer.softmax,
        folder.corpus,
        manifest,
        config.eval.lanes,
        settings.window,
        ranks,
        cache=cache,
    )

    def prefetch_from(step: int) -> Prefetch[StepInput]:
        reading = Reading.of_run(config, trainer.progress.numerics)
        size = trainer.softmax.vocab_size
        inputs = StepInputs(config, blocks, reading, lanes, size, ranks.device)
        return Prefetch(inputs, step, blocks)

    clock, note, positions = Clock(), StopNote(folder.stop_request), Positions(ranks)
    process = Process(config, trainer, bilm, ranks, clock, positions)
    if trainer.step == 0 and ranks.rank == 0:
        skipped = skipped_windows(settings.lanes, blocks.steps // settings.window)
        log.info(
            "lanes begin staggered: %s of their first blocks are not read",
            plural(skipped, "window"),
        )
    prefetch = prefetch_from(trainer.step)
    bad_steps = BadSteps(settings.max_bad_steps)
    stopping = False
    try:
        while not (stopping or _finished(config, trainer)):
            positions.publish(trainer.step, Phase.BEGIN)
            given = prefetch.next()
            clock.lap("load")
            wants_stop = drained(trainer.step) or (ranks.rank == 0 and note.found())
            result = make_step(process, given, wants_stop)
            clock.lap("compute")  # including the time to free the memory of the step
            stopping = result.stop
            if bad_steps.are_too_many(result.finite, trainer):
                recorder.settle()
                before = bad_steps.first() - 1
                start_over(trainer, config, folder, manifest, ranks, before, find_model)
                _pass_on_warnings(trainer, recorder)
                bad_steps.leave_out(trainer)
                prefetch.close()
                prefetch = prefetch_from(trainer.step)
                continue

            scores: dict[str, Score] = {}
            is_best = False
            # The last step is evaluated at the end, when its checkpoint is on disk.
            is_last = trainer.step == settings.max_steps
            every = config.eval.every_steps
            if not is_last and every and trainer.step % every == 0:
                scores = evaluate_and_record(
                    judging(heldout, trainer), trainer.step, recorder, config.eval.max_tokens
                )
                is_best = result.finite and trainer.update_best(scores)
                clock.lap("evaluate")

            # Not in the middle of bad steps: there may be nothing worth keeping.
            is_due = trainer.step % config.checkpoint.every_steps == 0 and result.finite
            copy = None
            if is_due or is_best or stopping or _finished(config, trainer):
                copy = snapshot(config, trainer, manifest, attempt, ranks, scores)
                clock.lap("checkpoint")
            recorder.after_step(trainer, result, clock, is_saved=copy is not None)
            # After the journal: steps before a checkpoint are never computed again.
            if copy:
                recorder.save(copy)
                clock.lap("checkpoint")
        recorder.wait()
        if not stopping:
            _finish(process, folder, heldout, recorder, note, drained)
    except RuntimeError as error:
        lost = positions.blame(error)
        if lost is None:
            raise
        raise lost from error
    finally:
        note.close()
        prefetch.close()
        recorder.close()


def _pass_on_warnings(trainer: Trainer, recorder: Recorder) -> None:
    """Write what restoring a checkpoint warned of to the journal, for the user, and to the log."""
    while trainer.warnings:
        text = trainer.warnings.pop(0)
        log.warning("%s", text)
        recorder.write(WarningGiven(step=trainer.step, text=text))


def _finished(config: RunConfig, trainer: Trainer) -> bool:
    """Whether all steps are made, or `eval.patience` evaluations brought no improvement."""
    patience = config.eval.patience
    return trainer.step >= config.train.max_steps or 0 < patience <= trainer.progress.stale


def _finish(
    process: Process,
    folder: RunFolder,
    heldout: HeldOut,
    recorder: Recorder,
    note: StopNote,
    drained: Callable[[int], bool],
) -> None:
    """Evaluate the checkpoint that is the result, on all processes, and write result.json.

    The checkpoint is on disk already, so a kill here costs no step. When asked to stop, it returns
    without a result, and the next attempt evaluates again.
    """
    config, trainer, ranks = process.config, process.trainer, process.ranks
    is_early = trainer.step < config.train.max_steps
    step = trainer.step
    if is_early:
        checkpoints = list_checkpoints(folder.checkpoints) if ranks.rank == 0 else []
        if trainer.progress.best_step in {info.step for info in checkpoints}:
            step = trainer.progress.best_step
        step = ranks.from_first(step)  # the others wait until rank 0 has written everything
    if step != trainer.step:
        restore(trainer, join(folder.checkpoints, folder_name(step)), config, folder, ranks)
    judged, limit = judging(heldout, trainer), config.eval.final_tokens
    scores = evaluate_finally(judged, trainer.step, recorder, limit, note, drained)
    if trainer.average is not None and not trainer.average.is_ready:
        text = (
            f"the average of the weights has {plural(trainer.average.updates, 'update')}, fewer "
            "than train.average_steps, so the last weights are the result"
        )
        recorder.write(WarningGiven(step=trainer.step, text=text))
    if scores is not None:
        recorder.finish(trainer, step, scores, is_early=is_early)
