"""Writes checkpoints in a thread, from a copy in host memory, while training continues.

A checkpoint that cannot be written (a full disk, a store that does not answer) does not stop
training: the failure is reported, and earlier checkpoints are kept. Only the last checkpoint of an
attempt must succeed, which the loop ensures with `wait`.

Older checkpoints (retention.py) are removed only after the newer one was read back and verified.
"""

import json
import logging
import re
import shutil
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from safetensors.torch import save_file

from elmwright.jobs.checkpoints.checkpoint import (
    FORMAT,
    MANIFEST,
    CheckpointInfo,
    StaleAttempt,
    check_attempt,
    folder_name,
    list_checkpoints,
    read_info,
    verify_checkpoint,
)
from elmwright.jobs.checkpoints.contents import (
    CheckpointManifest,
    CheckpointState,
    FileEntry,
    contents_data,
)
from elmwright.jobs.checkpoints.retention import Keep
from elmwright.jobs.rundir.journal import Journal
from elmwright.jobs.rundir.journal_records import CheckpointPruned, CheckpointSaved, WarningGiven
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.rundir.metrics import Regime
from elmwright.pipeline.errors import Code, UserError
from elmwright.pipeline.format.manifest import canonical
from elmwright.pipeline.records import to_data
from elmwright.pipeline.storage.disk import explain, sha256_bytes, sync_to_disk
from elmwright.pipeline.storage.files import at, join
from elmwright.pipeline.storage.object_store import with_patience

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger("elmwright")
CORPUS_FILES = ("vocab.txt", "sentencepiece.model")
"""Files of the corpus that a checkpoint has copies of, to be a complete MODEL."""


@dataclass(frozen=True)
class Snapshot:
    """The content of a checkpoint, copied to the host so that training can continue."""

    step: int
    tensors: Mapping[str, Mapping[str, "Tensor"]]
    """File stem → tensors: model, softmax, optimizer, lanes, and with `train.average_steps` average
    and average_softmax."""
    state: CheckpointState
    config: dict[str, Any]
    """The content of config.json."""
    perplexity: dict[str, float]
    tokens: int
    """Held-out tokens behind that perplexity."""
    perplexity_states: Regime = "fresh"
    """How the text was read for it."""


class CheckpointWriter:
    """Writes snapshots one after the other, and records them in the journal (rank 0 only)."""

    def __init__(self, run: RunFolder, attempt: int, keep: Keep, journal: Journal) -> None:
        self._folder = run.checkpoints
        self._corpus = run.corpus
        self._root = run.root
        self._attempt_file = run.attempt
        self._attempt = attempt
        self._keep = keep
        self._journal = journal
        # On a disk, beside its place, to be renamed; for a store, on this machine, to be uploaded.
        self._is_url = at(self._folder).is_url
        self._desk = at(self._folder).local(run.scratch / "checkpoints")
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._desk.mkdir(parents=True, exist_ok=True)
        for leftover in self._desk.glob(".writing-*"):
            shutil.rmtree(leftover)
        # An earlier attempt may have been killed before it recorded a checkpoint.
        for info in list_checkpoints(self._folder):
            self._record(info)

    def save(self, snapshot: Snapshot) -> None:
        """Start writing, after waiting for the previous snapshot."""
        self.settle()
        if isinstance(self._error, StaleAttempt):
            raise self._error
        self._error = None
        self._thread = threading.Thread(
            target=self._run, args=(snapshot,), name="checkpoint", daemon=True
        )
        self._thread.start()

    def wait(self) -> None:
        """Wait for the newest snapshot; raises its error."""
        self.settle()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def settle(self) -> None:
        """Wait until nothing is being written."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self, snapshot: Snapshot) -> None:
        try:
            info = self._write(snapshot)
            verify_checkpoint(info.path)
            self._record(info)
            self._prune()
        except StaleAttempt as error:
            self._error = error
        except (OSError, UserError, SafetensorError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            sentence = (
                f"the checkpoint of step {snapshot.step:,} could not be written to {self._folder} "
                f"({reason}); earlier ones are intact"
            )
            log.warning("%s", sentence, exc_info=error)
            if isinstance(error, UserError):
                known: UserError | None = error
            else:
                known = explain(_system_error(error), Path(self._folder))
            code: Code = known.code if known else "output"
            self._error = UserError(code, f"{sentence}: free space and run the same command again")
            self._error.__cause__ = error
            try:
                self._journal.write(WarningGiven(step=snapshot.step, text=sentence))
            except StaleAttempt as stale:
                self._error = stale
        except BaseException as error:
            self._error = error

    def _record(self, info: CheckpointInfo) -> None:
        self._journal.write(
            CheckpointSaved(
                step=info.step,
                path=info.path.removeprefix(f"{self._root}/"),
                sha256=info.sha256,
                perplexity=info.perplexity,
                perplexity_states=info.perplexity_states,
            )
        )

    def _write(self, snapshot: Snapshot) -> CheckpointInfo:
        name = folder_name(snapshot.step)
        beside = self._desk / f".writing-{name}-{self._attempt}"
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True)
        try:
            for stem, tensors in snapshot.tensors.items():
                save_file(dict(tensors), beside / f"{stem}.safetensors")
            (beside / "state.json").write_text(json.dumps(contents_data(snapshot.state), indent=1))
            (beside / "config.json").write_text(json.dumps(snapshot.config, indent=1))
            for name_in_corpus in CORPUS_FILES:
                source = at(join(self._corpus, name_in_corpus))
                if name_in_corpus == "vocab.txt" or source.exists():
                    (beside / name_in_corpus).write_bytes(source.read_bytes())
            files = {
                file.name: FileEntry(file.stat().st_size, at(file).sha256())
                for file in sorted(beside.iterdir())
            }
            record = CheckpointManifest(
                FORMAT,
                snapshot.step,
                snapshot.perplexity,
                snapshot.tokens,
                files,
                snapshot.perplexity_states,
            )
            manifest = to_data(record)
            manifest["sha256"] = sha256_bytes(canonical(manifest))
            (beside / MANIFEST).write_text(json.dumps(manifest, indent=1))
            self._journal.flush()  # a checkpoint must not be ahead of the journal
            if self._is_url:
                self._upload(beside, join(self._folder, name))
            else:
                self._rename(beside, Path(self._folder) / name)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
        return read_info(join(self._folder, name))

    def _rename(self, beside: Path, target: Path) -> None:
        for file in beside.iterdir():
            sync_to_disk(file)
        sync_to_disk(beside)
        check_attempt(self._attempt_file, self._attempt)
        if target.exists():  # damaged (it was skipped at resume), or of a replaced attempt
            target.rename(self._desk / f".writing-old-{target.name}-{self._attempt}")
        beside.rename(target)
        sync_to_disk(target.parent)
        for leftover in self._desk.glob(".writing-old-*"):
            shutil.rmtree(leftover)

    def _upload(self, beside: Path, target: str) -> None:
        check_attempt(self._attempt_file, self._attempt)
        at(join(target, MANIFEST)).remove()  # damaged, or of a replaced attempt
        for file in sorted(beside.iterdir()):
            if file.name != MANIFEST:
                self._send(file, target)
        check_attempt(self._attempt_file, self._attempt)
        self._send(beside / MANIFEST, target)

    def _send(self, file: Path, target: str) -> None:
        with_patience(lambda: at(join(target, file.name)).copy_from(at(file)))

    def _prune(self) -> None:
        """Remove old checkpoints; a failure is only logged, because the newest one is safe."""
        try:
            for info in self._keep.to_remove(list_checkpoints(self._folder)):
                # Recorded before the removal, because recording it twice does no harm.
                self._journal.write(CheckpointPruned(step=info.step))
                if self._is_url:
                    # The manifest first: without it the folder does not count as a checkpoint.
                    at(join(info.path, MANIFEST)).remove()
                    at(info.path).remove_folder()
                else:
                    path = Path(info.path)
                    renamed = path.with_name(f".writing-old-{path.name}")
                    path.rename(renamed)
                    shutil.rmtree(renamed)
        except (OSError, UserError) as error:
            log.warning("an old checkpoint could not be removed: %s", error)


def _system_error(error: Exception) -> OSError:
    """The error of the operating system, whose number safetensors gives only in its text."""
    if isinstance(error, OSError):
        return error
    number = re.search(r"\(os error (\d+)\)", str(error))
    return OSError(int(number[1]) if number else 0, str(error))
