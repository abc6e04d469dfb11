"""The average of the weights in the training loop: exact on resume, and what a model is judged
by."""

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from elmwright.jobs.checkpoints.checkpoint import begin_attempt, list_checkpoints
from elmwright.jobs.checkpoints.contents import SavedScore
from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.rundir.journal_lines import read_journal
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.rundir.stop_request import ask_to_stop, withdraw_stop
from elmwright.jobs.training.loop import evaluate, training_step
from elmwright.jobs.training.loop import train as loop
from elmwright.jobs.training.loop.evaluate import Score
from elmwright.jobs.training.loop.exchange import Ranks
from elmwright.jobs.training.loop.heldout_pass import HeldOut
from elmwright.jobs.training.loop.input.stream import Batch
from elmwright.jobs.training.loop.starting import adopt, begin
from elmwright.jobs.training.loop.train import train
from elmwright.jobs.training.loop.training_step import Process, StepResult
from elmwright.jobs.using.evaluate_model import evaluate_folder
from elmwright.model.formats.folder import load_folder, model_tensors
from elmwright.pipeline.format.manifest import Manifest
from elmwright.pipeline.storage.files import at
from tests.support.mistakes import mistake
from tests.support.tiny_runs.training import STEPS, losses, prepare

pytestmark = pytest.mark.slow(13)

AVERAGE = {"train_average_steps": 6}
FILES = ("model", "softmax", "optimizer", "average", "average_softmax")


def go_on(config: RunConfig, run: RunFolder) -> None:
    train(config, run, begin_attempt(run.attempt), Ranks())


def trained(folder: Path, corpus: Path, **changes: object) -> RunFolder:
    folder.mkdir()
    config, run = prepare(folder, corpus, **{**AVERAGE, **changes})
    go_on(config, run)
    return run


def newest(run: RunFolder) -> Path:
    return Path(list_checkpoints(run.checkpoints)[-1].path)


def contents(checkpoint: Path, files: tuple[str, ...] = FILES) -> dict[str, bytes]:
    return {name: (checkpoint / f"{name}.safetensors").read_bytes() for name in files}


Weights = dict[str, torch.Tensor]


def watch(monkeypatch: pytest.MonkeyPatch) -> dict[int, Weights]:
    """The weights after each step that made an update, as they were when it was made last."""
    seen: dict[int, Weights] = {}
    real = loop.make_step

    def make_step(process: Process, batches: Sequence[Batch], wants_stop: bool) -> StepResult:
        result = real(process, batches, wants_stop)
        trainer = process.trainer
        seen.pop(trainer.step, None)
        if result.updated:
            weights = {**model_tensors(trainer.bilm), **trainer.softmax.state()}
            seen[trainer.step] = {name: value.double() for name, value in weights.items()}
        return result

    monkeypatch.setattr(loop, "make_step", make_step)
    return seen


def is_the_average_of(seen: dict[int, Weights], checkpoint: Path) -> None:
    """A checkpoint's model is the mean of the first 6, and then moves by a sixth of the way."""
    expected: Weights = {}
    for number, step in enumerate(sorted(seen), 1):
        for name, value in seen[step].items():
            before = expected.get(name, torch.zeros_like(value))
            expected[name] = before + (value - before) / min(number, 6)
    loaded = load_folder(checkpoint, with_softmax=True)
    assert loaded.is_average
    assert loaded.softmax is not None
    found = {**model_tensors(loaded.bilm), **loaded.softmax.state()}
    for name, value in expected.items():
        torch.testing.assert_close(found[name].double(), value, rtol=1e-5, atol=1e-6, msg=name)


def updates(checkpoint: Path) -> int:
    return int(load_file(checkpoint / "average_softmax.safetensors")["updates"])


@pytest.fixture(scope="module")
def whole(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run with an average that nobody disturbed."""
    return trained(tmp_path_factory.mktemp("average") / "whole", corpus)


@pytest.mark.parametrize("every", [1, 4, 7])
def test_a_run_that_is_stopped_at_many_steps_ends_in_the_same_average(
    every: int, whole: RunFolder, corpus: Path, tmp_path: Path
) -> None:
    changes = {"checkpoint_every_steps": every, "eval_every_steps": 0}
    config, parts = prepare(tmp_path, corpus, **AVERAGE, **changes)
    stops = 0
    while not at(parts.result).exists():
        if stops % 3 != 2:  # then it runs to the next checkpoint, and is killed after it
            ask_to_stop(parts.stop_request)
            go_on(config, parts)
            withdraw_stop(parts.stop_request)
        elif stops < 9:
            kill_after(config, parts, steps=every + 1)
        else:
            go_on(config, parts)
        stops += 1
    assert stops > 4
    assert contents(newest(parts)) == contents(newest(whole))


class Killed(Exception):  # noqa: N818 - a state, not a mistake
    """Ends a run between two steps, without a checkpoint."""


def kill_after(config: RunConfig, run: RunFolder, steps: int) -> None:
    """Make some steps, and save what is due, but not the end."""
    calls = iter(range(steps))

    def drained(_step: int) -> bool:
        if next(calls, None) is None:
            raise Killed
        return False

    with pytest.raises(Killed):
        train(config, run, begin_attempt(run.attempt), Ranks(), drained)
    for thread in threading.enumerate():
        if thread.name == "checkpoint":  # it would have died with its process
            thread.join()


def test_evaluations_change_neither_weights_nor_averages(
    whole: RunFolder, corpus: Path, tmp_path: Path
) -> None:
    watched = trained(tmp_path / "watched", corpus, eval_every_steps=1)
    assert contents(newest(watched)) == contents(newest(whole))


def test_the_average_changes_no_weights_and_without_it_nothing_is_written(
    whole: RunFolder, corpus: Path, tmp_path: Path
) -> None:
    plain = trained(tmp_path / "plain", corpus, train_average_steps=0)
    last = ("model", "softmax", "optimizer", "lanes")
    assert contents(newest(plain), last) == contents(newest(whole), last)
    names = {path.name for path in newest(plain).iterdir()}
    assert {path.name for path in newest(whole).iterdir()} - names == {
        "average.safetensors",
        "average_softmax.safetensors",
    }
    config = at(newest(plain) / "config.json").read_json() or {}
    assert "weights" not in config
    assert "average_steps" not in config["run_config"]["train"]


def test_the_final_evaluation_and_every_reader_use_the_average(
    whole: RunFolder, corpus: Path, tmp_path: Path
) -> None:
    checkpoint = newest(whole)
    loaded = load_folder(checkpoint, with_softmax=True)
    assert loaded.is_average
    dense = load_file(checkpoint / "average.safetensors")
    assert all(torch.equal(dense[k], v) for k, v in model_tensors(loaded.bilm).items())
    assert loaded.softmax is not None
    last = load_file(checkpoint / "softmax.safetensors")
    assert not torch.equal(loaded.softmax.weight, last["weight"])

    result = (at(whole.result).read_json() or {})["evaluation"]["heldout"]
    found = evaluate_folder(checkpoint, str(corpus), None)["heldout"]
    assert found.perplexity == pytest.approx(result["perplexity"], rel=1e-6)
    plain = trained(tmp_path / "plain", corpus, train_average_steps=0)
    other = (at(plain.result).read_json() or {})["evaluation"]["heldout"]
    assert abs(other["perplexity"] / result["perplexity"] - 1) > 1e-4


def test_evaluations_use_the_last_weights_until_the_horizon(corpus: Path, tmp_path: Path) -> None:
    changes = {"eval_every_steps": 2, "checkpoint_keep_last": 20, "checkpoint_every_steps": 2}
    run = trained(tmp_path / "run", corpus, **changes)
    plain = trained(tmp_path / "plain", corpus, train_average_steps=0, **changes)
    mine, other = evaluations(run), evaluations(plain)
    assert list(mine) == list(other) == list(range(2, STEPS + 1, 2))
    assert [step for step in mine if mine[step] != other[step]] == list(range(6, STEPS + 1, 2))
    for info in list_checkpoints(run.checkpoints):
        assert updates(Path(info.path)) == info.step
        assert load_folder(info.path).is_average == (info.step >= 6)


def evaluations(run: RunFolder) -> dict[int, float]:
    records = [r for r, _ in read_journal(run.journal, 0) if r.kind == "eval"]
    return {record.step: record.values["heldout/perplexity"] for record in records}


def test_a_step_without_update_does_not_count(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss, calls = training_step.sampled_loss, iter(range(10_000))

    def sometimes_nan(*arguments: object) -> torch.Tensor:
        value = loss(*arguments)  # type: ignore[arg-type]
        return value * float("nan") if next(calls) in (3, 4, 9) else value

    monkeypatch.setattr(training_step, "sampled_loss", sometimes_nan)
    run = trained(tmp_path / "run", corpus, train_average_steps=STEPS - 2)
    assert updates(newest(run)) == STEPS - 3
    assert not load_folder(newest(run)).is_average, "its horizon has not passed"
    assert list(losses(run)) == list(range(1, STEPS + 1))


@pytest.mark.parametrize(("every", "left_out"), [(5, 5), (100, 6)])
def test_going_back_to_a_checkpoint_or_the_start_takes_the_average_back(
    every: int, left_out: int, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three losses in a row are NaN, once. Up to three updates before them are left out, too."""
    loss, calls = training_step.sampled_loss, iter(range(10_000))

    def once_nan(*arguments: object) -> torch.Tensor:
        value = loss(*arguments)  # type: ignore[arg-type]
        return value * float("nan") if next(calls) in (12, 13, 14) else value

    monkeypatch.setattr(training_step, "sampled_loss", once_nan)
    changes = {"train_max_bad_steps": 3, "checkpoint_every_steps": every, "eval_every_steps": 0}
    seen = watch(monkeypatch)
    run = trained(tmp_path / "run", corpus, **changes)
    assert updates(newest(run)) == len(seen) == STEPS - left_out
    is_the_average_of(seen, newest(run))
    rows = load_file(newest(run) / "average_softmax.safetensors")["row_updates"]
    assert rows.max() == STEPS - left_out


def test_init_from_takes_the_average(whole: RunFolder, corpus: Path, tmp_path: Path) -> None:
    checkpoint = newest(whole)
    config, run = prepare(tmp_path, corpus, train_init_from=str(checkpoint))
    trainer = begin(config, run, Manifest.load(corpus), Ranks())
    adopt(trainer, config, run, Path)
    dense = load_file(checkpoint / "average.safetensors")
    assert all(torch.equal(dense[k], v) for k, v in model_tensors(trainer.bilm).items())
    loaded = load_folder(checkpoint, with_softmax=True)
    assert loaded.softmax is not None
    assert torch.equal(trainer.softmax.weight, loaded.softmax.weight)


def test_a_run_that_starts_from_another_model_averages_its_own_updates_alone(
    whole: RunFolder, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = watch(monkeypatch)
    run = trained(tmp_path / "run", corpus, train_init_from=str(newest(whole)))
    assert len(seen) == STEPS
    is_the_average_of(seen, newest(run))


def score_in_passing(monkeypatch: pytest.MonkeyPatch, *perplexities: float) -> None:
    """Evaluations during training give these perplexities."""
    real, in_passing = evaluate.evaluate, iter(perplexities)

    def scored(
        heldout: HeldOut, split: str, max_tokens: int | None = None, probe: int = 0
    ) -> Score:
        if max_tokens is None:
            return real(heldout, split, None, probe)
        return Score(SavedScore(perplexity=next(in_passing), tokens=100))

    monkeypatch.setattr(evaluate, "evaluate", scored)


PATIENT = {"eval_every_steps": 4, "eval_patience": 1, "train_max_steps": 400}


def test_a_best_checkpoint_that_ended_training_early_is_judged_by_its_average(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    score_in_passing(monkeypatch, 3.0, 2.0, 2.5)
    run = trained(tmp_path / "run", corpus, **PATIENT)
    result = at(run.result).read_json() or {}
    assert (result["step"], result["stopped_early"]) == (8, 1)
    found = evaluate_folder(Path(run.checkpoints, result["checkpoint"]), str(corpus), None)
    expected = result["evaluation"]["heldout"]["perplexity"]
    assert found["heldout"].perplexity == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("perplexities", "end", "best"),
    [((2.0, 3.0, 2.5, 2.7), 16, 4), ((2.0, 3.0, 2.5, 1.9, 2.2), 20, 16), ((2.0, 3.0, 3.5), 12, 4)],
)
def test_training_does_not_end_while_an_average_gets_better(
    perplexities: tuple[float, ...],
    end: int,
    best: int,
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From step 6 on the average is scored, at first worse than the last weights were before."""
    score_in_passing(monkeypatch, *perplexities)
    run = trained(tmp_path / "run", corpus, **PATIENT)
    result = at(run.result).read_json() or {}
    assert list_checkpoints(run.checkpoints)[-1].step == end
    assert (result["step"], result["stopped_early"]) == (best, 1)


def test_a_checkpoint_without_its_average_is_refused(corpus: Path, tmp_path: Path) -> None:
    config, run = prepare(tmp_path, corpus, **AVERAGE, train_max_steps=7)
    go_on(config, run)
    (newest(run) / "average_softmax.safetensors").unlink()
    with mistake("model-invalid", "average_softmax.safetensors"):
        load_folder(newest(run), with_softmax=True)
    (newest(run) / "average.safetensors").unlink()
    with mistake("model-invalid", "average.safetensors"):
        load_folder(newest(run))
