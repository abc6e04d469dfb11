"""Runs that were sent and are looked for again: lost answers, clusters that are gone, resuming."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from elmwright.jobs.cli.command import main
from elmwright.jobs.runbook import runbook
from elmwright.jobs.runbook.submission import Submission
from elmwright.jobs.submit.send import submit
from elmwright.pipeline.errors import Failed, UserError
from tests.support.cluster.dashboard import Answer, Dashboard, play_job, submission_to
from tests.support.mistakes import mistake

pytestmark = pytest.mark.usefixtures("own_home")

GOOD = "the-right-one"


@pytest.fixture
def other() -> Iterator[Dashboard]:
    """That of another cluster."""
    one = Dashboard()
    yield one
    one.close()


def test_a_job_that_arrived_while_the_answer_was_lost_can_be_found_and_stopped(
    dashboard: Dashboard, submission: Submission, capsys: pytest.CaptureFixture[str]
) -> None:
    def arrives() -> Answer:
        play_job(dashboard, submission)
        return 0, ""

    dashboard.answers["POST /api/jobs/"] = arrives
    with pytest.raises(Failed, match=r"'elmwright jobs' shows whether it arrived"):
        submit(submission)
    assert main(["jobs"]) == 0
    assert "tiny                     running" in capsys.readouterr().out
    dashboard.answers[f"POST /api/jobs/{submission.id}/stop"] = (200, "")
    assert main(["cancel", "tiny", "--no-wait"]) == 0
    assert any(key.endswith("/stop") for key, _, _ in dashboard.asked)


def test_a_job_that_was_refused_is_not_in_the_run_book(
    dashboard: Dashboard, submission: Submission
) -> None:
    dashboard.answers["PUT /api/packages"] = (404, "")
    with pytest.raises(UserError):
        submit(submission)
    assert runbook.attempts_of("tiny") == []


def test_a_run_whose_cluster_is_gone_is_resumed_elsewhere(
    dashboard: Dashboard,
    other: Dashboard,
    submission: Submission,
    capsys: pytest.CaptureFixture[str],
) -> None:
    submit(submission)
    dashboard.close()
    assert main(["resume", "tiny"]) == 2
    assert "does not answer" in capsys.readouterr().err.splitlines()[-1]
    assert len(runbook.attempts_of("tiny")) == 1
    assert main(["resume", "tiny", "--to", other.address]) == 0
    assert any(key == "POST /api/jobs/" for key, _, _ in other.asked)
    assert runbook.attempts_of("tiny")[-1].submission.target.address == other.address


def test_a_cluster_that_does_not_answer_leaves_the_state_unknown(
    dashboard: Dashboard, submission: Submission, capsys: pytest.CaptureFixture[str]
) -> None:
    submit(submission)
    Path(submission.dir).mkdir()
    capsys.readouterr()
    dashboard.token = GOOD
    assert main(["status", "tiny"]) == 0
    output = capsys.readouterr().out
    assert "state        unknown: " in output
    assert "resume" not in output
    runbook.write_outcome(submission, 2)
    assert main(["status", "tiny", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["state"] == "failed"


@pytest.mark.parametrize("status", [401, 403, 502, 503])
def test_a_run_can_leave_a_cluster_that_refuses_the_token(
    status: int,
    dashboard: Dashboard,
    other: Dashboard,
    submission: Submission,
    capsys: pytest.CaptureFixture[str],
) -> None:
    submit(submission)
    dashboard.answers = {"": (status, "no")}
    assert main(["resume", "tiny"]) == 2
    assert len(runbook.attempts_of("tiny")) == 1
    assert main(["resume", "tiny", "--to", other.address]) == 0
    assert "note: " in capsys.readouterr().err
    assert any(key == "POST /api/jobs/" for key, _, _ in other.asked)


def test_another_machine_does_not_resume_a_running_job(
    dashboard: Dashboard,
    other: Dashboard,
    submission: Submission,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    job = submit(submission)
    runbook.write_job(job)
    play_job(dashboard, submission)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another-machine"))
    assert main(["resume", submission.dir, "--to", other.address]) == 2
    assert "'tiny' is already running" in capsys.readouterr().err
    assert other.asked == []


@pytest.mark.parametrize("answer", [(200, "<html>"), (200, {"other": "JSON"}), (200, [1])])
def test_an_address_without_a_dashboard_is_a_user_error(
    answer: Answer,
    dashboard: Dashboard,
    submission: Submission,
    capsys: pytest.CaptureFixture[str],
) -> None:
    submit(submission)
    dashboard.answers = {"": answer}
    for command in (["status", "tiny"], ["cancel", "tiny"], ["logs", "tiny"], ["resume", "tiny"]):
        assert main(command) == 2
        assert "is not the dashboard of a Ray cluster" in capsys.readouterr().err
    assert main(["jobs"]) == 0
    assert "unknown" in capsys.readouterr().out
    with mistake("cluster-unreachable", dashboard.address):
        submit(submission)


def test_a_changed_token_is_read_from_its_present_place(
    dashboard: Dashboard, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    targets = tmp_path / "config" / "elmwright" / "targets.toml"
    targets.parent.mkdir(parents=True)
    targets.write_text(f'[lab]\nkind = "ray"\naddress = "{dashboard.address}"\n')
    config = tmp_path / "tiny.toml"
    submission_to(dashboard, tmp_path)  # writes the config
    assert main(["submit", str(config), "--to", "lab"]) == 0
    (sent,) = runbook.attempts_of("tiny")
    play_job(dashboard, sent.submission)
    dashboard.token = GOOD
    assert main(["status", "tiny"]) == 2
    assert "requires a token" in capsys.readouterr().err
    (tmp_path / "token").write_text(GOOD)
    targets.write_text(targets.read_text() + f'token_file = "{tmp_path / "token"}"\n')
    assert main(["status", "tiny"]) == 0
    assert "running" in capsys.readouterr().out
