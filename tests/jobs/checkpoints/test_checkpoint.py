"""A checkpoint is whole or not there; a damaged one is found; a stale writer writes nothing."""

import json
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from elmwright.jobs.checkpoints.checkpoint import (
    FORMAT,
    CheckpointInfo,
    StaleAttempt,
    begin_attempt,
    check_attempt,
    list_checkpoints,
    newest_valid,
    verify_checkpoint,
)
from elmwright.jobs.checkpoints.retention import Keep
from elmwright.jobs.checkpoints.writer import CheckpointWriter, Listener, Snapshot
from elmwright.pipeline.format.manifest import canonical
from elmwright.pipeline.storage.disk import sha256_bytes
from tests.support import saved
from tests.support.mistakes import mistake
from tests.support.tiny import damage


class Written:
    """A checkpoint folder with its writer, and what the writer reported."""

    def __init__(self, root: Path, keep_last: int = 2, keep_every: int = 0) -> None:
        self.folder = root / "checkpoints"
        self.attempt_file = root / "attempt.json"
        (root / "vocab.txt").write_text("<S>\n</S>\n<UNK>\n")
        self.infos: list[CheckpointInfo] = []
        self.pruned: list[int] = []
        self.warnings: list[tuple[int, str]] = []
        self.writer = CheckpointWriter(
            str(self.folder),
            str(root / "vocab.txt"),
            str(self.attempt_file),
            begin_attempt(self.attempt_file),
            Keep(keep_last, keep_every),
            root,
            Listener(
                before=lambda: None,
                written=self.infos.append,
                failed=lambda step, text: self.warnings.append((step, text)),
                pruned=self.pruned.append,
            ),
        )

    def save(self, step: int, perplexity: float | None = None, tokens: int = 100) -> None:
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
            )
        )
        self.writer.wait()

    def steps(self) -> list[int]:
        return [info.step for info in list_checkpoints(self.folder)]


def test_a_checkpoint_is_written_verified_and_reported(tmp_path: Path) -> None:
    written = Written(tmp_path)
    written.save(3)
    (info,) = written.infos
    verify_checkpoint(info.path)
    assert (info.step, Path(info.path).name, info.perplexity) == (3, "step-00000003", {})
    assert {p.name for p in Path(info.path).iterdir()} == {
        "model.safetensors",
        "softmax.safetensors",
        "optimizer.safetensors",
        "lanes.safetensors",
        "state.json",
        "config.json",
        "vocab.txt",
        "MANIFEST.json",
    }


def test_the_newest_and_the_best_are_kept(tmp_path: Path) -> None:
    written = Written(tmp_path, keep_last=2)
    for step, perplexity in ((1, 9.0), (2, 5.0), (3, 7.0), (4, None), (5, 8.0)):
        written.save(step, perplexity)
    assert written.steps() == [2, 4, 5]
    assert sorted(written.pruned) == [1, 3]


def test_scores_on_different_numbers_of_tokens_are_not_compared(tmp_path: Path) -> None:
    written = Written(tmp_path, keep_last=1)
    for step, perplexity, tokens in ((1, 9.0, 50), (2, 8.0, 50), (3, 20.0, 500), (4, None, 0)):
        written.save(step, perplexity, tokens)
    assert written.steps() == [2, 3, 4]


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
def test_a_damaged_checkpoint_is_skipped_with_a_warning_that_names_the_file(
    tmp_path: Path, name: str, how: str
) -> None:
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


def test_a_checkpoint_of_a_later_version_is_named_and_not_skipped(tmp_path: Path) -> None:
    """Skipped, it would make training repeat the steps since the one before, and lose it."""
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


def test_a_writer_of_an_older_attempt_writes_nothing(tmp_path: Path) -> None:
    written = Written(tmp_path)
    written.save(1)
    begin_attempt(written.attempt_file)
    with pytest.raises(StaleAttempt):
        written.save(2)
    assert written.steps() == [1]


def test_leftovers_of_a_killed_writer_are_removed(tmp_path: Path) -> None:
    leftover = tmp_path / "checkpoints" / ".writing-step-00000009-1"
    leftover.mkdir(parents=True)
    (leftover / "model.safetensors").write_bytes(b"half")
    written = Written(tmp_path)
    assert not leftover.exists()
    assert written.steps() == []


def test_saving_returns_before_the_files_are_written(
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


def test_a_full_disk_is_the_users_to_fix_and_leaves_earlier_ones_intact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = Written(tmp_path)
    written.save(1)

    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("elmwright.jobs.checkpoints.writer.sync_to_disk", full)
    with mistake("disk-full", "No space left on device"):
        written.save(2)
    monkeypatch.undo()
    assert written.steps() == [1]
    verify_checkpoint(written.folder / "step-00000001")
    assert not list(written.folder.glob(".writing-*"))


def test_a_manifest_cannot_point_outside_its_folder(tmp_path: Path) -> None:
    written = Written(tmp_path)
    written.save(1)
    path = written.folder / "step-00000001"
    manifest = json.loads((path / "MANIFEST.json").read_text())
    del manifest["sha256"]
    manifest["files"]["../../attempt.json"] = {"bytes": 1, "sha256": ""}
    manifest["sha256"] = sha256_bytes(canonical(manifest))
    (path / "MANIFEST.json").write_text(json.dumps(manifest))
    with mistake("file-damaged", "MANIFEST.json"):
        verify_checkpoint(path)


def test_an_attempt_number_that_is_not_there_for_a_moment_stops_nobody(tmp_path: Path) -> None:
    path = tmp_path / "attempt.json"
    mine = begin_attempt(path)
    path.unlink()  # as a store does it that is replacing the object
    threading.Timer(0.3, lambda: begin_attempt(path)).start()
    check_attempt(path, mine)
    begin_attempt(path)
    with pytest.raises(StaleAttempt, match="attempt 2"):
        check_attempt(path, mine)


def test_an_attempt_whose_number_is_gone_for_good_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elmwright.jobs.checkpoints.checkpoint.LOOK_AGAIN", (0.01,))
    with pytest.raises(StaleAttempt, match="attempt 1"):
        check_attempt(tmp_path / "attempt.json", 1)
