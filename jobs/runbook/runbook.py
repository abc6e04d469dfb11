"""The run book: where each of this user's runs went, one small file per run.

It is stored in `~/.local/state/elmwright/runs`. Losing it loses nothing: every job writes its
submission below `run.dir` too, and each command takes `run.dir` in place of the run's name.
"""

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from elmwright.jobs.runbook.submission import Handle, Job, NoHandle, Submission
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.records import BadField, from_data, to_data
from elmwright.pipeline.storage.disk import write_atomic
from elmwright.pipeline.storage.files import (
    exists,
    is_url,
    join,
    list_folder,
    read_json,
    write_bytes,
)
from elmwright.pipeline.storage.untrusted import read_small

KEPT = 50
"""Attempts remembered of one run."""

T = TypeVar("T")


@dataclass(frozen=True)
class _Page:
    """The file of one run: its attempts, oldest first."""

    attempts: tuple[Job, ...]


@dataclass(frozen=True)
class _Answer:
    """The part of job.json that a target needs."""

    handle: Handle


@dataclass(frozen=True)
class _Outcome:
    """The file outcome.json of a job that ended."""

    exit: int


def state_home() -> Path:
    home = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(home) / "elmwright"


def remember(job: Job) -> None:
    """Record an attempt as the run's newest; an earlier record of it is replaced."""
    _write(job.submission.run, [*_others(job.submission), job])


def forget(submission: Submission) -> None:
    """Remove an attempt that the target refused."""
    others = _others(submission)
    if others:
        _write(submission.run, others)
    else:
        _page(submission.run).unlink(missing_ok=True)


def _others(submission: Submission) -> list[Job]:
    return [job for job in attempts_of(submission.run) if job.submission.id != submission.id]


def _write(name: str, attempts: list[Job]) -> None:
    path = _page(name)
    page = _Page(tuple(attempts[-KEPT:]))
    write_atomic(path, json.dumps(to_data(page), indent=1).encode())
    path.chmod(0o600)


def attempts_of(name: str) -> list[Job]:
    """All remembered attempts of a run, oldest first."""
    if not _is_name(name) or not _page(name).exists():
        return []
    try:
        page = from_data(_Page, read_json(_page(name)), ignore_unknown=True)
    except BadField:
        raise UserError(
            "file-damaged",
            f"the run book's page {_page(name)} is damaged; delete it, and give the run.dir of the "
            "run in place of its name",
        ) from None
    return list(page.attempts)


def all_runs() -> list[Job]:
    """The newest attempt of every run, newest first."""
    return read_all()[0]


def read_all() -> tuple[list[Job], list[str]]:
    """The newest attempt of every run, newest first, and a sentence for each damaged page."""
    newest, damaged = [], []
    for page in sorted((state_home() / "runs").glob("*.json")):
        try:
            newest += attempts_of(page.stem)[-1:]
        except UserError as error:
            damaged.append(str(error))
    return sorted(newest, key=lambda job: job.submission.time, reverse=True), damaged


def find_run(text: str) -> list[Job]:
    """The attempts of the run that the user means, by its name or its folder, oldest first."""
    found = attempts_of(text)
    if found:
        return found
    folder = text.rstrip("/") if is_url(text) else os.path.abspath(os.path.expanduser(text))
    left = submissions_in(folder)
    if left:
        # Attempts sent from here may still be queued, and have written nothing.
        known = {job.submission.id for job in left}
        sent = attempts_of(left[-1].submission.run)
        return left + [j for j in sent if is_for(j, folder) and j.submission.id not in known]
    if is_url(text) or exists(folder):
        copied = left_in(folder)
        why = (
            f"what is in {folder}/submissions was submitted for {copied[-1].submission.dir}"
            if copied
            else f"there is no {folder}/submissions"
        )
        raise UserError(
            "run-missing",
            f"nothing was submitted for {folder}: {why}; "
            "'elmwright submit' sends a run, 'elmwright status' tells of one that was started here",
        )
    names = ", ".join(job.submission.run for job in all_runs()[:8])
    raise UserError(
        "run-missing",
        f"there is no run {text!r} in the run book ({names or 'it is empty'}) and no folder of "
        "that name; give the run.dir of a run that was submitted elsewhere",
    )


def submissions_in(folder: str) -> list[Job]:
    """The attempts that were submitted for this very folder, oldest first.

    A copy of a run holds the attempts of its original, which are not its own: cancelling or
    resuming the copy must not affect the original. Likewise a run that was moved has none.
    """
    return [job for job in left_in(folder) if is_for(job, folder)]


def is_for(job: Job, folder: str) -> bool:
    """Whether an attempt was sent for the run in this folder."""
    return _place(job.submission.dir) == _place(folder)


def _place(folder: str) -> str:
    return folder.rstrip("/") if is_url(folder) else str(Path(folder).expanduser().resolve())


def left_in(folder: str) -> list[Job]:
    """The attempts that wrote themselves below a folder, or below the one that it was copied from,
    oldest first."""
    jobs = []
    for file in list_folder(join(folder, "submissions")):
        if file.path.endswith("/job.json"):
            data = read_small(file.path)
            try:
                jobs.append(from_data(Job, json.loads(data), ignore_unknown=True))
            except (ValueError, RecursionError):
                raise UserError("file-damaged", f"{file.path} is damaged; delete it") from None
    return sorted(jobs, key=lambda job: (job.submission.time, job.submission.id))


def handle_of(job: Job, kind: type[T]) -> T | None:
    """How the target knows an attempt: by its own answer, else as the attempt itself wrote it."""
    if isinstance(job.handle, kind):
        return job.handle
    handle = handle_left(job.submission)
    return handle if isinstance(handle, kind) else None


def handle_left(submission: Submission) -> Handle:
    """How the target knows an attempt, as the attempt itself wrote it below run.dir."""
    answer = _read(join(place_of(submission), "job.json"), _Answer)
    return answer.handle if answer else NoHandle()


def lay_down(job: Job) -> None:
    """Write the submission below run.dir, for other machines to find."""
    data = json.dumps(to_data(job), indent=1, ensure_ascii=False).encode()
    write_bytes(join(place_of(job.submission), "job.json"), data)


def lay_down_outcome(submission: Submission, code: int) -> None:
    """Write the exit code of a job below run.dir."""
    data = json.dumps(to_data(_Outcome(code))).encode()
    write_bytes(join(place_of(submission), "outcome.json"), data)


def outcome_of(submission: Submission) -> int | None:
    """The exit code that a job wrote below run.dir; None if it has not, or we cannot see it."""
    outcome = _read(join(place_of(submission), "outcome.json"), _Outcome)
    return outcome.exit if outcome else None


def _read(path: str, cls: type[T]) -> T | None:
    """The content of a JSON file; None where we cannot see it, or it is damaged."""
    try:
        return from_data(cls, read_json(path), ignore_unknown=True)
    except (OSError, UserError, BadField):
        return None


def place_of(submission: Submission) -> str:
    """Where an attempt keeps its own files, below run.dir."""
    return join(submission.dir, "submissions", submission.id)


def work_folder(submission: Submission) -> Path:
    """A folder on a disk for an attempt's code and output: below run.dir unless that is a URL."""
    if is_url(submission.dir):
        return state_home() / "submissions" / submission.id
    return Path(place_of(submission))


def _is_name(text: str) -> bool:
    return bool(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", text))


def _page(name: str) -> Path:
    return state_home() / "runs" / f"{name}.json"
