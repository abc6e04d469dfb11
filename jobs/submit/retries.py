"""The retry policy of submitted runs, the same on every target.

An attempt is one start of a run's driver. If it ends without having been stopped by the user,
another attempt is due if time may cure the cause: exit 75 (interrupted, resumable) or death by a
signal. Exit 0 is success, exit 1 means that training has used up its own restarts (launch.py),
exit 2 is a user's mistake. A mistake can only be made at the beginning, though: code and config of
a submission never change, so exit 2 of a later attempt, or of one that wrote a checkpoint, is
caused by something else (too few machines, a full disk, an MLflow that is away) and is treated like
exit 75.

Attempts that make progress are not counted: a run on spot machines may be interrupted a hundred
times. After `STANDSTILLS` retries in a row without progress nothing is started again. Progress is
the run's stage, its newest checkpoint, and before that the finished tasks of its corpus.

The next attempt is started by attempts.py on a Ray cluster, on Kubernetes and on this machine, by
the batch script on Slurm, and by KubeRay or Slurm itself if the machine of the driver was lost. All
of them keep their count in the same file, beside the submission below `run.dir`.
"""

import os
import sys
from dataclasses import dataclass, replace

from elmwright.jobs.runbook.runbook import job_folder
from elmwright.jobs.runbook.submission import Submission
from elmwright.jobs.rundir.stage_names import STAGES
from elmwright.jobs.upkeep.status import corpus_folder, read_progress
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.records import BadField, from_data, to_data
from elmwright.pipeline.storage.files import at, join
from elmwright.pipeline.storage.object_store import with_patience

STANDSTILLS = 5
"""How often in a row a run is started again after an attempt without progress."""
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
    """Whether the newest has recorded no end: it is at work, or was lost with its machine."""
    reached: tuple[int, ...] = BEGINNING
    """The furthest progress at the end of an attempt."""
    standstills: int = 0
    """Attempts in a row without further progress."""

    @property
    def used_up(self) -> bool:
        return self.standstills > STANDSTILLS


def begin(submission: Submission) -> History:
    """Count an attempt that has passed its checks; it must not continue if it is `used_up`."""
    history = read(submission)
    if history.running:  # lost with its machine, so it could not record its end
        history = _with_end(history, reached(submission))
    elif not history.starts:
        history = replace(history, reached=reached(submission))
    if not history.used_up:
        history = replace(history, starts=history.starts + 1, running=True)
    at(_file(submission)).write_json(to_data(history))
    return history


def end(submission: Submission, code: int) -> bool:
    """Record the end of an attempt that was not cancelled; whether another one is due."""
    before = read(submission)
    number = before.starts if before.running else before.starts + 1  # it did not pass its checks
    progress = reached(submission)
    late = number > 1 or (progress > before.reached and progress[1] > BEGINNING[1])
    if before.used_up or not worth_another(code, late=late):
        return False
    after = _with_end(before, progress)
    at(_file(submission)).write_json(to_data(after))
    return not after.used_up


def conclude(submission: Submission, code: int, earlier: History) -> tuple[History, bool]:
    """Record the end of an attempt; the attempts so far, and whether another one is due.

    The cause of the interruption may also prevent the record: a full disk, a store that does not
    answer. Then this attempt is added to the `earlier` ones as one without progress.
    """
    try:
        before = with_patience(lambda: read(submission))
        is_due = with_patience(lambda: end(submission, code))
        after = with_patience(lambda: read(submission))
    except (OSError, UserError) as error:
        print(f"how the attempt ended cannot be noted in {submission.dir} ({error})", flush=True)
        if not worth_another(code, late=earlier != History()):
            return earlier, False
        before = earlier
        after = replace(earlier, running=False, standstills=earlier.standstills + 1)
        is_due = not after.used_up
    if after.used_up and not before.used_up:  # otherwise the driver itself has said it
        print(given_up(after, submission.run), flush=True)
    return after, is_due


def worth_another(code: int, *, late: bool) -> bool:
    """Whether time may cure an end with this exit code; `late` is an attempt that was not the
    first, or wrote a checkpoint."""
    is_killed = code < 0 or code > 128
    return is_killed or code == RESUMABLE or (code == MISTAKE and late)


def reached(submission: Submission) -> tuple[int, ...]:
    """The progress of a run, as numbers that grow."""
    progress = read_progress(submission)
    if progress is None:  # its folder does not exist (yet), or cannot be seen
        return BEGINNING
    stage = (*STAGES, "done").index(progress.stage)
    tasks = 0
    if stage == 0:
        try:
            files = at(join(corpus_folder(submission), "work")).list_files()
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
        return from_data(History, at(_file(submission)).read_json() or {}, ignore_unknown=True)
    except BadField:
        return History()  # damaged: as if it were missing


def _with_end(history: History, progress: tuple[int, ...]) -> History:
    if progress > history.reached:
        return replace(history, running=False, reached=progress, standstills=0)
    return replace(history, running=False, standstills=history.standstills + 1)


def _file(submission: Submission) -> str:
    return join(job_folder(submission), "attempts.json")


def main(path: str, code: int) -> int:
    """For Slurm's batch script: 0 if the job is to go back into the queue."""
    starts = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
    earlier = History(starts=starts, standstills=starts)
    return 0 if conclude(Submission.load(path), code, earlier)[1] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
