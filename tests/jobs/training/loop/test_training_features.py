"""Features of the training loop: several windows per step, early stopping, returning to a
checkpoint, starting from another model."""

import math
import time
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from elmwright.jobs.bundles.base_model import recorded_base
from elmwright.jobs.checkpoints.checkpoint import begin_attempt, list_checkpoints
from elmwright.jobs.checkpoints.contents import SavedScore
from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.config.toml_file import load_config
from elmwright.jobs.rundir.journal_lines import read_journal
from elmwright.jobs.rundir.journal_records import NoteGiven, WarningGiven
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.rundir.metrics import Regime
from elmwright.jobs.stages.base_model import NO_BASE
from elmwright.jobs.stages.stage import find_run
from elmwright.jobs.training.loop import train as loop
from elmwright.jobs.training.loop import training_step
from elmwright.jobs.training.loop.evaluate import Score
from elmwright.jobs.training.loop.exchange import Ranks
from elmwright.jobs.training.loop.state import Trainer
from elmwright.jobs.training.loop.train import train
from elmwright.jobs.training.loop.training_step import Process
from elmwright.model.config import ModelConfig
from elmwright.model.formats.bilm_format import write_options, write_weights
from elmwright.model.formats.folder import load_folder, model_tensors
from elmwright.model.optim import Optimizer
from elmwright.pipeline.errors import Failed
from elmwright.pipeline.storage.files import at, join
from tests.support.mistakes import mistake
from tests.support.tiny_runs.training import STEPS, losses, prepare, weights

pytestmark = pytest.mark.slow(13)

EVALUATE = "elmwright.jobs.training.loop.evaluate.evaluate"
NEXT_TO_NOTHING = {"optim_lr": 1e-12}
"""A learning rate that leaves the weights as they are."""


def trained(folder: Path, corpus: Path, **changes: object) -> RunFolder:
    folder.mkdir()
    config, run = prepare(folder, corpus, **changes)
    go_on(config, run)
    return run


def go_on(config: RunConfig, run: RunFolder) -> None:
    train(config, run, begin_attempt(run.attempt), Ranks())


def state(run: RunFolder) -> dict[str, object]:
    return at(join(list_checkpoints(run.checkpoints)[-1].path, "state.json")).read_json() or {}


def test_a_step_of_two_windows_has_the_mean_loss_of_both(corpus: Path, tmp_path: Path) -> None:
    same = {"train_dropout": 0.0, "train_negatives": 10_000, **NEXT_TO_NOTHING}
    single = losses(trained(tmp_path / "one", corpus, **same))
    double = losses(trained(tmp_path / "two", corpus, train_accumulate=2, **same))
    for step in (1, 2, 7):
        mean = (single[2 * step - 1] + single[2 * step]) / 2
        assert double[step] == pytest.approx(mean, rel=1e-3)  # windows differ a little in padding
    assert len(double) == STEPS


def test_gradients_of_several_windows_are_those_of_one_larger_step(
    corpus: Path, tmp_path: Path
) -> None:
    """Two windows per step change the weights differently from one window per step."""
    two = trained(tmp_path / "two", corpus, train_accumulate=2)
    again = trained(tmp_path / "again", corpus, train_accumulate=2)
    one = trained(tmp_path / "one", corpus)
    assert weights(two) == weights(again)
    assert weights(two) != weights(one)


def test_states_can_begin_at_zero_with_every_block(corpus: Path, tmp_path: Path) -> None:
    """A block of this corpus is 20 windows. The last of 4 lanes begins at window 15 of its first
    one, so its second begins with step 6, the first that differs from never resetting."""
    same = {"train_max_steps": 7, "train_dropout": 0.0}
    never = losses(trained(tmp_path / "never", corpus, train_reset_states="never", **same))
    reset = losses(trained(tmp_path / "reset", corpus, train_reset_states="block", **same))
    assert [step for step in never if never[step] != reset[step]][:1] == [6]


def test_states_begin_at_zero_with_a_share_of_the_sentences(corpus: Path, tmp_path: Path) -> None:
    same = {"train_max_steps": 3, "train_dropout": 0.0}

    def losses_with_share(share: float) -> dict[int, float]:
        return losses(trained(tmp_path / str(share), corpus, train_reset_share=share, **same))

    never = losses(trained(tmp_path / "never", corpus, train_reset_states="never", **same))
    half = losses_with_share(0.5)
    assert losses_with_share(0.0) == never
    assert half != never
    assert half != losses_with_share(1.0)


def scores(nll: dict[int, float]) -> object:
    """A fake evaluation with these results, one after the other."""

    def evaluate(*_: object, max_tokens: int | None = None, **__: object) -> Score:
        evaluate.calls += 1  # type: ignore[attr-defined]
        value = nll[evaluate.calls] if max_tokens is not None else 1.0  # type: ignore[attr-defined]
        tokens = 100 if max_tokens is not None else 1000
        return Score(SavedScore(perplexity=math.exp(value), tokens=tokens, forward_nll=value))

    evaluate.calls = 0  # type: ignore[attr-defined]
    return evaluate


def test_training_stops_early_with_the_best_checkpoint_as_result(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EVALUATE, scores({1: 3.0, 2: 2.0, 3: 2.5, 4: 2.4}))
    changes = {"eval_every_steps": 4, "eval_patience": 2, "checkpoint_keep_last": 1}
    run = trained(tmp_path / "run", corpus, train_max_steps=1000, **changes)
    result = at(run.result).read_json() or {}
    infos = {info.step: info for info in list_checkpoints(run.checkpoints)}
    assert (result["step"], result["stopped_early"]) == (8, 2)
    assert result["checkpoint_sha256"] == infos[8].sha256
    assert sorted(infos) == [8, 16], "the best, and the newest to resume from"
    assert result["evaluation"]["heldout"]["forward_nll"] == 1.0


def test_a_best_with_states_carried_over_is_not_compared_with_fresh_ones() -> None:
    """A run that an earlier version began looks for its best anew."""
    none: Any = None  # the weights do not matter
    trainer = Trainer(none, none, none, none)
    earlier: Any = {
        "best": 40.0,
        "best_step": 8,
        "best_of": 100,
        "best_states": "carried",
        "stale": 3,
    }
    trainer.progress = replace(trainer.progress, step=12, **earlier)

    def evaluated(perplexity: float, states: Regime) -> bool:
        score = SavedScore(perplexity=perplexity, tokens=100, states=states)
        return trainer.update_best({"heldout": Score(score)})

    assert not evaluated(41.0, "carried")
    assert trainer.progress.stale == 4
    assert evaluated(90.0, "fresh")
    now = trainer.progress
    assert (now.best, now.best_step, now.best_states, now.stale) == (90.0, 12, "fresh", 0)
    assert not evaluated(91.0, "fresh")
    assert evaluated(89.0, "fresh")


def test_the_final_evaluation_warns_of_a_model_that_needs_carried_states(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def evaluate(*_: object, **__: object) -> Score:
        score = SavedScore(perplexity=200.0, tokens=9, states="fresh", carried_perplexity=100.0)
        return Score(score)

    monkeypatch.setattr(EVALUATE, evaluate)
    run = trained(tmp_path / "run", corpus, train_max_steps=4, eval_every_steps=2)
    records = [record for record, _ in read_journal(run.journal, 0)]
    warnings = [record for record in records if isinstance(record, WarningGiven)]
    assert [record.step for record in warnings] == [4], "only at the end"
    assert "200.0 with fresh states" in warnings[0].text


def test_a_checkpoint_that_is_the_best_so_far_is_always_written(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EVALUATE, scores({1: 3.0, 2: 2.0, 3: 2.5, 4: 2.6, 5: 2.7}))
    changes = {"eval_every_steps": 4, "checkpoint_every_steps": 15, "checkpoint_keep_last": 1}
    run = trained(tmp_path / "run", corpus, **changes)
    assert [info.step for info in list_checkpoints(run.checkpoints)] == [8, 20]


def broken_by(update: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Losses are NaN from that update on, as long as it has been made; the updates made."""
    now: list[int] = [0]
    made: list[int] = []
    make, loss, step = loop.make_step, training_step.sampled_loss, Optimizer.step

    def note_step(process: Process, *rest: object) -> object:
        now[0] = process.trainer.step
        made[:] = [n for n in made if n < now[0]]  # later steps are computed again
        return make(process, *rest)  # type: ignore[arg-type]

    def note_update(self: Optimizer, *arguments: object) -> None:
        made.append(now[0])
        step(self, *arguments)  # type: ignore[arg-type]

    def maybe_nan(*arguments: object) -> torch.Tensor:
        value = loss(*arguments)  # type: ignore[arg-type]
        return value * float("nan") if update in made and now[0] > update else value

    monkeypatch.setattr(loop, "make_step", note_step)
    monkeypatch.setattr(training_step, "sampled_loss", maybe_nan)
    monkeypatch.setattr(Optimizer, "step", note_update)
    return made


def test_bad_steps_rewind_to_a_checkpoint_and_skip_the_updates_before_them(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = broken_by(10, monkeypatch)
    run = trained(tmp_path / "run", corpus, train_max_bad_steps=3)
    offending = [9, 10, 11, 12, 13]  # step 9 is where the newest checkpoint stood
    assert state(run)["skipped"] == offending
    assert made == [step for step in range(STEPS) if step not in offending]
    assert list(losses(run)) == list(range(1, STEPS + 1)), "each step is in the journal once"


def test_rewinding_before_the_first_checkpoint_starts_from_the_seed(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken_by(2, monkeypatch)
    changes = {"train_max_bad_steps": 2, "checkpoint_every_steps": 100, "eval_every_steps": 0}
    run = trained(tmp_path / "run", corpus, **changes)
    assert state(run)["skipped"] == [1, 2, 3, 4]


def test_training_fails_if_rewinding_does_not_help(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, loss, calls = loop.make_step, training_step.sampled_loss, []

    def note(process: Process, *rest: object) -> object:
        calls.append(process.trainer.step)
        return make(process, *rest)  # type: ignore[arg-type]

    def bad(*arguments: object) -> torch.Tensor:
        return loss(*arguments) * (float("nan") if calls[-1] > 6 else 1)  # type: ignore[arg-type]

    monkeypatch.setattr(loop, "make_step", note)
    monkeypatch.setattr(training_step, "sampled_loss", bad)
    with pytest.raises(Failed, match=r"from step 10 on, 3 .* has not helped; lower optim.lr"):
        trained(tmp_path / "run", corpus, train_max_bad_steps=3)
    assert max(calls) == 12


def test_init_from_copies_the_bilm_and_the_softmax_rows_of_shared_words(
    corpus: Path, tmp_path: Path
) -> None:
    first = trained(tmp_path / "first", corpus)
    model = list_checkpoints(first.checkpoints)[-1].path
    same = {"train_init_from": model, "train_dropout": 0.0, "train_negatives": 10_000}
    second = trained(tmp_path / "second", corpus, train_max_steps=1, **same)
    notes = [r.text for r, _ in read_journal(second.journal, 0) if isinstance(r, NoteGiven)]
    size = len(Path(corpus, "vocab.txt").read_text().splitlines())
    told = f"{size:,} of {size:,} softmax rows are those of the same words in {model}"
    assert notes == [told]
    fresh = trained(tmp_path / "fresh", corpus, train_max_steps=1, train_negatives=10_000)
    assert losses(second)[1] < losses(fresh)[1] - 0.1
    base = recorded_base(second.train)
    assert base is not None
    assert base.sha256 == list_checkpoints(first.checkpoints)[-1].sha256
    assert recorded_base(fresh.train) is None

    # Once there is a checkpoint, its shape counts, and the base may be gone.
    config = load_config(str(tmp_path / "second" / "tiny.toml"))
    moved = replace(config.train, init_from="gone")
    again = find_run(replace(config, model=ModelConfig(), train=moved), second)
    assert again.config.model == config.model
    assert again.base == NO_BASE

    folder = tmp_path / "other"
    folder.mkdir()
    words = Path(corpus, "vocab.txt").read_text().split("\n")[:-1]
    loaded = load_folder(model, with_softmax=True)
    assert loaded.softmax is not None
    config, run = prepare(folder, corpus, train_init_from=model)
    swapped = [*words[:3], words[4], words[3], "unheard-of", *words[6:]]
    mine = tmp_path / "corpus"
    mine.mkdir()
    (mine / "vocab.txt").write_text("\n".join(swapped) + "\n")
    from elmwright.jobs.training.loop.starting import adopt, begin
    from elmwright.pipeline.format.manifest import Manifest

    blank, _ = prepare_blank(tmp_path / "blank", corpus)
    trainer = begin(blank, run, Manifest.load(corpus), Ranks())
    untouched = trainer.softmax.weight[5].clone()
    adopt(trainer, config, RunFolder(run.root, run.scratch, str(mine)), Path)
    theirs = loaded.softmax.weight
    assert torch.equal(trainer.softmax.weight[3], theirs[4])
    assert torch.equal(trainer.softmax.weight[4], theirs[3])
    assert torch.equal(trainer.softmax.weight[5], untouched)
    assert torch.equal(trainer.softmax.bias[7], loaded.softmax.bias[7])
    assert trainer.adopted.startswith(f"{len(words) - 1:,} of {len(words):,} softmax rows")


def prepare_blank(folder: Path, corpus: Path) -> tuple[RunConfig, RunFolder]:
    folder.mkdir()
    return prepare(folder, corpus)


def test_init_from_a_bilm_folder_has_a_new_softmax_and_hold_steps_freeze_the_rest(
    corpus: Path, tmp_path: Path
) -> None:
    first = trained(tmp_path / "first", corpus)
    loaded = load_folder(list_checkpoints(first.checkpoints)[-1].path)
    bilm = tmp_path / "bilm"
    bilm.mkdir()
    write_options(bilm / "options.json", loaded.config, {})
    write_weights(bilm / "weights.hdf5", loaded.config, model_tensors(loaded.bilm))
    held = trained(
        tmp_path / "held",
        corpus,
        train_init_from=str(bilm),
        train_softmax_init="zero",
        train_hold_steps=6,
        train_max_steps=7,
    )
    at = {
        info.step: load_file(join(info.path, "model.safetensors"))
        for info in list_checkpoints(held.checkpoints)
    }
    original = model_tensors(loaded.bilm)
    assert all(torch.equal(at[6][name], tensor) for name, tensor in original.items())
    assert not all(torch.equal(at[7][name], tensor) for name, tensor in original.items())
    rows = load_file(join(list_checkpoints(held.checkpoints)[-1].path, "softmax.safetensors"))
    assert rows["bias"].any(), "the softmax has been trained meanwhile"


def test_the_first_update_after_the_hold_is_no_larger_than_any_first_update(
    corpus: Path, tmp_path: Path
) -> None:
    """AdamW changes every number by the learning rate at first, whatever its gradient."""
    adamw = {"optim_name": "adamw", "optim_lr": 0.01, "optim_betas": [0.0, 0.999]}
    held = trained(tmp_path / "run", corpus, train_hold_steps=6, train_max_steps=7, **adamw)
    before, after = (
        load_file(join(info.path, "model.safetensors"))
        for info in list_checkpoints(held.checkpoints)[-2:]
    )
    changes = [(after[name] - before[name]).abs().max().item() for name in before]
    assert max(changes) == pytest.approx(0.01, rel=1e-3)


def test_a_model_of_another_shape_cannot_be_trained_further(corpus: Path, tmp_path: Path) -> None:
    first = trained(tmp_path / "first", corpus, train_max_steps=1)
    model = list_checkpoints(first.checkpoints)[-1].path
    with mistake("model-invalid", "model.dim", "24", "train.init_from", "16"):
        trained(tmp_path / "second", corpus, train_init_from=model, model_dim=24)


def test_the_metrics_of_a_step(corpus: Path, tmp_path: Path) -> None:
    run = trained(tmp_path / "run", corpus)
    records = [r for r, _ in read_journal(run.journal, 0) if r.kind == "metrics"]
    values = records[-1].values
    shares = {name: value for name, value in values.items() if name.startswith("time/")}
    assert {"time/load_share", "time/compute_share", "time/exchange_share"} <= shares.keys()
    assert min(shares.values()) > 0  # test_measurements.py has what they add up to
    assert 0 < values["train/flop_utilisation"] < 1
    assert records[0].values["system/process_memory_mb"] > 50
    assert values["train/tokens_per_s"] > 0


def test_a_clock_that_jumps_changes_nothing(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calm = trained(tmp_path / "calm", corpus)
    real, calls = time.time, count()
    # An hour back, and a day ahead, at every other look.
    monkeypatch.setattr(time, "time", lambda: real() + (-3600, 86_400)[next(calls) % 2])
    wild = trained(tmp_path / "wild", corpus)
    records = [r for r, _ in read_journal(wild.journal, 0) if r.kind == "metrics"]
    times = [record.time for record in records]
    assert sorted(times) != times, "the clock did not jump"
    assert all(record.values.get("train/tokens_per_s", 1) > 0 for record in records)
    assert losses(wild) == losses(calm)
    assert weights(wild) == weights(calm)
