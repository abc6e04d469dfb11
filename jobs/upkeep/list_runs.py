"""`elmwright runs`: the runs in a folder, each with its progress, perplexity and size.

Everything is read from the runs' own files. Nothing is started, and no lock is taken. A size is the
space that a run takes on the disk: hard links (a corpus's shards are also in its work folder) count
once.
"""

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from elmwright.jobs.runbook.find_run import RUNS, runs_in
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.rundir.metrics import Regime
from elmwright.jobs.terminal.listing import table
from elmwright.jobs.terminal.wording import size
from elmwright.jobs.upkeep.status import read_progress, requested_until, state_here, submission_here
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.progress import plural
from elmwright.pipeline.records import to_data

MARK = "*"
"""Follows a perplexity that cannot be compared with the others in the table."""


@dataclass(frozen=True)
class Run:
    """A run as one line of the list."""

    name: str
    """Name of its folder, which every command takes."""
    dir: str
    """Its folder."""
    state: str
    """running, finished or interrupted."""
    stage: str
    """Its current stage; "done" after the last requested one."""
    step: int
    """Optimiser steps done."""
    max_steps: int
    """Steps requested."""
    perplexity: dict[str, float]
    """Newest held-out perplexity, by set."""
    perplexity_states: Regime
    """How the held-out text was read for it."""
    bytes: int
    """Space it takes on the disk."""
    changed: float
    """When one of its files last changed, in seconds since 1970."""


def list_runs(folder: str | Path = RUNS) -> list[Run]:
    """The runs in a folder, the most recently changed one first."""
    if not Path(folder).is_dir() and str(folder) != RUNS:
        raise UserError("file-missing", f"there is no folder {folder}; name a folder with runs")
    runs = [_read_run(path) for path in runs_in(folder)]
    return sorted(runs, key=lambda run: (-run.changed, run.name))


def _read_run(path: Path) -> Run:
    run = RunFolder.at(path)
    progress = read_progress(submission_here(run, requested_until(run)))
    state = state_here(run, progress)
    used, changed = measure(path)
    return Run(
        name=path.name,
        dir=run.root,
        state=state.word,
        stage=progress.stage if progress else "",
        step=progress.step if progress else 0,
        max_steps=progress.max_steps if progress else 0,
        perplexity=(progress.perplexity or {}) if progress else {},
        perplexity_states=progress.perplexity_states if progress else "fresh",
        bytes=used,
        changed=changed,
    )


def measure(folder: Path) -> tuple[int, float]:
    """The space that a folder takes on the disk, and when a file in it last changed."""
    sizes: dict[tuple[int, int], int] = {}
    changed = 0.0
    for status in statuses(folder):
        sizes[status.st_dev, status.st_ino] = status.st_blocks * 512
        changed = max(changed, status.st_mtime)
    return sum(sizes.values()), changed


def statuses(folder: Path) -> Iterator[os.stat_result]:
    """The `lstat` of every file below a folder, except files that are removed meanwhile."""
    for top, _, names in os.walk(folder):
        for name in names:
            try:
                yield os.lstat(os.path.join(top, name))
            except FileNotFoundError:
                continue


def as_json(runs: list[Run]) -> str:
    """The runs as JSON; times in UTC."""
    rows = to_data(runs)
    for row, run in zip(rows, runs, strict=True):
        row["changed"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(run.changed))
    return json.dumps(rows, indent=1)


def as_table(runs: list[Run]) -> list[str]:
    """The runs as a table, at most 80 columns wide unless a name is long."""
    header = ("run", "state", "step", "perplexity", "size", "changed")
    lines = table(header, map(_row, runs), None, text=(0, 1, 5))
    return [*lines, f"{MARK} (states carried over)"] if any(map(_is_carried, runs)) else lines


def _row(run: Run) -> tuple[str, ...]:
    state = run.state if run.stage in ("", "done") else f"{run.state}: {run.stage}"
    scores = list(run.perplexity.values())
    return (
        run.name,
        state,
        f"{run.step:,}/{run.max_steps:,}",
        f"{scores[0]:,.1f}{MARK if _is_carried(run) else ''}" if scores else "-",
        size(run.bytes),
        ago(time.time() - run.changed),
    )


def _is_carried(run: Run) -> bool:
    """Whether its perplexity is that of an earlier version, which reads held-out text with states
    carried over."""
    return bool(run.perplexity) and run.perplexity_states == "carried"


def ago(seconds: float) -> str:
    """A duration in its largest unit: "3 days ago", "just now"."""
    for unit, length in (("day", 86_400), ("hour", 3600), ("minute", 60)):
        count = int(max(0, seconds) // length)
        if count:
            return f"{plural(count, unit)} ago"
    return "just now"
