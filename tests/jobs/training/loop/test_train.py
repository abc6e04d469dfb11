"""The loop without Ray: a notebook or torchrun may call it, on one process or several."""

from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
import torch.multiprocessing as mp

from elmwright.jobs.checkpoints.checkpoint import begin_attempt, list_checkpoints
from elmwright.jobs.rundir.journal_lines import read_journal
from elmwright.jobs.rundir.stop_request import ask_to_stop, withdraw_stop
from elmwright.jobs.training.loop.exchange import Ranks, touched_rows
from elmwright.jobs.training.loop.input.blocks import Blocks
from elmwright.jobs.training.loop.input.stream import (
    Prefetch,
    Reading,
    evaluation_rounds,
    round_batches,
    training_batch,
)
from elmwright.jobs.training.loop.train import train
from elmwright.jobs.training.loop.training_step import learning_rate
from elmwright.model.config import OptimConfig
from elmwright.model.softmax import draw_negatives
from elmwright.pipeline.format.manifest import Manifest
from elmwright.pipeline.storage.disk import DiskLocation
from elmwright.pipeline.storage.files import at, join
from tests.support.servers import free_port
from tests.support.tiny_runs.training import STEPS, losses, prepare, process, weights

pytestmark = pytest.mark.slow(13)


def test_two_processes_give_the_curve_and_the_evaluation_of_one(
    corpus: Path, tmp_path: Path
) -> None:
    curves, scores = [], []
    for world in (1, 2):
        folder = tmp_path / str(world)
        folder.mkdir()
        config, run = prepare(folder, corpus, train_processes=world, train_average_steps=8)
        begin_attempt(run.attempt)
        if world == 1:
            train(config, run, 1, Ranks())
        else:
            port = free_port()
            mp.spawn(process, (world, str(folder / "tiny.toml"), port), nprocs=world)
        curves.append(losses(run))
        scores.append(at(run.result).read_json()["evaluation"]["heldout"])
    assert list(curves[0]) == list(range(1, STEPS + 1))
    for step, loss in curves[0].items():
        assert curves[1][step] == pytest.approx(loss, rel=1e-5)
    assert scores[1]["perplexity"] == pytest.approx(scores[0]["perplexity"], rel=1e-4)
    assert scores[1]["tokens"] == scores[0]["tokens"]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_stopped_and_resumed_it_ends_in_the_same_bytes(
    corpus: Path, tmp_path: Path, precision: str
) -> None:
    (tmp_path / "whole").mkdir()
    config, whole = prepare(tmp_path / "whole", corpus, train_precision=precision)
    begin_attempt(whole.attempt)
    train(config, whole, 1, Ranks())

    (tmp_path / "parts").mkdir()
    config, parts = prepare(tmp_path / "parts", corpus, train_precision=precision)
    stops = 0
    while not at(parts.result).exists():
        attempt = begin_attempt(parts.attempt)
        if stops < 3:
            ask_to_stop(parts.stop_request)  # stop at the next step boundary
        train(config, parts, attempt, Ranks())
        withdraw_stop(parts.stop_request)
        stops += 1
    assert stops == 4
    assert weights(parts) == weights(whole)
    assert losses(parts) == losses(whole)


def test_a_run_killed_before_its_result_is_evaluated_when_resumed(
    corpus: Path, tmp_path: Path
) -> None:
    config, run = prepare(tmp_path, corpus)
    train(config, run, begin_attempt(run.attempt), Ranks())
    result = at(run.result).read_json()
    assert result["evaluation"]["heldout"]["tokens"] > 0
    at(run.result).remove()
    train(config, run, begin_attempt(run.attempt), Ranks())
    assert at(run.result).read_json() == result


def test_the_journal_is_complete_before_the_result_is_written(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a kill right after the result, the rest of the journal would never be written."""
    seen: list[tuple[str, int]] = []

    write_json = DiskLocation.write_json

    def look(self: DiskLocation, content: dict[str, object]) -> None:
        if self.path == run.result:
            seen.extend((record.kind, record.step) for record, _ in read_journal(run.journal, 0))
        write_json(self, content)

    monkeypatch.setattr("elmwright.jobs.rundir.journal.FILE_SECONDS", 60.0)  # a thread that sleeps
    monkeypatch.setattr(DiskLocation, "write_json", look)
    config, run = prepare(tmp_path, corpus)
    train(config, run, begin_attempt(run.attempt), Ranks())
    assert {("metrics", STEPS), ("final", STEPS), ("checkpoint", STEPS)} <= set(seen)


def test_the_full_softmax_is_trained_when_negatives_reach_the_vocabulary(
    corpus: Path, tmp_path: Path
) -> None:
    changes = {"train_negatives": 10_000, "train_dropout": 0.0, "train_softmax_init": "zero"}
    config, run = prepare(tmp_path, corpus, **changes)
    begin_attempt(run.attempt)
    train(config, run, 1, Ranks())
    curve = losses(run)
    assert curve[1] == pytest.approx(np.log(200), rel=0.05)  # 200 words, nothing known yet
    assert curve[STEPS] < curve[1]


def test_a_run_in_bfloat16_learns_as_one_in_float32(corpus: Path, tmp_path: Path) -> None:
    curves = []
    for precision in ("fp32", "bf16"):
        folder = tmp_path / precision
        folder.mkdir()
        config, run = prepare(folder, corpus, train_precision=precision)
        begin_attempt(run.attempt)
        train(config, run, 1, Ranks())
        curves.append(losses(run))
    assert curves[1] != curves[0]
    assert curves[1] == pytest.approx(curves[0], rel=0.01)


def test_a_loss_that_is_not_finite_skips_the_update_and_is_recorded(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from elmwright.jobs.training.loop import training_step

    config, run = prepare(tmp_path, corpus)
    begin_attempt(run.attempt)
    real, calls = training_step.sampled_loss, []

    def sometimes_nan(*arguments: object) -> torch.Tensor:
        calls.append(1)
        loss = real(*arguments)  # type: ignore[arg-type]
        return loss * float("nan") if len(calls) == 5 else loss

    monkeypatch.setattr(training_step, "sampled_loss", sometimes_nan)
    train(config, run, 1, Ranks())
    state = at(join(list_checkpoints(run.checkpoints)[-1].path, "state.json")).read_json()
    assert (state["step"], state["skipped"]) == (STEPS, [4])


def test_batches_are_the_same_for_any_number_of_processes(corpus: Path) -> None:
    """The lanes of two processes, put together, are the lanes of one."""
    manifest = Manifest.load(corpus)
    blocks = Blocks(corpus, manifest, "train", 12)

    def targets(lanes: range, step: int) -> np.ndarray:
        return training_batch(blocks, Reading(5, 4, 10), step, lanes).forward_targets

    for step in (0, 7, 333):
        together = np.concatenate([targets(range(2), step), targets(range(2, 4), step)])
        np.testing.assert_array_equal(together, targets(range(4), step))


def test_an_epoch_sees_every_training_token_exactly_once(corpus: Path) -> None:
    manifest = Manifest.load(corpus)
    blocks = Blocks(corpus, manifest, "train", 12)
    reading = Reading(5, 1, 10)
    steps = len(blocks) * blocks.steps // reading.window
    seen = sum(
        training_batch(blocks, reading, step, range(1)).weights.sum() for step in range(steps)
    )
    assert int(seen) == manifest.splits["train"].steps


@pytest.mark.parametrize("lanes", [1, 2, 4, 8])
def test_evaluation_scores_every_token_once_whatever_the_lanes(corpus: Path, lanes: int) -> None:
    manifest = Manifest.load(corpus)
    blocks = Blocks(corpus, manifest, "heldout", 12)
    total = 0.0
    for owner in range(lanes):
        mine = range(owner, owner + 1)
        total += sum(
            batch.weights.sum()
            for rows in evaluation_rounds(blocks, len(blocks), mine, lanes)
            for batch in round_batches(blocks, rows, 20)
        )
    assert int(total) == manifest.splits["heldout"].steps


def test_a_batch_refers_to_each_distinct_word_once(corpus: Path) -> None:
    blocks = Blocks(corpus, Manifest.load(corpus), "train", 12)
    batch = training_batch(blocks, Reading(5, 4, 10), 3, range(4))
    assert len(np.unique(batch.chars, axis=0)) == len(batch.chars)
    used = np.union1d(batch.forward_index, batch.backward_index)
    np.testing.assert_array_equal(used, np.arange(len(batch.chars)))


def test_prefetch_error_reaches_the_training_loop(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = Blocks(corpus, Manifest.load(corpus), "train", 12)

    def broken(_number: int) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(blocks, "row", broken)
    prefetch = Prefetch(
        lambda step: training_batch(blocks, Reading(5, 4, 10), step, range(4)), 0, blocks
    )
    with pytest.raises(OSError, match="the disk is gone"):
        prefetch.next()
    prefetch.close()


def test_only_touched_softmax_rows_are_exchanged() -> None:
    """Two processes of 2,560 positions, every target another word: under 3 % of the dense one."""
    vocabulary, width = 793_471, 513
    negatives = draw_negatives(1, 7, 8192, vocabulary)
    targets = torch.randperm(vocabulary)[: 2 * 2 * 2560].view(2, 2, 2560)
    rows = touched_rows(Ranks(), targets, negatives.ids)
    exchanged = len(rows) * width * 4 + targets.numel() * 8
    assert exchanged < 0.03 * vocabulary * width * 4
    assert len(rows) == len(torch.cat([targets.flatten(), negatives.ids]).unique())


def test_learning_rate_schedules() -> None:
    constant = OptimConfig(lr=0.2, warmup_steps=4)
    assert [learning_rate(constant, s, 100) for s in (0, 3, 4, 99)] == [0.05, 0.2, 0.2, 0.2]
    cosine = OptimConfig(lr=1.0, schedule="cosine")
    assert learning_rate(cosine, 0, 100) == 1.0
    assert learning_rate(cosine, 50, 100) == pytest.approx(0.5)
    assert learning_rate(cosine, 100, 100) == pytest.approx(0.0)
    linear = OptimConfig(lr=1.0, schedule="linear", warmup_steps=20)
    assert [learning_rate(linear, s, 100) for s in (20, 40, 100)] == pytest.approx([1, 0.75, 0])
    inverse = OptimConfig(lr=1.0, schedule="inverse-sqrt", warmup_steps=100)
    assert learning_rate(inverse, 100, 0) == pytest.approx(1.0, rel=0.01)
    assert learning_rate(inverse, 399, 0) == pytest.approx(0.5)


@pytest.mark.parametrize("schedule", ["constant", "cosine", "linear", "inverse-sqrt"])
def test_warm_up_and_schedule_start_after_the_hold(
    schedule: Literal["constant", "cosine", "linear", "inverse-sqrt"],
) -> None:
    optim, hold = OptimConfig(lr=0.2, schedule=schedule, warmup_steps=4), 10
    rates = [learning_rate(optim, step, 100, hold) for step in range(101)]
    assert rates[:hold] == pytest.approx([0.05, 0.1, 0.15, *[0.2] * 7])
    assert rates[hold:] == [learning_rate(optim, step, 90) for step in range(91)]


def test_a_run_that_began_with_numerics_1_keeps_its_schedule() -> None:
    optim = OptimConfig(lr=0.2, schedule="cosine", warmup_steps=4)
    for step in range(101):
        assert learning_rate(optim, step, 100, 10, numerics=1) == learning_rate(optim, step, 100)
