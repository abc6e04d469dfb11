"""The run book: to which targets each run of this user was submitted, one small file per run.

It is stored in `~/.local/state/elmwright/runs`, and may be deleted: every job writes its submission
below `run.dir` too, and each command accepts `run.dir` in place of the run's name.
"""

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from elmwright.jobs.runbook.submission import Handle, Job, Submission
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.records import BadField, from_data, to_data
from elmwright.pipeline.storage.files import at, join
from elmwright.pipeline.storage.untrusted import read_small

MAX_ATTEMPTS = 50
"""How many attempts of a run are kept, the newest ones."""

T = TypeVar("T")


@dataclass(frozen=True)
class _Page:
    """The file of one run: its attempts, oldest first."""

    attempts: tuple[Job, ...]


@dataclass(frozen=True)
class _JobHandle:
    """The handle in job.json, without the fields that a target does not need."""

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
    _write(job.submission.run, [*_other_attempts(job.submission), job])


def forget(submission: Submission) -> None:
    """Remove an attempt that the target refused."""
    attempts = _other_attempts(submission)
    if attempts:
        _write(submission.run, attempts)
    else:
        _page(submission.run).unlink(missing_ok=True)


def _other_attempts(submission: Submission) -> list[Job]:
    return [job for job in attempts_of(submission.run) if job.submission.id != submission.id]


def _write(name: str, attempts: list[Job]) -> None:
    path = _page(name)
    page = _Page(tuple(attempts[-MAX_ATTEMPTS:]))
    at(path).write_bytes(json.dumps(to_data(page), indent=1).encode())
    path.chmod(0o600)


def attempts_of(name: str) -> list[Job]:
    """The attempts of a run in the run book, oldest first."""
    if not is_name(name) or not _page(name).exists():
        return []
    try:
        page = from_data(_Page, at(_page(name)).read_json(), ignore_unknown=True)
    except BadField:
        raise UserError(
            "file-damaged",
            f"the run book's page {_page(name)} is damaged; delete it, and give the run.dir of the "
            "run in place of its name",
        ) from None
    return list(page.attempts)


def read_all() -> tuple[list[Job], list[str]]:
    """The newest attempt of every run, newest first, and a sentence for each damaged page."""
    newest, damaged = [], []
    for page in sorted((state_home() / "runs").glob("*.json")):
        try:
            newest += attempts_of(page.stem)[-1:]
        except UserError as error:
            damaged.append(str(error))
    return sorted(newest, key=lambda job: job.submission.time, reverse=True), damaged


def attempts_at(folder: str, *names: str) -> list[Job]:
    """The attempts at the run in a folder, oldest first.

    A queued attempt has written no file below the folder yet. It is found in the run book, under
    one of the run's `names`.
    """
    jobs = {job.submission.id: job for job in submissions_in(folder)}
    for name in names:
        for job in attempts_of(name):
            if is_for(job, folder):
                jobs.setdefault(job.submission.id, job)
    return list(jobs.values())


def submissions_in(folder: str) -> list[Job]:
    """The attempts recorded below a folder that were submitted for it, oldest first.

    A copy of a run also contains the attempts of its original. They are left out, because
    cancelling or resuming the copy must not affect the original. A run that was moved has none.
    """
    return [job for job in jobs_below(folder) if is_for(job, folder)]


def is_for(job: Job, folder: str) -> bool:
    """Whether an attempt was submitted for the run in this folder."""
    return _absolute(job.submission.dir) == _absolute(folder)


def _absolute(folder: str) -> str:
    return at(folder).resolved()


def jobs_below(folder: str) -> list[Job]:
    """All attempts recorded below a folder, also those of a run it is a copy of, oldest first."""
    jobs = []
    for file in at(join(folder, "submissions")).list_files():
        if file.path.endswith("/job.json"):
            data = read_small(file.path)
            try:
                jobs.append(from_data(Job, json.loads(data), ignore_unknown=True))
            except (ValueError, RecursionError):
                raise UserError("file-damaged", f"{file.path} is damaged; delete it") from None
    return sorted(jobs, key=lambda job: (job.submission.time, job.submission.id))


def handle_of(job: Job, kind: type[T]) -> T | None:
    """The target's identifier of an attempt, from its answer or from job.json; None if unknown."""
    if isinstance(job.handle, kind):
        return job.handle
    saved = _read(join(job_folder(job.submission), "job.json"), _JobHandle)
    return saved.handle if saved and isinstance(saved.handle, kind) else None


def write_job(job: Job) -> None:
    """Write job.json below run.dir, where other machines can find it."""
    data = json.dumps(to_data(job), indent=1, ensure_ascii=False).encode()
    at(join(job_folder(job.submission), "job.json")).write_bytes(data)


def write_outcome(submission: Submission, code: int) -> None:
    """Write the exit code of a job below run.dir."""
    data = json.dumps(to_data(_Outcome(code))).encode()
    at(join(job_folder(submission), "outcome.json")).write_bytes(data)


def outcome_of(submission: Submission) -> int | None:
    """The exit code that a job wrote below run.dir; None if there is none we can read."""
    outcome = _read(join(job_folder(submission), "outcome.json"), _Outcome)
    return outcome.exit if outcome else None


def _read(path: str, cls: type[T]) -> T | None:
    """The content of a JSON file; None if it is missing, unreadable or damaged."""
    try:
        return from_data(cls, at(path).read_json(), ignore_unknown=True)
    except (OSError, UserError, BadField):
        return None


def job_folder(submission: Submission) -> str:
    """The folder below run.dir for the files of one attempt."""
    return join(submission.dir, "submissions", submission.id)


def work_folder(submission: Submission) -> Path:
    """A folder on a disk for an attempt's code and output: below run.dir unless that is a URL."""
    return at(job_folder(submission)).local(state_home() / "submissions" / submission.id)


def is_name(text: str) -> bool:
    """Whether a text is a valid name of a run, and so neither a path nor a URL."""
    return bool(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", text))


def _page(name: str) -> Path:
    return state_home() / "runs" / f"{name}.json"
