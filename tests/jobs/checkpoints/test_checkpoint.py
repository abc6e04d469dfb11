"""Checkpoints are complete or absent, damage is found, and a stale writer writes nothing."""

import json
import threading
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from elmwright.jobs.checkpoints.checkpoint import (
    FORMAT,
    StaleAttempt,
    begin_attempt,
    check_attempt,
    list_checkpoints,
    newest_valid,
    verify_checkpoint,
)
from elmwright.jobs.checkpoints.retention import Keep
from elmwright.jobs.checkpoints.writer import CheckpointWriter, Snapshot
from elmwright.jobs.rundir.journal import Journal
from elmwright.jobs.rundir.journal_lines import read_journal
from elmwright.jobs.rundir.journal_records import CheckpointPruned, CheckpointSaved, Record
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.rundir.metrics import Regime
from elmwright.pipeline.format.manifest import canonical
from elmwright.pipeline.storage.disk import sha256_bytes
from tests.support import saved
from tests.support.mistakes import mistake
from tests.support.tiny import damage


class Written:
    """A run with a checkpoint writer and a journal."""

    def __init__(self, root: Path, keep_last: int = 2) -> None:
        run = RunFolder(str(root), root / "scratch")
        self.folder = Path(run.checkpoints)
        self.attempt_file = run.attempt
        self._journal = Journal(run.journal)
        (root / "corpus").mkdir()
        (root / "corpus" / "vocab.txt").write_text("<S>\n</S>\n<UNK>\n")
        attempt = begin_attempt(run.attempt)
        keep = Keep(keep_last)
        self.writer = CheckpointWriter(run, attempt, keep, self._journal)
        self._records = run.journal

    def records(self) -> list[Record]:
        self._journal.flush()
        return [record for record, _ in read_journal(self._records, 0)]

    def save(
        self,
        step: int,
        perplexity: float | None = None,
        tokens: int = 100,
        states: Regime = "fresh",
    ) -> None:
        tensors = {"weight": torch.full((4, 3), float(step))}
        stems = ("model", "softmax", "optimizer", "lanes")
        self.writer.save(
            Snapshot(
                step=step,
                tensors=dict.fromkeys(stems, tensors),
                state=saved.state(step),
                config={"format": 1},
                perplexity={} if perplexity is None else {"heldout": perplexity},
                tokens=tokens,
                perplexity_states=states,
            )
        )
        self.writer.wait()

    def steps(self) -> list[int]:
        return [info.step for info in list_checkpoints(self.folder)]


def test_checkpoint_is_written_verified_and_recorded(tmp_path: Path) -> None:
    written = Written(tmp_path)
    written.save(3)
    (record,) = written.records()
    assert isinstance(record, CheckpointSaved)
    path = tmp_path / record.path
    verify_checkpoint(path)
    assert (record.step, path.name, record.perplexity) == (3, "step-00000003", {})
    assert {file.name for file in path.iterdir()} == {
        "model.safetensors",
        "softmax.safetensors",
        "optimizer.safetensors",
        "lanes.safetensors",
        "state.json",
        "config.json",
        "vocab.txt",
        "MANIFEST.json",
    }


def test_newest_and_best_checkpoints_are_kept(tmp_path: Path) -> None:
    written = Written(tmp_path, keep_last=2)
    for step, perplexity in ((1, 9.0), (2, 5.0), (3, 7.0), (4, None), (5, 8.0)):
        written.save(step, perplexity)
    assert written.steps() == [2, 4, 5]
    pruned = [r.step for r in written.records() if isinstance(r, CheckpointPruned)]
    assert sorted(pruned) == [1, 3]


def test_scores_on_different_numbers_of_tokens_are_not_compared(tmp_path: Path) -> None:
    written = Written(tmp_path, keep_last=1)
    for step, perplexity, tokens in ((1, 9.0, 50), (2, 8.0, 50), (3, 20.0, 500), (4, None, 0)):
        written.save(step, perplexity, tokens)
    assert written.steps() == [2, 3, 4]


def test_scores_with_different_states_are_not_compared(tmp_path: Path) -> None:
    written = Written(tmp_path, keep_last=1)
    saved_with: list[tuple[float, Regime]] = [
        (9.0, "carried"),
        (8.0, "carried"),
        (20.0, "fresh"),
        (21.0, "fresh"),
    ]
    for step, (perplexity, states) in enumerate(saved_with):
        written.save(step, perplexity, states=states)
    assert written.steps() == [1, 2, 3]
    infos = {info.step: info.perplexity_states for info in list_checkpoints(written.folder)}
    assert infos == {1: "carried", 2: "fresh", 3: "fresh"}
    recorded = [r.perplexity_states for r in written.records() if isinstance(r, CheckpointSaved)]
    assert recorded == ["carried", "carried", "fresh", "fresh"]


@pytest.mark.parametrize("how", ["truncate", "flip", "delete"])
@pytest.mark.parametrize(
    "name",
    [
        "model.safetensors",
        "softmax.safetensors",
        "optimizer.safetensors",
        "lanes.safetensors",
        "state.json",
        "config.json",
        "vocab.txt",
        "MANIFEST.json",
    ],
)
def test_damaged_checkpoint_is_skipped_with_a_warning(tmp_path: Path, name: str, how: str) -> None:
    written = Written(tmp_path)
    written.save(1)
    written.save(2)
    file = written.folder / "step-00000002" / name
    damage(file, how)
    warnings: list[str] = []
    newest = newest_valid(written.folder, warnings.append)
    assert newest is not None
    assert newest.step == 1
    assert len(warnings) == 1
    assert name in warnings[0]


def test_checkpoint_of_a_later_version_is_refused(tmp_path: Path) -> None:
    """If it were skipped, training would repeat its steps and replace it."""
    written = Written(tmp_path)
    written.save(1)
    written.save(2)
    path = written.folder / "step-00000002" / "MANIFEST.json"
    manifest = json.loads(path.read_text()) | {"format": FORMAT + 1}
    del manifest["sha256"]
    path.write_text(json.dumps(manifest | {"sha256": sha256_bytes(canonical(manifest))}))
    for use in (
        lambda: newest_valid(written.folder, pytest.fail),
        lambda: list_checkpoints(written.folder),
    ):
        with mistake("format", "step-00000002", "format 2"):
            use()


def test_writer_of_an_older_attempt_writes_nothing(tmp_path: Path) -> None:
    written = Written(tmp_path)
    written.save(1)
    begin_attempt(written.attempt_file)
    with pytest.raises(StaleAttempt):
        written.save(2)
    assert written.steps() == [1]


def test_leftovers_of_a_killed_writer_are_removed(tmp_path: Path) -> None:
    leftover = tmp_path / "train" / "checkpoints" / ".writing-step-00000009-1"
    leftover.mkdir(parents=True)
    (leftover / "model.safetensors").write_bytes(b"half")
    written = Written(tmp_path)
    assert not leftover.exists()
    assert written.steps() == []


def test_save_returns_before_the_files_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    returned = threading.Event()
    waited = []

    def slow(tensors: dict[str, torch.Tensor], file: Path) -> None:
        waited.append(returned.wait(60))
        save_file(tensors, file)

    monkeypatch.setattr("elmwright.jobs.checkpoints.writer.save_file", slow)
    written = Written(tmp_path)
    tensors = {"weight": torch.zeros(3)}
    snapshot = Snapshot(1, dict.fromkeys(("model", "softmax"), tensors), saved.state(1), {}, {}, 0)
    written.writer.save(snapshot)
    returned.set()
    written.writer.wait()
    assert waited == [True, True]
    assert written.steps() == [1]


FULL = "No space left on device"


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("sync_to_disk", OSError(28, FULL)),
        ("save_file", SafetensorError(f"Error while serializing: I/O error: {FULL} (os error 28)")),
    ],
)
def test_full_disk_leaves_earlier_checkpoints_intact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, error: Exception
) -> None:
    written = Written(tmp_path)
    written.save(1)

    def full(*_arguments: object) -> None:
        raise error

    monkeypatch.setattr(f"elmwright.jobs.checkpoints.writer.{name}", full)
    with mistake("disk-full", FULL):
        written.save(2)
    monkeypatch.undo()
    assert [record.kind for record in written.records()] == ["checkpoint", "warning"]
    assert written.steps() == [1]
    verify_checkpoint(written.folder / "step-00000001")
    assert not list(written.folder.glob(".writing-*"))


def test_manifest_cannot_name_files_outside_its_folder(tmp_path: Path) -> None:
    written = Written(tmp_path)
    written.save(1)
    path = written.folder / "step-00000001"
    manifest = json.loads((path / "MANIFEST.json").read_text())
    del manifest["sha256"]
    manifest["files"]["../../attempt.json"] = {"bytes": 1, "sha256": "0" * 64}
    manifest["sha256"] = sha256_bytes(canonical(manifest))
    (path / "MANIFEST.json").write_text(json.dumps(manifest))
    with mistake("file-damaged", "MANIFEST.json"):
        verify_checkpoint(path)


def test_attempt_number_may_be_missing_for_a_moment(tmp_path: Path) -> None:
    path = tmp_path / "attempt.json"
    attempt = begin_attempt(path)
    path.unlink()  # as in a store while an object is replaced
    threading.Timer(0.3, lambda: begin_attempt(path)).start()
    check_attempt(path, attempt)
    begin_attempt(path)
    with pytest.raises(StaleAttempt, match="attempt 2"):
        check_attempt(path, attempt)


def test_attempt_stops_if_its_number_stays_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elmwright.jobs.checkpoints.checkpoint.LOOK_AGAIN", (0.01,))
    with pytest.raises(StaleAttempt, match="attempt 1"):
        check_attempt(tmp_path / "attempt.json", 1)
