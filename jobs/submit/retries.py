"""The retry policy of submitted runs, the same on every target.

An attempt is one start of a run's driver. When it ends without having been asked to, it is worth
another attempt if time may cure it: exit 75 (interrupted, resumable) or death by a signal. Exit 0
is the end, exit 1 means that training has used up its own restarts (launch.py), exit 2 is a user's
mistake. A mistake can only be made at the beginning, though: code and config of a submission never
change, so exit 2 of a later attempt, or of one that wrote a checkpoint, is caused by the outside
world (too few machines, a full disk, an MLflow that is away) and is treated like exit 75.

Attempts that get further are not counted: a run on spot machines may be interrupted a hundred
times. After `STANDSTILLS` retries in a row without progress nothing is started again. How far a run
has come is its stage, its newest checkpoint, and before that the finished tasks of its corpus.

Who starts the next attempt differs: attempts.py on a Ray cluster, on Kubernetes and on this
machine, the batch script on Slurm, and KubeRay or Slurm itself where the machine of the driver was
lost. All of them keep their count in the same note, beside the submission below `run.dir`.
"""

import os
import sys
from dataclasses import dataclass, replace

from elmwright.jobs.runbook.runbook import place_of
from elmwright.jobs.runbook.submission import Submission
from elmwright.jobs.rundir.stage_names import STAGES
from elmwright.jobs.upkeep.status import corpus_folder, read_progress
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.records import BadField, from_data, to_data
from elmwright.pipeline.storage.files import join, list_folder, read_json, write_json
from elmwright.pipeline.storage.object_store import with_patience

STANDSTILLS = 5
"""How often in a row a run is started again after an attempt that got no further."""
PAUSES = (10.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Seconds before the next attempt, after none, one, two … such attempts."""
MISTAKE, RESUMABLE = 2, 75
BEGINNING = (0, -1, 0)
"""Stage, step of the newest checkpoint, finished tasks of the corpus of a run that has nothing."""


@dataclass(frozen=True)
class History:
    """The attempts at a submission so far."""

    starts: int = 0
    """How many have begun."""
    running: bool = False
    """Whether the newest has not recorded its end: it is at work, or was lost with its machine."""
    reached: tuple[int, ...] = BEGINNING
    """The furthest that the run had come at the end of an attempt."""
    standstills: int = 0
    """Attempts in a row that ended without getting further than that."""

    @property
    def used_up(self) -> bool:
        return self.standstills > STANDSTILLS


def begin(submission: Submission) -> History:
    """Count an attempt that has passed its checks; it must not continue if it is `used_up`."""
    before = read(submission)
    if before.running:  # lost with its machine: nobody told of its end
        before = _ended(before, submission)
    elif not before.starts:
        before = replace(before, reached=reached(submission))
    now = before
    if not before.used_up:
        now = replace(before, starts=before.starts + 1, running=True)
    write_json(_note(submission), to_data(now))
    return now


def end(submission: Submission, code: int) -> bool:
    """Record the end of an attempt that was not asked to stop; whether another one is due."""
    before = read(submission)
    number = before.starts if before.running else before.starts + 1  # it did not pass its checks
    now = reached(submission)
    late = number > 1 or (now > before.reached and now[1] > BEGINNING[1])
    if before.used_up or not worth_another(code, late=late):
        return False
    ended = _ended(before, submission)
    write_json(_note(submission), to_data(ended))
    return not ended.used_up


def worth_another(code: int, *, late: bool) -> bool:
    """Whether time may cure an end with this exit code; `late` is an attempt that was not the
    first, or wrote a checkpoint."""
    killed = code < 0 or code > 128
    return killed or code == RESUMABLE or (code == MISTAKE and late)


def unnoted(history: History) -> History:
    """The attempts after one whose end cannot be noted: it counts as one without progress."""
    return replace(history, running=False, standstills=history.standstills + 1)


def reached(submission: Submission) -> tuple[int, ...]:
    """How far a run has come, as numbers that grow."""
    progress = read_progress(submission)
    if progress is None:  # its folder is not there (yet), or cannot be seen
        return BEGINNING
    stage = (*STAGES, "done").index(progress.stage)
    tasks = 0
    if stage == 0:
        try:
            files = list_folder(join(corpus_folder(submission), "work"))
        except (OSError, UserError):
            files = []
        tasks = sum(file.path.endswith(".done.json") for file in files)
    return (stage, progress.checkpoint_step, tasks)


def given_up(history: History, run: str) -> str:
    """The message when no further attempt is made."""
    return (
        f"not started again: {history.standstills} attempts in a row ended without getting "
        f"further; see the log above, and 'elmwright resume {run}' when its cause is gone"
    )


def read(submission: Submission) -> History:
    """The attempts at a submission so far."""
    try:
        return from_data(History, read_json(_note(submission)) or {}, ignore_unknown=True)
    except BadField:
        return History()  # damaged: as if it were not there


def _ended(before: History, submission: Submission) -> History:
    now = reached(submission)
    if now > before.reached:
        return replace(before, running=False, reached=now, standstills=0)
    return replace(before, running=False, standstills=before.standstills + 1)


def _note(submission: Submission) -> str:
    return join(place_of(submission), "attempts.json")


def main(path: str, code: int) -> int:
    """What Slurm's batch script asks: 0 if the job is to go back into the queue."""
    submission = Submission.load(path)
    try:
        before = with_patience(lambda: read(submission))
        if with_patience(lambda: end(submission, code)):
            return 0
        after = read(submission)
    except (OSError, UserError) as error:
        print(f"how the attempt ended cannot be noted in {submission.dir} ({error})", flush=True)
        starts = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
        return 0 if worth_another(code, late=starts > 0) and starts < STANDSTILLS else 1
    if after.used_up and not before.used_up:  # else the driver itself has said it
        print(given_up(after, submission.run), flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
