"""Finds the folder of the run that a user names, for every command that takes a RUN.

RUN is the first of these that fits:
  - a run's folder, on a disk or in an object store (s3://…);
  - the name of a run in `runs/` of the current folder;
  - a config file, which means the run in its run.dir;
  - the name of a run that was submitted (the run book, runbook.py);
  - the name of a shipped recipe.

So a submitted run is found by its name only if this project has no run of that name. Nothing here
imports torch, Ray or MLflow, and nothing takes the run's lock.
"""

import sys
from pathlib import Path

from elmwright.jobs.config.toml_file import load_config, recipe_names
from elmwright.jobs.runbook import runbook
from elmwright.jobs.runbook.submission import Job
from elmwright.jobs.rundir.file_lock import is_locked
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.rundir.lease import Holder, is_held, read_holder
from elmwright.jobs.terminal.wording import did_you_mean, nearby
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.storage.files import at, join

RUNS = "runs"
"""The folder of all runs, unless run.dir names another place."""


def find_run(text: str) -> RunFolder:
    """The folder of the run that `text` names; raises `UserError` if there is none."""
    folder = find_here(text) or _from_run_book(text) or _from_recipe(text)
    if folder is None:
        raise _unknown_run(text)
    return folder


def find_here(text: str) -> RunFolder | None:
    """The run that `text` names by a path, a config file or a name in `runs/`; None if none."""
    if at(text).is_url:
        if at(join(text, "config.json")).read_json() is None and not runbook.submissions_in(text):
            raise UserError("run-missing", f"{text} is not a run's folder: it has no config.json")
        return RunFolder.at(text)
    if is_run(text) or _was_submitted(text):
        return RunFolder.at(text)
    if runbook.is_name(text) and (is_run(Path(RUNS, text)) or _was_submitted(Path(RUNS, text))):
        return RunFolder.at(Path(RUNS, text))
    if Path(text).is_dir():
        raise UserError(
            "run-missing", f"{text} is not a run's folder: it has no config.json of a run"
        )
    return _from_config(text) if Path(text).is_file() else None


def is_run(folder: str | Path) -> bool:
    """Whether this is a run's folder on a disk: its config.json has the settings of a run."""
    return isinstance((at(Path(folder) / "config.json").read_json() or {}).get("run"), dict)


def _was_submitted(folder: str | Path) -> bool:
    """Whether a job was submitted for this folder, which is recorded before the run starts."""
    return Path(folder, "submissions").is_dir() and bool(runbook.submissions_in(str(folder)))


def runs_in(folder: str | Path = RUNS) -> list[Path]:
    """The runs in a folder, sorted by name."""
    home = Path(folder)
    return sorted(path for path in home.iterdir() if is_run(path)) if home.is_dir() else []


def run_names() -> list[str]:
    """The names of the runs here and of those that were submitted."""
    submitted = {job.submission.run for job in runbook.read_all()[0]}
    return sorted({path.name for path in runs_in()} | submitted)


def find_attempts(text: str) -> tuple[RunFolder | None, list[Job]]:
    """The run's folder, if this machine can reach it, and its submitted attempts, oldest first."""
    folder = find_here(text)
    if folder is not None:
        _note_other_run(text, folder)
        return folder, runbook.attempts_at(folder.root, text, Path(folder.root).name)
    attempts = runbook.attempts_of(text)
    if attempts:
        path = attempts[-1].submission.dir
        is_visible = at(path).is_url or is_run(path) or _was_submitted(path)
        return RunFolder.at(path) if is_visible else None, attempts
    folder = _from_recipe(text)
    if folder is None:
        raise _unknown_run(text)
    return folder, runbook.submissions_in(folder.root)


def _note_other_run(text: str, folder: RunFolder) -> None:
    """Print a note if a submitted run in another folder has the same name as this run."""
    if Path(text).exists():
        return
    for job in runbook.attempts_of(text)[-1:]:
        if not runbook.is_for(job, folder.root):
            print(
                f"note: this is the run in {nearby(folder.root)}; the submitted run {text!r} is in "
                f"{job.submission.dir}",
                file=sys.stderr,
            )


def _from_run_book(text: str) -> RunFolder | None:
    attempts = runbook.attempts_of(text)
    if not attempts:
        return None
    submission = attempts[-1].submission
    if not at(submission.dir).is_url and not is_run(submission.dir):
        raise UserError(
            "run-missing",
            f"run {text!r} was submitted to {submission.target}, and its folder {submission.dir} "
            f"is not visible from here; 'elmwright status {text}' shows its progress",
        )
    return RunFolder.at(submission.dir)


def _from_recipe(text: str) -> RunFolder | None:
    return _from_config(text) if text in recipe_names() else None


def _from_config(text: str) -> RunFolder:
    folder = RunFolder.of(load_config(text))
    if not folder.is_in_store and not is_run(folder.root):
        raise UserError(
            "run-missing",
            f"the run of {text} has not been started: {nearby(folder.root)} has no config.json; "
            f"'elmwright run {text}' starts it",
        )
    return folder


def _unknown_run(text: str) -> UserError:
    """The error for a name that no run has, with the most similar name of a run."""
    return UserError(
        "run-missing",
        f"there is no run {text!r}: no folder or config file of that name, nothing in {RUNS}/ "
        "here, and no submitted run; 'elmwright runs' lists the runs here"
        f"{did_you_mean(text, [*run_names(), *recipe_names()])}",
    )


def last_holder(folder: RunFolder) -> Holder:
    """The command that last took the run's lock, which may have ended long ago."""
    return read_holder(join(folder.root, "run.lock"))


def running_command(folder: RunFolder) -> str:
    """The command that is using the run now, as text for a message; empty if none is."""
    lock = join(folder.root, "run.lock")
    is_used = is_held(lock) if folder.is_in_store else is_locked(Path(lock))
    return str(read_holder(lock)) if is_used else ""
