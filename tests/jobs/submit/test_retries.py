"""After which exit codes an attempt is repeated, and when a run is given up."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elmwright.jobs.config.toml_file import load_config
from elmwright.jobs.runbook.submission import Submission
from elmwright.jobs.runbook.target import Target
from elmwright.jobs.submit import job, retries
from elmwright.jobs.submit.retries import STANDSTILLS, begin, end, worth_another
from elmwright.jobs.submit.send import prepare
from elmwright.pipeline.errors import Interrupted
from elmwright.pipeline.storage.disk import DiskLocation
from tests.support.tiny import write_config, write_text

pytestmark = pytest.mark.slow(2)

TARGETS = ("local", "ray", "slurm", "k8s")


@pytest.fixture(params=TARGETS)
def submission(request: pytest.FixtureRequest, tmp_path: Path) -> Submission:
    """A run that is sent to each target in turn: the policy is the same."""
    return sent(tmp_path, request.param)


def sent(folder: Path, kind: str = "ray", **changes: Any) -> Submission:
    config = load_config(str(write_config(folder, folder / "text.txt", **changes)))
    return prepare(config, Target(kind), "publish")


def checkpoint(folder: Path, step: int) -> None:
    made = folder / "run" / "train" / "checkpoints" / f"step-{step:08d}"
    made.mkdir(parents=True)
    (made / "MANIFEST.json").write_text("{}")


def attempt(submission: Submission, code: int, work: Callable[[], object] = int) -> bool:
    """One attempt, from beginning to end; whether another one is due."""
    assert not begin(submission).used_up
    work()
    return end(submission, code)


@pytest.mark.parametrize(
    ("code", "again"),
    [(0, False), (1, False), (2, False), (75, True), (-9, True), (137, True), (143, True)],
)
def test_only_interruptions_are_worth_another_attempt(code: int, again: bool) -> None:
    assert worth_another(code, late=False) is again


def test_exit_2_after_an_interruption_is_retried(tmp_path: Path) -> None:
    """Code and config are the same, so the cause is outside and may disappear."""
    one = sent(tmp_path)
    assert not attempt(one, 2)
    another = sent(tmp_path)
    assert attempt(another, 75)
    assert attempt(another, 2)


def test_attempts_without_progress_are_limited(submission: Submission) -> None:
    answers = [attempt(submission, 75) for _ in range(STANDSTILLS + 1)]
    assert answers == [True] * STANDSTILLS + [False]
    assert begin(submission).used_up
    assert not end(submission, 75), "one that was not allowed to begin"


def test_progress_since_the_last_attempt_resets_the_count(
    submission: Submission, tmp_path: Path
) -> None:
    for step in range(1, 4 * STANDSTILLS):
        # Every second attempt makes progress, so the run is always retried.
        work = (lambda step=step: checkpoint(tmp_path, step)) if step % 2 else int
        assert attempt(submission, 75 if step % 3 else -9, work)
    assert retries.read(submission).standstills <= 1


def test_exit_2_after_a_checkpoint_is_retried(submission: Submission, tmp_path: Path) -> None:
    """MLflow was away when the model was to be published, or the disk was full."""
    assert attempt(submission, 2, lambda: checkpoint(tmp_path, 500))


def test_exit_2_in_the_corpus_stage_is_final(tmp_path: Path) -> None:
    one = sent(tmp_path)
    work = tmp_path / "run" / "corpus" / "work" / "clean"
    work.mkdir(parents=True)
    assert not attempt(one, 2, lambda: (work / "0.done.json").write_text("{}"))


def test_slurm_queues_a_job_again_whose_end_cannot_be_noted(
    submission: Submission, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk must not end the job for good, but the retries are limited."""
    path = tmp_path / "submission.json"
    path.write_text(submission.to_json())

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(DiskLocation, "write_json", full)
    answers = {"0": 0, "4": 0, "5": 1}
    for starts, answer in answers.items():
        monkeypatch.setenv("SLURM_RESTART_COUNT", starts)
        assert retries.main(str(path), 75) == answer
    monkeypatch.setenv("SLURM_RESTART_COUNT", "0")
    assert retries.main(str(path), 2) == 1


def test_finished_tasks_of_a_corpus_are_progress(tmp_path: Path) -> None:
    one = sent(tmp_path)
    work = tmp_path / "run" / "corpus" / "work" / "clean"
    work.mkdir(parents=True)
    for number in range(2 * STANDSTILLS):
        assert attempt(one, 75, lambda n=number: (work / f"{n}.done.json").write_text("{}"))
    assert retries.read(one).standstills == 0


def test_an_attempt_that_was_lost_with_its_machine_is_counted(submission: Submission) -> None:
    """KubeRay and Slurm start a job again whose machine is gone; it could not record its end."""
    begun = [begin(submission).used_up for _ in range(STANDSTILLS + 2)]
    assert begun == [False] * (STANDSTILLS + 1) + [True]


def test_a_job_that_may_not_begin_ends_as_one_that_can_be_resumed(tmp_path: Path) -> None:
    write_text(tmp_path / "text.txt", 3)
    one = sent(tmp_path, "local")
    while not begin(one).used_up:
        pass
    with pytest.raises(Interrupted, match=r"6 attempts in a row .*'elmwright resume tiny'"):
        job.run_submission(one)


def test_a_submission_that_is_sent_again_by_hand_starts_its_own_count(tmp_path: Path) -> None:
    one = sent(tmp_path)
    while attempt(one, 75):
        pass
    assert attempt(sent(tmp_path), 75)


def test_slurms_script_gets_its_answer_as_an_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = sent(tmp_path, "slurm")
    path = tmp_path / "submission.json"
    path.write_text(one.to_json())
    begin(one)
    assert retries.main(str(path), 75) == 0
    begin(one)
    assert retries.main(str(path), 1) == 1
    assert capsys.readouterr().out == ""
    for _ in range(STANDSTILLS):
        begin(one)
        retries.main(str(path), 75)
    assert "without getting further" in capsys.readouterr().out


def test_the_next_attempt_waits_for_machines_to_be_replaced(tmp_path: Path) -> None:
    one = sent(tmp_path, "ray")
    config = load_config(str(tmp_path / "tiny.toml"))
    assert job.waiting_config(config, one).cluster.wait_minutes == 0
    again = job.waiting_config(config, one, is_retry=True)
    assert again.cluster.wait_minutes == job.STARTING_MINUTES
