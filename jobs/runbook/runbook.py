"""The run book: where each of this user's runs went, one small file a run.

It lies in `~/.local/state/elmwright/runs`. Losing it loses nothing: every job lays its submission
down below `run.dir` too, and each command takes `run.dir` in place of the run's name.
"""

import dataclasses
import json
import os
import re
from pathlib import Path
from typing import Any

from elmwright.jobs.runbook.submission import Job, Submission
from elmwright.pipeline.errors import UserError
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


def state_home() -> Path:
    home = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(home) / "elmwright"


def remember(job: Job) -> None:
    """Note down an attempt, as the run's newest; what was noted of it before is replaced."""
    _write(job.submission.run, [*_others(job.submission), job])


def forget(submission: Submission) -> None:
    """Strike out an attempt that never came to be."""
    others = _others(submission)
    if others:
        _write(submission.run, others)
    else:
        _page(submission.run).unlink(missing_ok=True)


def _others(submission: Submission) -> list[Job]:
    return [one for one in attempts_of(submission.run) if one.submission.id != submission.id]


def _write(name: str, attempts: list[Job]) -> None:
    path = _page(name)
    data = {"attempts": [_to_data(one) for one in attempts[-KEPT:]]}
    write_atomic(path, json.dumps(data, indent=1).encode())
    path.chmod(0o600)


def attempts_of(name: str) -> list[Job]:
    """All remembered attempts of a run, oldest first."""
    if not _is_name(name) or not _page(name).exists():
        return []
    page = read_json(_page(name)) or {}
    try:
        return [_from_data(one) for one in page["attempts"]]
    except (KeyError, TypeError, AttributeError):
        raise UserError(
            "file-damaged",
            f"the run book's page {_page(name)} is damaged; delete it, and give the run.dir of the "
            "run in place of its name",
        ) from None


def all_runs() -> list[Job]:
    """The newest attempt of every run, newest first."""
    return read_all()[0]


def read_all() -> tuple[list[Job], list[str]]:
    """The same, and what is to be said of pages that cannot be read."""
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
        # Attempts sent from here may still wait for their turn to lay themselves down.
        known = {job.submission.id for job in left}
        mine = attempts_of(left[-1].submission.run)
        new = [j for j in mine if is_for(j, folder) and j.submission.id not in known]
        return left + new
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

    A copy of a run has the attempts of its original, which are not its own: whoever cancels or
    resumes the copy must not do so to the original. Likewise a run that was moved has none.
    """
    return [job for job in left_in(folder) if is_for(job, folder)]


def is_for(job: Job, folder: str) -> bool:
    """Whether an attempt was sent for the run in this folder."""
    return _place(job.submission.dir) == _place(folder)


def _place(folder: str) -> str:
    return folder.rstrip("/") if is_url(folder) else str(Path(folder).expanduser().resolve())


def left_in(folder: str) -> list[Job]:
    """The attempts that laid themselves down below a folder, or below the one that it was copied
    from, oldest first."""
    found = []
    for file in list_folder(join(folder, "submissions")):
        if file.path.endswith("/job.json"):
            data = read_small(file.path)
            try:
                found.append(_from_data(json.loads(data)))
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                raise UserError("file-damaged", f"{file.path} is damaged; delete it") from None
    return sorted(found, key=lambda job: (job.submission.time, job.submission.id))


def handle_left(submission: Submission) -> dict[str, Any]:
    """How the target knows an attempt, as the attempt itself laid it down; empty if it has not."""
    handle = _read(join(place_of(submission), "job.json")).get("handle")
    return handle if isinstance(handle, dict) else {}


def lay_down(job: Job) -> None:
    """Leave the submission below run.dir, for other machines to find."""
    data = json.dumps(_to_data(job), indent=1, ensure_ascii=False).encode()
    write_bytes(join(place_of(job.submission), "job.json"), data)


def lay_down_outcome(submission: Submission, code: int) -> None:
    """Leave the exit code of a job below run.dir."""
    write_bytes(join(place_of(submission), "outcome.json"), json.dumps({"exit": code}).encode())


def outcome_of(submission: Submission) -> int | None:
    """The exit code that a job left below run.dir, if it came that far and we can see it."""
    code = _read(join(place_of(submission), "outcome.json")).get("exit")
    return code if type(code) is int else None


def _read(path: str) -> dict[str, Any]:
    """What a file says; empty where we cannot see it, or it is damaged."""
    try:
        return read_json(path) or {}
    except (OSError, UserError):
        return {}


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


def _to_data(job: Job) -> dict[str, Any]:
    return {"submission": dataclasses.asdict(job.submission), "handle": job.handle}


def _from_data(data: dict[str, Any]) -> Job:
    return Job(Submission.from_data(data["submission"]), data["handle"])
