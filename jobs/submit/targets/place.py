"""What every kind of target can do with jobs; most of them share the defaults."""

from typing import ClassVar, Protocol

from elmwright.jobs.runbook.submission import Handle, Job, NoHandle, State, Submission
from elmwright.jobs.runbook.target import Target


class Place(Protocol):
    """A target that takes, watches and stops jobs."""

    cluster_address: ClassVar[str] = "auto"
    """cluster.address of a run there: "auto" if Ray is around the job, "" if the run starts it."""
    starts_ray: ClassVar[bool] = False
    """Whether a job brings a Ray cluster, whose machines may come up after the driver."""
    repeats_attempts: ClassVar[bool] = False
    """Whether the target itself starts the next attempt of a job, not attempts.py."""

    def __init__(self, target: Target) -> None: ...

    @property
    def grace(self) -> float:
        """Seconds that a job may take to stop."""

    @staticmethod
    def own_handle() -> Handle:
        """Inside a job: how the target knows it, unless by the id of its submission."""
        return NoHandle()

    def check(self, submission: Submission) -> None:
        """Raise UserError where the job could never run here."""
        return

    def check_follow(self) -> None:
        """Raise UserError where the log of a job cannot be followed from its submission on."""
        return

    def note(self, submission: Submission) -> str:
        """What the user should know before the job is sent; empty if nothing."""
        return ""

    def running(self, run: str) -> str:
        """The id of a job of this run that has not ended, as the target itself knows it."""

    def describe(self, submission: Submission) -> str:
        """What submitting would send, to read."""

    def submit(self, submission: Submission) -> Handle:
        """Send it; how the target knows it."""

    def state(self, job: Job) -> State:
        """What has become of it."""

    def log(self, job: Job, start: int) -> tuple[str, int]:
        """Its log from a position on, and the position behind that."""

    def stop(self, job: Job) -> None:
        """Ask it to checkpoint and end."""

    def kill(self, job: Job) -> None:
        """End it: the time is over. Where Ray does that by itself, nothing is left to do."""
        return
