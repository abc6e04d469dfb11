"""Checkpoints: complete, verified, or not there at all.

    step-00001000/
      model.safetensors        the biLM
      softmax.safetensors      the tied softmax
      optimizer.safetensors    the optimiser's accumulators
      lanes.safetensors        LSTM states of every lane, whatever the number of processes
      state.json               step, skipped updates, attempt, evaluation (contents.py)
      config.json              the resolved config (its [model] section makes this a MODEL folder)
      vocab.txt
      MANIFEST.json            size and sha256 of each file, written last

On a disk a checkpoint is written to a temporary folder, flushed, and renamed, so a folder called
`step-*` is always complete. In an object store nothing can be renamed, so a folder counts only if
it has a manifest, which is uploaded last. A process of an earlier attempt that is still alive (its
driver was killed, for example) sees a newer attempt number and writes nothing.
"""

import json
import logging
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elmwright.jobs.checkpoints.contents import CheckpointManifest, CheckpointState
from elmwright.jobs.rundir.metrics import Regime
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.format.manifest import canonical
from elmwright.pipeline.records import from_data
from elmwright.pipeline.storage.disk import sha256_bytes
from elmwright.pipeline.storage.files import at, join
from elmwright.pipeline.storage.untrusted import parse_object, read_object, read_small, whole

log = logging.getLogger("elmwright")

FORMAT = 1
MANIFEST = "MANIFEST.json"
_NAME = re.compile(r"step-(\d{8,})")


LOOK_AGAIN = (0.1, 0.5, 2.0)
"""Seconds between attempts to read an attempt number that is missing."""


class StaleAttempt(RuntimeError):  # noqa: N818 - a state, not a mistake
    """A newer attempt of this run has begun; this process must not write."""


class NewerCheckpoint(UserError):  # noqa: N818 - a state, not a mistake
    """A later version of elmwright wrote the checkpoint, and this version cannot read it."""


@dataclass(frozen=True)
class CheckpointInfo:
    """What is known about a checkpoint without loading it."""

    path: str
    """Its folder or URL."""
    step: int
    """Updates made."""
    sha256: str
    """Digest of model.safetensors."""
    bytes: int
    """Size of all files."""
    perplexity: dict[str, float]
    """Mean held-out perplexity by split; empty where none was computed at this step."""
    tokens: int
    """Held-out tokens behind that perplexity: only equal numbers can be compared."""
    perplexity_states: Regime = "carried"
    """How the text was read for it: only equal regimes can be compared."""


def folder_name(step: int) -> str:
    return f"step-{step:08d}"


def list_checkpoints(folder: str | Path) -> list[CheckpointInfo]:
    """All checkpoints with a readable manifest, oldest first; raises `NewerCheckpoint` if a later
    version wrote one of them."""
    infos = []
    for path in checkpoint_folders(folder):
        try:
            infos.append(read_info(path))
        except NewerCheckpoint:
            raise
        except UserError as error:
            log.warning("checkpoint %s is not readable: %s", path, error)
    return infos


def checkpoint_folders(folder: str | Path) -> list[str]:
    """Every folder with the name of a checkpoint, readable or not, oldest first; in a store only
    those with a manifest."""
    if at(folder).is_url:
        files = [
            file.path.removeprefix(f"{folder}/").split("/") for file in at(folder).list_files()
        ]
        names = {parts[0] for parts in files if parts[1:] == [MANIFEST]}
    else:
        names = {path.name for path in Path(folder).glob("step-*")}
    steps = sorted((int(match[1]), name) for name in names if (match := _NAME.fullmatch(name)))
    return [join(folder, name) for _, name in steps]


def read_info(path: str | Path) -> CheckpointInfo:
    manifest = _read_manifest(path)
    return CheckpointInfo(
        path=str(path),
        step=manifest.step,
        sha256=manifest.files["model.safetensors"].sha256,
        bytes=sum(entry.bytes for entry in manifest.files.values()),
        perplexity=manifest.perplexity,
        tokens=manifest.tokens,
        perplexity_states=manifest.perplexity_states,
    )


def _read_manifest(path: str | Path) -> CheckpointManifest:
    file = join(path, MANIFEST)
    try:
        data = read_small(file)
    except UserError as error:
        raise UserError("file-damaged", f"{file} is missing or damaged ({error})") from error
    return parse_manifest(data, file)


def parse_manifest(data: bytes, where: str) -> CheckpointManifest:
    """The manifest, which contains a digest of itself; UserError if it was changed."""
    try:
        manifest = json.loads(data)
        if manifest.pop("sha256") != sha256_bytes(canonical(manifest)):
            raise ValueError("it does not match its own digest")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError("file-damaged", f"{where} is missing or damaged ({error})") from error
    written = manifest.get("format")
    if whole(written) and written > FORMAT:
        raise NewerCheckpoint(
            "format",
            f"{where} has format {written!r:.50} and this version reads {FORMAT}; use the version "
            "of elmwright that wrote it, or move the checkpoint away to resume from an earlier one",
        )
    if written != FORMAT:
        raise UserError("format", f"{where} has format {written!r:.50}, not {FORMAT}")
    try:
        return from_data(CheckpointManifest, manifest, ignore_unknown=True, finite=False)
    except ValueError as error:
        raise UserError("file-damaged", f"{where} is damaged: {error}") from error


def read_state(path: str | Path) -> CheckpointState:
    """The state.json of a checkpoint."""
    file = join(path, "state.json")
    return _state(read_object(file), file)


def _state(content: dict[str, Any], file: str) -> CheckpointState:
    try:
        return from_data(CheckpointState, content, ignore_unknown=True, finite=False)
    except ValueError as error:
        raise UserError(
            "file-damaged", f"{file} does not say what a checkpoint's does; remove the checkpoint"
        ) from error


def read_checked_state(path: str | Path) -> CheckpointState | None:
    """The state.json of a checkpoint; None if it is missing or was changed."""
    content = read_checked(path, "state.json")
    return None if content is None else _state(content, join(path, "state.json"))


def read_checked(path: str | Path, name: str) -> dict[str, Any] | None:
    """A JSON file of a checkpoint; None if it is missing or was changed."""
    try:
        data = read_small(join(path, name))
        if sha256_bytes(data) == _read_manifest(path).files[name].sha256:
            return parse_object(data, join(path, name))
    except (OSError, UserError, KeyError) as error:
        log.warning("%s of checkpoint %s cannot be read: %s", name, path, error)
    return None


def verify_checkpoint(path: str | Path) -> None:
    """Compare every file with the manifest; the error names the first that differs."""
    for name, entry in _read_manifest(path).files.items():
        file = join(path, name)
        stat = at(file).stat()
        if stat is None:
            raise UserError("file-damaged", f"{file} is missing")
        if stat.bytes != entry.bytes or at(file).sha256() != entry.sha256:
            raise UserError("file-damaged", f"{file} does not match its digest")


def newest_valid(
    folder: str | Path, warn: Callable[[str], None], at_most: int | None = None
) -> CheckpointInfo | None:
    """The newest undamaged checkpoint (of step `at_most` or before); each damaged one is warned of.
    Raises `NewerCheckpoint` for one of a later version, whose steps would be repeated."""
    for path in reversed(checkpoint_folders(folder)):
        try:
            info = read_info(path)
            if at_most is not None and info.step > at_most:
                continue
            verify_checkpoint(path)
        except NewerCheckpoint:
            raise
        except UserError as error:
            warn(f"checkpoint skipped: {error}")
            continue
        return info
    return None


def fetch(path: str, scratch: Path) -> Path:
    """The local folder of a checkpoint, or of a verified copy from a store."""
    if not at(path).is_url:
        return Path(path)
    local = scratch / f"fetched-{path.rpartition('/')[2]}"
    shutil.rmtree(local, ignore_errors=True)
    local.mkdir(parents=True)
    for name in (*_read_manifest(path).files, MANIFEST):
        at(local / name).copy_from(at(join(path, name)))
    verify_checkpoint(local)
    return local


def current_attempt(path: str | Path) -> int:
    """The number of the newest attempt; 0 if the file has none."""
    attempt = (at(path).read_json() or {}).get("attempt")
    return attempt if attempt is not None and whole(attempt) else 0


def check_attempt(path: str | Path, attempt: int) -> None:
    """Raise `StaleAttempt` if a newer attempt of this run has begun."""
    newest = current_attempt(path)
    for pause in LOOK_AGAIN:
        if newest >= attempt:
            break
        # Our own number is missing: some stores show nothing while an object is replaced.
        time.sleep(pause)
        newest = current_attempt(path)
    if newest > attempt:
        raise StaleAttempt(f"attempt {newest} of this run has begun; attempt {attempt} stops")
    if newest < attempt:
        raise StaleAttempt(f"{path} no longer names attempt {attempt}, which stops")


def begin_attempt(path: str | Path, above: int = 0) -> int:
    """Take the next attempt number, which is above `above`; processes of older ones will stop."""
    attempt = max(current_attempt(path), above) + 1
    at(path).write_json({"attempt": attempt})
    return attempt
