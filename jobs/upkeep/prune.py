"""`elmwright prune RUN`: remove files that a run no longer needs and could make again.

What goes:
  - `corpus/work`, the intermediate files of a corpus, once the corpus is finished;
  - the cache of blocks in the run's scratch folder, where that is inside the run's folder;
  - leftovers of checkpoints that were never completed;
  - checkpoints that are neither what training ended with, nor the best, nor the newest, nor kept
    for good by `checkpoint.keep_every_steps`.

What stays is all that resuming, reproducing and using the run need: the corpus and its frozen
sources, the other checkpoints, journal, bundle, MLflow, logs. A corpus in another folder
(`corpus.dir`) may be other runs' too and is left alone, and so is a scratch folder elsewhere
(`run.scratch`): any folder may have been named there, such as /tmp. If the newest checkpoint is
damaged, no checkpoint is removed, because the run may have to resume from an older one.

The run's lock is held meanwhile, so nothing is removed under a run that is running.
"""

import shutil
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from elmwright.jobs.checkpoints.checkpoint import (
    CheckpointInfo,
    list_checkpoints,
    verify_checkpoint,
)
from elmwright.jobs.checkpoints.contents import read_result
from elmwright.jobs.checkpoints.retention import Keep
from elmwright.jobs.config.toml_file import config_from
from elmwright.jobs.rundir.journal import Journal
from elmwright.jobs.rundir.journal_records import CheckpointPruned
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.rundir.run_lock import locked
from elmwright.jobs.terminal.wording import nearby, size
from elmwright.jobs.tracking.tracker import Tracker, is_caught_up
from elmwright.jobs.upkeep.list_runs import statuses
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.format.manifest import Manifest, finished_corpus
from elmwright.pipeline.storage.files import at

CACHE = "blocks"
"""What training keeps in run.scratch of a run on a disk."""
WRITING = ".writing-*"
"""Checkpoints that a killed process began, or had begun to remove."""


@dataclass(frozen=True)
class Removal:
    """Something that can go."""

    path: Path
    """A folder, or a file."""
    why: str
    """What it is."""
    bytes: int = 0
    """Bytes that its removal frees."""
    step: int = -1
    """Of a checkpoint: its step."""


def prune(
    folder: RunFolder,
    *,
    dry_run: bool = False,
    tell: Callable[[list[Removal]], None] = lambda _found: None,
) -> list[Removal]:
    """Remove what can be made again, after calling `tell` with it; `dry_run` removes nothing."""
    if folder.is_in_store:
        raise UserError(
            "run-state",
            f"{folder.root} is in an object store, and prune works on a disk; remove "
            f"{folder.root}/corpus/work with the store's own tools once the corpus is finished",
        )
    lock = Path(folder.root, "run.lock")
    before = lock.read_bytes() if lock.is_file() else b""
    with locked(folder):
        try:
            found = _sized(removals(folder))
            tell(found)
            if not dry_run:
                _remove(folder, found)
            return found
        finally:
            if before:  # `status` shows the last command that worked on the run itself
                lock.write_bytes(before)  # in place: another file would be another lock


def removals(folder: RunFolder) -> list[Removal]:
    """What can go, without sizes."""
    found = []
    root = Path(folder.root)
    work = root / "corpus" / "work"
    if not folder.corpus_dir and work.is_dir() and finished_corpus(folder.corpus) is not None:
        found.append(Removal(work, "work files of the finished corpus"))
    cache = folder.scratch / CACHE
    if folder.scratch.is_relative_to(root) and cache.is_dir():
        found.append(Removal(cache, "cache"))
    for path in sorted(Path(folder.checkpoints).glob(WRITING)):
        found.append(Removal(path, "never completed"))
    for info in spare_checkpoints(folder):
        why = "neither result, best nor newest"
        found.append(Removal(Path(info.path), why, step=info.step))
    return found


def spare_checkpoints(folder: RunFolder) -> list[CheckpointInfo]:
    """The checkpoints that are no longer needed."""
    infos = list_checkpoints(folder.checkpoints)
    if not infos:
        return []
    try:
        verify_checkpoint(infos[-1].path)
    except UserError:
        return []
    settings = (at(folder.config).read_json() or {}).get("checkpoint", {})
    result = read_result(folder.result)
    superfluous = Keep(1, int(settings.get("keep_every_steps", 0))).to_remove(infos)
    return [info for info in superfluous if not result or info.sha256 != result.checkpoint_sha256]


def _sized(found: list[Removal]) -> list[Removal]:
    """Removals with the bytes that each frees; a file that has another name frees none."""
    names: Counter[tuple[int, int]] = Counter()
    sized = []
    for removal in found:
        size = 0
        for status in statuses(removal.path):
            file = status.st_dev, status.st_ino
            names[file] += 1
            if names[file] == status.st_nlink:
                size += status.st_blocks * 512
        sized.append(Removal(removal.path, removal.why, size, removal.step))
    return sized


def _remove(folder: RunFolder, found: list[Removal]) -> None:
    checkpoints = [removal for removal in found if removal.step >= 0]
    if checkpoints:
        _forget(folder, [removal.step for removal in checkpoints])
    for removal in found:
        path = removal.path
        if removal.step >= 0:  # a folder called step-* is always whole
            path = path.rename(path.with_name(f".writing-old-{path.name}"))
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _forget(folder: RunFolder, steps: list[int]) -> None:
    """Record in the journal, and in MLflow if that was up to date, that checkpoints are removed."""
    config = config_from(at(folder.config).read_json() or {}, folder.config, saved=True)
    caught_up = is_caught_up(config, folder)
    with Journal(folder.journal) as journal:
        for step in steps:
            journal.write(CheckpointPruned(step=step))
    if journal.damage:
        print(f"warning: {journal.damage}", file=sys.stderr)
    if not caught_up:  # the next command on the run sends everything
        return
    tracker = Tracker(config, folder, Manifest.load(folder.corpus))
    tracker.start()
    problem = tracker.finish("FINISHED")
    if problem:
        print(f"warning: {problem}", file=sys.stderr)


def as_lines(folder: RunFolder, found: list[Removal]) -> list[str]:
    """What goes, for a reader."""
    root = Path(folder.root)

    def name(path: Path) -> str:
        if str(path.parent) == folder.checkpoints:
            return path.name
        return str(path.relative_to(root)) if path.is_relative_to(root) else nearby(path)

    names = [name(removal.path) for removal in found]
    wide = max(map(len, names), default=0)
    return [
        f"  {text:<{wide}}  {size(removal.bytes):>9}  {removal.why}"
        for text, removal in zip(names, found, strict=True)
    ]
