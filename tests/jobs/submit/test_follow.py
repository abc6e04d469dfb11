"""Following and cancelling, with targets whose states and logs are scripted."""

import dataclasses
import threading
from pathlib import Path

import pytest

from elmwright.jobs.cli.command import main
from elmwright.jobs.config.toml_file import load_config
from elmwright.jobs.runbook import runbook
from elmwright.jobs.runbook.submission import Job, State, Submission, state_of_exit
from elmwright.jobs.runbook.target import Target
from elmwright.jobs.submit import send as submit_module
from elmwright.jobs.submit.send import prepare
from elmwright.jobs.submit.targets.place import Unreachable
from tests.support.tiny import write_config


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def submission(folder: Path) -> Submission:
    config = load_config(str(write_config(folder, folder / "text.txt")))
    return prepare(config, Target("local"), "corpus")


class Scripted:
    """A target whose jobs have scripted states and logs."""

    grace_seconds = 1.0

    def __init__(self, script: dict[str, list[tuple[str, State]]]) -> None:
        self.script = script
        self.logs: dict[str, str] = {}

    def state(self, job: Job) -> State:
        moments = self.script[job.submission.id]
        text, state = moments.pop(0) if len(moments) > 1 else moments[0]
        log = self.logs.get(job.submission.id, "")
        if not log.endswith(text):
            self.logs[job.submission.id] = log + text
        return state

    def log(self, job: Job, start: int) -> tuple[str, int]:
        log = self.logs.get(job.submission.id, "")
        return log[start:], len(log)


def test_following_continues_with_the_next_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = Job(submission(tmp_path)), Job(submission(tmp_path))
    # Sent within the same second.
    second = dataclasses.replace(
        second, submission=dataclasses.replace(second.submission, time=first.submission.time)
    )
    place = Scripted(
        {
            first.submission.id: [
                ("one ", State("running")),
                ("two ", State("running")),
                ("three\n", state_of_exit(75)),
            ],
            second.submission.id: [("four ", State("pending")), ("five\n", state_of_exit(0))],
        }
    )
    monkeypatch.setattr(submit_module, "open_place", lambda _: place)
    monkeypatch.setattr(submit_module, "POLL_SECONDS", 0.01)
    runbook.remember(first)
    threading.Timer(0.3, runbook.remember, [second]).start()
    state = submit_module.follow("tiny", first, through=True)
    assert state.word == "finished"
    output = capsys.readouterr().out
    assert output.startswith("one two three\n")
    assert "waiting for 'elmwright resume tiny'" in output
    assert output.endswith(f"-- {second.submission.id}\nfour five\n")


def test_following_survives_a_cluster_that_is_unreachable_for_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = Job(submission(tmp_path))
    misses = [True, True, False]

    class Shaky(Scripted):
        def state(self, job: Job) -> State:
            if misses and misses.pop(0):
                raise Unreachable("cluster-unreachable", "gone for a moment")
            return super().state(job)

    place = Shaky({job.submission.id: [("all\n", state_of_exit(0))]})
    monkeypatch.setattr(submit_module, "open_place", lambda _: place)
    monkeypatch.setattr(submit_module, "POLL_SECONDS", 0.01)
    assert submit_module.follow("tiny", job, through=False).word == "finished"
    assert capsys.readouterr().out == "all\n"


def test_a_job_that_does_not_stop_in_time_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(submission(tmp_path))
    calls: list[str] = []

    class Deaf(Scripted):
        grace_seconds = 0.05

        def stop(self, job: Job) -> None:
            calls.append("stop")

        def kill(self, job: Job) -> None:
            calls.append("kill")
            self.script[job.submission.id] = [("", state_of_exit(-9))]

    place = Deaf({job.submission.id: [("", State("running"))]})
    monkeypatch.setattr(submit_module, "open_place", lambda _: place)
    monkeypatch.setattr(submit_module, "POLL_SECONDS", 0.01)
    assert submit_module.cancel(job).word == "interrupted"
    assert calls == ["stop", "kill"]


def test_following_a_folder_finds_attempts_that_others_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = Job(submission(tmp_path)), Job(submission(tmp_path))
    later = dataclasses.replace(second.submission, time="2999-01-01 00:00:00")
    second = dataclasses.replace(second, submission=later)
    place = Scripted(
        {
            first.submission.id: [("one\n", state_of_exit(75))],
            second.submission.id: [("two\n", state_of_exit(0))],
        }
    )
    monkeypatch.setattr(submit_module, "open_place", lambda _: place)
    monkeypatch.setattr(submit_module, "POLL_SECONDS", 0.01)
    runbook.write_job(first)
    threading.Timer(0.3, runbook.write_job, [second]).start()
    assert submit_module.follow(first.submission.dir, first, through=True).word == "finished"
    assert capsys.readouterr().out.endswith("two\n")


def test_cancel_fails_if_the_job_survives_being_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = Job(submission(tmp_path))

    class Immortal(Scripted):
        grace_seconds = 0.05

        def stop(self, job: Job) -> None:
            pass

        kill = stop

    place = Immortal({job.submission.id: [("", State("running"))]})
    monkeypatch.setattr(submit_module, "open_place", lambda _: place)
    monkeypatch.setattr(submit_module, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(submit_module, "KILLED_SECONDS", 0.05)
    runbook.remember(job)
    assert main(["cancel", "tiny"]) == 1
    assert "tiny is still running" in capsys.readouterr().err
    # What was killed may take a moment to be gone.
    moments = [("", State("running"))] * 40 + [("", state_of_exit(-9))]
    place.script[job.submission.id] = moments
    monkeypatch.setattr(submit_module, "KILLED_SECONDS", 5.0)
    assert main(["cancel", "tiny"]) == 0
