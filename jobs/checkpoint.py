"""Checkpoints: complete, verified, or not there at all.

    step-00001000/
      model.safetensors        the biLM
      softmax.safetensors      the tied softmax
      optimizer.safetensors    the optimiser's accumulators
      lanes.safetensors        LSTM states of every lane, whatever the number of processes
      state.json               step, skipped updates, attempt, evaluation if there was one
      config.json              the resolved config (its [model] section makes this a MODEL folder)
      vocab.txt
      MANIFEST.json            size and sha256 of each file, written last

A checkpoint is written beside its place, flushed to the disk, and renamed into it by a background
thread working on a host copy; so a folder called `step-*` is always whole. Older ones are removed
only after the newer one has been read back and verified. A process of an earlier attempt that is
still alive (its driver was killed, say) sees a newer attempt number and writes nothing.
"""

import json
import logging
import re
import shutil
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elmwright.pipeline.errors import UserError
from elmwright.pipeline.files import read_bytes
from elmwright.pipeline.manifest import canonical
from elmwright.pipeline.storage import (
    read_json,
    sha256_bytes,
    sha256_file,
    sync_to_disk,
    write_atomic,
)

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger("elmwright")

FORMAT = 1
MANIFEST = "MANIFEST.json"
_NAME = re.compile(r"step-(\d{8,})")


class StaleAttempt(RuntimeError):  # noqa: N818 - a state of the world, reported as such
    """A newer attempt of this run has begun; this process must not write."""


@dataclass(frozen=True)
class CheckpointInfo:
    """What is known about a checkpoint without loading it."""

    path: Path
    """Its folder."""
    step: int
    """Updates made."""
    sha256: str
    """Digest of model.safetensors."""
    bytes: int
    """Size of all files."""
    perplexity: dict[str, float]
    """Mean held-out perplexity by split; empty where none was computed at this step."""
    tokens: int
    """Held-out tokens that perplexity was computed on: only equal numbers can be compared."""


def folder_name(step: int) -> str:
    return f"step-{step:08d}"


def list_checkpoints(folder: Path) -> list[CheckpointInfo]:
    """All checkpoints with a readable manifest, oldest first."""
    found = []
    for path in sorted(folder.glob("step-*")):
        if not _NAME.fullmatch(path.name):
            continue
        try:
            found.append(read_info(path))
        except UserError as error:
            log.warning("checkpoint %s is not readable: %s", path, error)
    return sorted(found, key=lambda info: info.step)


def read_info(path: Path) -> CheckpointInfo:
    manifest = _read_manifest(path)
    files = manifest["files"]
    return CheckpointInfo(
        path=path,
        step=int(manifest["step"]),
        sha256=files["model.safetensors"]["sha256"],
        bytes=sum(entry["bytes"] for entry in files.values()),
        perplexity=manifest["perplexity"],
        tokens=manifest["tokens"],
    )


def _read_manifest(path: Path) -> dict[str, Any]:
    """The manifest, if it is exactly what was written: it carries a digest of itself."""
    file = path / MANIFEST
    try:
        manifest = json.loads(file.read_bytes())
        if manifest.pop("sha256") != sha256_bytes(canonical(manifest)):
            raise ValueError("it does not match its own digest")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{file} is missing or damaged ({error})") from error
    if manifest["format"] != FORMAT:
        raise UserError(f"{path} has checkpoint format {manifest['format']}, not {FORMAT}")
    return dict(manifest)


def verify_checkpoint(path: Path) -> None:
    """Compare every file with the manifest; the error names the first that differs."""
    for name, entry in _read_manifest(path)["files"].items():
        file = path / name
        if Path(name).name != name:
            raise UserError(f"{path / MANIFEST} names a file outside its folder: {name!r}")
        if not file.is_file():
            raise UserError(f"{file} is missing")
        if file.stat().st_size != entry["bytes"] or sha256_file(file) != entry["sha256"]:
            raise UserError(f"{file} does not match its digest")


def newest_valid(folder: Path, warn: Callable[[str], None]) -> CheckpointInfo | None:
    """The newest checkpoint that verifies; damaged ones are skipped with a warning each."""
    for path in sorted(folder.glob("step-*"), reverse=True):
        if not _NAME.fullmatch(path.name):
            continue
        try:
            verify_checkpoint(path)
            return read_info(path)
        except UserError as error:
            warn(f"checkpoint skipped: {error}")
    return None


def current_attempt(path: Path) -> int:
    content = read_json(path)
    return int(content["attempt"]) if content else 0


def check_attempt(path: Path, attempt: int) -> None:
    """Raise if a newer attempt of this run has begun: this process must write no more."""
    newest = current_attempt(path)
    if newest != attempt:
        raise StaleAttempt(f"attempt {newest} of this run has begun; attempt {attempt} stops")


def begin_attempt(path: Path) -> int:
    """Take the next attempt number; whoever still writes under an older one will stop."""
    attempt = current_attempt(path) + 1
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, json.dumps({"attempt": attempt}).encode())
    return attempt


@dataclass(frozen=True)
class Snapshot:
    """Everything a checkpoint holds, copied to the host so that training can go on."""

    step: int
    tensors: Mapping[str, Mapping[str, "Tensor"]]
    """File stem → tensors: model, softmax, optimizer, lanes."""
    state: dict[str, Any]
    config: dict[str, Any]
    perplexity: dict[str, float]
    tokens: int
    """Held-out tokens behind that perplexity."""


class CheckpointWriter:
    """Writes snapshots one after the other in a thread of its own (rank 0 only)."""

    def __init__(
        self,
        folder: Path,
        vocab: str,
        attempt_file: Path,
        attempt: int,
        keep_last: int,
        written: Callable[[CheckpointInfo], None],
        pruned: Callable[[int], None],
    ) -> None:
        self._folder, self._vocab = folder, vocab
        self._attempt_file, self._attempt = attempt_file, attempt
        self._keep_last = keep_last
        self._written, self._pruned = written, pruned
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob(".writing-*"):
            shutil.rmtree(leftover)

    def save(self, snapshot: Snapshot) -> None:
        """Start writing; waits only if the one before is not finished."""
        self.wait()
        self._thread = threading.Thread(
            target=self._run, args=(snapshot,), name="checkpoint", daemon=True
        )
        self._thread.start()

    def wait(self) -> None:
        """Until the newest snapshot is safe; raises what went wrong with it."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _run(self, snapshot: Snapshot) -> None:
        try:
            info = self._write(snapshot)
            verify_checkpoint(info.path)
            self._written(info)
            self._prune()
        except BaseException as error:
            self._error = error

    def _write(self, snapshot: Snapshot) -> CheckpointInfo:
        from safetensors.torch import save_file

        target = self._folder / folder_name(snapshot.step)
        beside = self._folder / f".writing-{folder_name(snapshot.step)}-{self._attempt}"
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir()
        try:
            for stem, tensors in snapshot.tensors.items():
                save_file(dict(tensors), beside / f"{stem}.safetensors")
            (beside / "state.json").write_text(json.dumps(snapshot.state, indent=1))
            (beside / "config.json").write_text(json.dumps(snapshot.config, indent=1))
            (beside / "vocab.txt").write_bytes(read_bytes(self._vocab))
            files = {
                file.name: {"bytes": file.stat().st_size, "sha256": sha256_file(file)}
                for file in sorted(beside.iterdir())
            }
            manifest = {
                "format": FORMAT,
                "step": snapshot.step,
                "perplexity": snapshot.perplexity,
                "tokens": snapshot.tokens,
                "files": files,
            }
            manifest["sha256"] = sha256_bytes(canonical(manifest))
            (beside / MANIFEST).write_text(json.dumps(manifest, indent=1))
            for file in beside.iterdir():
                sync_to_disk(file)
            sync_to_disk(beside)
            check_attempt(self._attempt_file, self._attempt)
            if target.exists():  # damaged (it was skipped at resume), or of a replaced attempt
                target.rename(self._folder / f".writing-old-{target.name}-{self._attempt}")
            beside.rename(target)
            sync_to_disk(self._folder)
        except OSError as error:
            shutil.rmtree(beside, ignore_errors=True)
            raise UserError(
                f"checkpoint {target} could not be written ({error.strerror}); earlier ones are "
                "intact: make room and run the same command again"
            ) from error
        for leftover in self._folder.glob(".writing-old-*"):
            shutil.rmtree(leftover)
        return read_info(target)

    def _prune(self) -> None:
        """Keep the newest `keep_last` and the best by held-out perplexity.

        An evaluation in the loop and the final one score different numbers of tokens and are not
        compared: there can be a best of each kind.
        """
        infos = list_checkpoints(self._folder)
        keep = {info.step for info in infos[-self._keep_last :]}
        best: dict[int, tuple[float, int]] = {}
        for info in infos:
            for score in list(info.perplexity.values())[:1]:
                mine = (score, info.step)
                best[info.tokens] = min(best.get(info.tokens, mine), mine)
        keep |= {step for _, step in best.values()}
        for info in infos:
            if info.step not in keep:
                self._pruned(info.step)  # said first: what is said twice does no harm
                doomed = info.path.with_name(f".writing-old-{info.path.name}")
                info.path.rename(doomed)
                shutil.rmtree(doomed)
