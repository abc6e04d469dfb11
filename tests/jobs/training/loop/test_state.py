"""The state that training starts from, and which checkpoints are restored into it: only those
whose tensors fit the model and the optimiser."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from elmwright.jobs.checkpoints.checkpoint import begin_attempt, list_checkpoints
from elmwright.jobs.checkpoints.contents import NUMERICS
from elmwright.jobs.rundir.journal_lines import read_journal
from elmwright.jobs.rundir.journal_records import WarningGiven
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.training.loop.exchange import Ranks
from elmwright.jobs.training.loop.starting import begin, restore
from elmwright.jobs.training.loop.train import train
from elmwright.model.softmax import Softmax
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.format.manifest import Manifest
from elmwright.pipeline.format.vocab import load_counts
from elmwright.pipeline.storage.disk import sha256_bytes
from tests.support.mistakes import mistake
from tests.support.tiny import damage, manifest
from tests.support.tiny_runs.resealed import change_state
from tests.support.tiny_runs.training import prepare

pytestmark = pytest.mark.slow(3)
Tensors = dict[str, Tensor]


def without_one(tensors: Tensors) -> Tensors:
    return dict(list(tensors.items())[1:])


def with_one_row(tensors: Tensors) -> Tensors:
    """Torch would copy the row to all rows."""
    return {name: tensor[:1].clone() for name, tensor in tensors.items()}


def as_integers(tensors: Tensors) -> Tensors:
    return {name: tensor.to(torch.int64) for name, tensor in tensors.items()}


@pytest.mark.parametrize("change", [without_one, with_one_row, as_integers])
@pytest.mark.parametrize("name", ["softmax", "lanes"])
def test_tensors_that_do_not_fit_are_refused(
    name: str, change: Callable[[Tensors], Tensors], corpus: Path, tmp_path: Path
) -> None:
    config, folder = prepare(tmp_path, corpus, train_max_steps=1)
    begin_attempt(folder.attempt)
    train(config, folder, 1, Ranks())
    trainer = begin(config, folder, Manifest.load(folder.corpus), Ranks())
    checkpoint = list_checkpoints(folder.checkpoints)[-1].path
    file = Path(checkpoint, f"{name}.safetensors")
    save_file(change(load_file(file)), file)
    with pytest.raises(UserError) as raised:
        restore(trainer, checkpoint, config, folder, Ranks())
    assert raised.value.code in ("file-damaged", "model-invalid")
    assert file.name in str(raised.value)


def test_optimiser_state_of_another_rule_is_refused(corpus: Path, tmp_path: Path) -> None:
    config, folder = prepare(tmp_path, corpus, train_max_steps=1)
    begin_attempt(folder.attempt)
    train(config, folder, 1, Ranks())
    checkpoint = list_checkpoints(folder.checkpoints)[-1].path
    (tmp_path / "other").mkdir()
    other, empty = prepare(tmp_path / "other", corpus, optim_name="adamw")
    trainer = begin(other, empty, Manifest.load(empty.corpus), Ranks())
    with pytest.raises(UserError) as raised:
        restore(trainer, checkpoint, other, empty, Ranks())
    assert "optimizer.safetensors" in str(raised.value)


def fresh_softmax(folder: Path, corpus: Path, manifest: Manifest, **changes: object) -> Softmax:
    folder.mkdir()
    config, run = prepare(folder, corpus, **changes)
    return begin(config, run, manifest, Ranks()).softmax


def with_counts(folder: Path, counts: list[int], size: int) -> tuple[Path, Manifest]:
    """A corpus with these counts and a vocabulary of that size; its other files are not needed."""
    folder.mkdir()
    file = folder / "counts.npy"
    np.save(file, np.array(counts))
    vocab = replace(manifest().vocab, size=size, counts_sha256=sha256_bytes(file.read_bytes()))
    return folder, replace(manifest(), vocab=vocab)


def test_biases_start_at_the_log_of_the_unigram_model(corpus: Path, tmp_path: Path) -> None:
    found = Manifest.load(corpus)
    softmax = fresh_softmax(tmp_path / "unigram", corpus, found)
    smoothed = load_counts(corpus / "counts.npy") + 1.0
    np.testing.assert_allclose(softmax.bias, np.log(smoothed / smoothed.sum()), rtol=1e-6)
    assert softmax.bias[0] == softmax.bias[1], "the backward model predicts <S>, not </S>"

    zero = fresh_softmax(tmp_path / "zero", corpus, found, train_softmax_init="zero")
    assert not zero.bias.any()
    assert torch.equal(softmax.weight, zero.weight * 0.3)


def test_biases_of_a_given_vocabulary_come_from_the_counts_of_this_corpus(tmp_path: Path) -> None:
    """What test_a_given_vocabulary_is_used_as_it_is counts: out of order, one word not in train."""
    counts = [2, 2, 5, 2, 0, 3]
    softmax = fresh_softmax(tmp_path / "run", *with_counts(tmp_path / "corpus", counts, 6))
    np.testing.assert_allclose(softmax.bias, np.log(np.array([3, 3, 6, 3, 1, 4]) / 20), rtol=1e-6)


@pytest.mark.parametrize("counts", [[5, 5, 1], [5, 5, -1, 7]], ids=["too few", "negative"])
def test_counts_that_cannot_be_right_are_refused(counts: list[int], tmp_path: Path) -> None:
    corpus, found = with_counts(tmp_path / "corpus", counts, 4)
    with mistake("file-damaged", "counts.npy", "build the corpus again"):
        fresh_softmax(tmp_path / "run", corpus, found)
    fresh_softmax(tmp_path / "zero", corpus, found, train_softmax_init="zero")


def test_counts_that_were_changed_are_refused(tmp_path: Path) -> None:
    corpus, found = with_counts(tmp_path / "corpus", [5, 5, 1, 7], 4)
    np.save(corpus / "counts.npy", np.array([5, 5, 7, 1]))
    with mistake("file-damaged", "counts.npy", "digest"):
        fresh_softmax(tmp_path / "run", corpus, found)


def test_a_run_resumes_without_the_counts_it_began_with(corpus: Path, tmp_path: Path) -> None:
    mine = Path(shutil.copytree(corpus, tmp_path / "corpus"))
    config, run = prepare(tmp_path, mine, train_max_steps=2)
    train(config, run, begin_attempt(run.attempt), Ranks())
    (mine / "counts.npy").write_bytes(b"damaged since")
    assert begin(config, run, Manifest.load(mine), Ranks()).step == 2


def test_a_run_keeps_the_numerics_it_began_with(corpus: Path, tmp_path: Path) -> None:
    config, run = prepare(tmp_path, corpus, train_max_steps=2)
    train(config, run, begin_attempt(run.attempt), Ranks())
    path = Path(list_checkpoints(run.checkpoints)[-1].path)
    trainer = begin(config, run, Manifest.load(corpus), Ranks())
    assert trainer.progress.numerics == NUMERICS
    for number, expected in ((1, 1), (NUMERICS, NUMERICS), (99, NUMERICS), (0, NUMERICS)):
        with_numerics(path, number)
        restore(trainer, str(path), config, run, Ranks())
        assert trainer.progress.numerics == expected
        warnings = "".join(trainer.warnings)
        assert ("but not bit for bit" in warnings) == (number != expected)
        trainer.warnings.clear()
    with_numerics(path, None)
    restore(trainer, str(path), config, run, Ranks())
    assert trainer.progress.numerics == 1, "early versions wrote no number"


def test_what_a_resume_warns_of_reaches_the_user_once(corpus: Path, tmp_path: Path) -> None:
    changes = {"checkpoint_every_steps": 1, "checkpoint_keep_last": 3}
    config, run = prepare(tmp_path, corpus, train_max_steps=3, **changes)
    train(config, run, begin_attempt(run.attempt), Ranks())
    assert warnings_of(run) == []
    _, older, newest = (Path(info.path) for info in list_checkpoints(run.checkpoints))
    change_state(older, {"numerics": 99})
    damage(newest / "model.safetensors", "flip")
    Path(run.result).unlink()
    train(config, run, begin_attempt(run.attempt), Ranks())
    damaged, numerics = warnings_of(run)
    assert damaged.startswith(f"checkpoint skipped: {newest}/model.safetensors")
    assert f"{older} was written with numerics 99" in numerics
    assert "not bit for bit" in numerics


def warnings_of(run: RunFolder) -> list[str]:
    records = [record for record, _ in read_journal(run.journal, 0)]
    return [record.text for record in records if isinstance(record, WarningGiven)]


def with_numerics(checkpoint: Path, number: int | None) -> None:
    state = json.loads((checkpoint / "state.json").read_text())
    state["numerics"] = number
    if number is None:
        del state["numerics"]
    (checkpoint / "state.json").write_text(json.dumps(state))
