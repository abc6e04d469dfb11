"""Every way in which a Ray cluster can refuse or fail, with a small HTTP server in its place."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from elmwright.jobs.cli.command import main
from elmwright.jobs.runbook.submission import Job, Submission
from elmwright.jobs.runbook.target import Target
from elmwright.jobs.submit import send as submit_module
from elmwright.jobs.submit.send import submit
from elmwright.jobs.submit.targets import ray_jobs
from elmwright.jobs.submit.targets.place import Unreachable
from elmwright.jobs.submit.targets.ray_jobs import RayCluster, RayJobInfo, pack, state_of_job
from elmwright.pipeline.errors import Failed
from tests.support.cluster.dashboard import Answer, Dashboard, nodes, play_job, submission_to
from tests.support.mistakes import mistake

pytestmark = [pytest.mark.usefixtures("own_home"), pytest.mark.slow(3)]

GOOD = "the-right-one"


def test_a_submission_sends_the_package_and_then_the_job(
    dashboard: Dashboard, submission: Submission
) -> None:
    submit(submission)
    sent = {key.split("?")[0]: body for key, _, body in dashboard.asked}
    name, package = pack(submission)
    assert sent[f"PUT /api/packages/gcs/{name}"] == package
    request = json.loads(sent["POST /api/jobs/"])
    assert request["submission_id"] == submission.id
    assert request["runtime_env"]["working_dir"] == f"gcs://{name}"
    assert int(request["runtime_env"]["env_vars"]["RAY_JOB_STOP_WAIT_TIME_S"]) >= 60
    assert request["metadata"]["elmwright.config_sha256"] == submission.config_sha256
    assert "pip" not in request["runtime_env"]


def test_a_package_that_is_there_is_not_sent_again(
    dashboard: Dashboard, submission: Submission
) -> None:
    dashboard.answers["GET /api/packages"] = (200, "")
    submit(submission)
    assert not [key for key, _, _ in dashboard.asked if key.startswith("PUT")]


def test_running_run_is_refused_before_anything_is_sent(
    dashboard: Dashboard, submission: Submission
) -> None:
    dashboard.answers["GET /api/jobs/"] = (
        200,
        [
            {"submission_id": "old", "status": "STOPPED", "metadata": {"elmwright.run": "tiny"}},
            {"submission_id": "now", "status": "RUNNING", "metadata": {"elmwright.run": "tiny"}},
            {"submission_id": None, "status": "RUNNING", "metadata": None},
        ],
    )
    with mistake("busy", "'tiny'", "(job now)"):
        submit(submission)
    assert not [key for key, _, _ in dashboard.asked if key.startswith(("PUT", "POST"))]


def test_two_submissions_of_a_run_never_have_the_same_id(
    dashboard: Dashboard, tmp_path: Path
) -> None:
    ids = {submission_to(dashboard, tmp_path).id for _ in range(20)}
    assert len(ids) == 20


def test_cluster_that_refuses_connections_is_unreachable(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with mistake("cluster-unreachable", f"http://127.0.0.1:{port}"):
        RayCluster(Target("ray", address=f"http://127.0.0.1:{port}")).check_version()


def test_cluster_that_never_answers_is_unreachable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert ray_jobs.TIMEOUT < 10
    monkeypatch.setattr(ray_jobs, "TIMEOUT", 0.5)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(Unreachable, match="timed out"):
            RayCluster(Target("ray", address=address)).check_version()


def test_another_version_of_ray_is_refused(dashboard: Dashboard, submission: Submission) -> None:
    dashboard.answers["GET /api/version"] = (200, {"ray_version": "2.9.3"})
    with mistake("environment", "Ray 2.9.3", "<3,>=2.60"):
        submit(submission)


@pytest.mark.parametrize("answer", [(404, "not found"), (200, "<html>"), (302, ""), (200, [])])
def test_server_that_is_no_ray_dashboard_is_refused(dashboard: Dashboard, answer: Answer) -> None:
    dashboard.answers["GET /api/version"] = answer
    with mistake("cluster-unreachable", "dashboard", dashboard.address):
        RayCluster(Target("ray", address=dashboard.address)).check_version()


def test_run_too_large_for_the_cluster_is_refused(dashboard: Dashboard, tmp_path: Path) -> None:
    dashboard.answers["GET /api/v0/nodes"] = (200, nodes({"CPU": 1.0}, {"CPU": 2.0, "GPU": 1.0}))
    with mistake("capacity", "4 CPUs", "2 machines with 3 CPUs and 1 GPUs"):
        submit(submission_to(dashboard, tmp_path, train_threads=2))
    with mistake("capacity", "2 GPUs", "1 GPUs"):
        submit(submission_to(dashboard, tmp_path, train_device="cuda"))
    submit(submission_to(dashboard, tmp_path, train_threads=2, cluster_wait_minutes=5))


def test_token_is_sent_only_if_required(dashboard: Dashboard, own_home: Path) -> None:
    write_token(own_home, GOOD)
    RayCluster(Target("ray", address=dashboard.address)).check_version()
    assert [given for _, given, _ in dashboard.asked] == [""]


def test_required_token_is_sent(dashboard: Dashboard, own_home: Path) -> None:
    dashboard.token = GOOD
    write_token(own_home, GOOD + "\n")
    RayCluster(Target("ray", address=dashboard.address)).check_version()


def test_missing_token_error_names_every_place_for_it(dashboard: Dashboard) -> None:
    dashboard.token = GOOD
    places = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "~/.ray/auth_token", "token_file")
    with mistake("cluster-refused", *places):
        RayCluster(Target("ray", address=dashboard.address)).check_version()


def test_refused_token_error_names_its_source_and_never_the_token(
    dashboard: Dashboard, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dashboard.token = GOOD
    write_token(own_home, "expired-1")
    with mistake("cluster-refused", "~/.ray/auth_token") as caught:
        RayCluster(Target("ray", address=dashboard.address)).check_version()
    assert "expired-1" not in str(caught.value)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "expired-2")
    with mistake("cluster-refused", "RAY_AUTH_TOKEN:"):
        RayCluster(Target("ray", address=dashboard.address)).check_version()
    target = Target("ray", address=dashboard.address, token_file=str(own_home / "lab"))
    (own_home / "lab").write_text(GOOD)
    RayCluster(target).check_version()


def test_a_cluster_that_goes_away_while_the_job_is_sent(
    dashboard: Dashboard, submission: Submission
) -> None:
    dashboard.answers["POST /api/jobs/"] = (0, "")
    with pytest.raises(
        Failed, match=r"stopped answering while the job was being sent .* 'elmwright jobs'"
    ):
        submit(submission)


def test_a_traceback_from_the_cluster_becomes_its_last_line(
    dashboard: Dashboard, submission: Submission
) -> None:
    dashboard.answers["POST /api/jobs/"] = (500, "Traceback:\n  File x\nValueError: no room\n")
    with pytest.raises(Failed, match="answers 500: ValueError: no room") as caught:
        submit(submission)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("info", "word"),
    [
        ({"status": "PENDING"}, "pending"),
        ({"status": "RUNNING"}, "running"),
        ({"status": "SUCCEEDED"}, "finished"),
        ({"status": "STOPPED"}, "interrupted"),
        ({"status": "FAILED", "driver_exit_code": 75}, "interrupted"),
        ({"status": "FAILED", "driver_exit_code": -9}, "interrupted"),
        ({"status": "FAILED", "driver_exit_code": 137}, "interrupted"),
        ({"status": "FAILED", "driver_exit_code": 2}, "failed"),
        ({"status": "FAILED", "driver_exit_code": 1}, "failed"),
        ({"status": "FAILED", "message": "node died"}, "interrupted"),
        ({"status": "FAILED", "error_type": "RUNTIME_ENV_SETUP_FAILURE"}, "failed"),
    ],
)
def test_state_of_a_job_by_rays_answer(info: dict[str, Any], word: str) -> None:
    assert state_of_job(RayJobInfo(**info)).word == word


def test_a_job_the_cluster_has_forgotten_is_interrupted(
    dashboard: Dashboard, submission: Submission
) -> None:
    cluster = RayCluster(submission.target)
    dashboard.answers["GET /api/jobs/"] = (404, "does not exist")
    state = cluster.state(Job(submission))
    assert (state.word, state.exit_code) == ("interrupted", None)


def write_token(home: Path, token: str) -> None:
    (home / ".ray").mkdir(exist_ok=True)
    (home / ".ray" / "auth_token").write_text(token)


def test_a_connection_that_is_dropped_once_is_tried_again(
    dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elmwright.jobs.submit.targets.ray_jobs.time.sleep", lambda _: None)
    answers = [(0, ""), (0, ""), (200, {"ray_version": "2.60.0"})]
    dashboard.answers["GET /api/version"] = lambda: answers.pop(0)
    assert RayCluster(Target("ray", address=dashboard.address)).check_version() == "2.60.0"


def test_a_process_must_fit_on_one_machine(dashboard: Dashboard, tmp_path: Path) -> None:
    dashboard.answers["GET /api/v0/nodes"] = (200, nodes(*[{"CPU": 1.0}] * 4))
    with mistake("capacity", "1 processes with 4 CPUs each", "room for 0"):
        submit(submission_to(dashboard, tmp_path, train_processes=1, train_threads=4))
    one, two = {"CPU": 8.0}, {"CPU": 1.0, "GPU": 2.0}
    dashboard.answers["GET /api/v0/nodes"] = (200, nodes(one, two))
    with mistake("capacity", "2 CPUs and a GPU each", "room for 0"):
        submit(submission_to(dashboard, tmp_path, train_device="cuda", train_threads=2))
    with mistake("capacity", "1 CPUs and a GPU each", "room for 1"):
        submit(submission_to(dashboard, tmp_path, train_device="cuda"))


@pytest.mark.parametrize(
    "content",
    [b"first-line-5d\nsecond-line-5d", b"\xff\xfe5d\x00", "tökén-5d".encode(), b"two words-5d"],
)
def test_invalid_token_is_refused_without_showing_it(
    dashboard: Dashboard, own_home: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    dashboard.token = GOOD
    (own_home / ".ray").mkdir()
    (own_home / ".ray" / "auth_token").write_bytes(content)
    with mistake("secret", "auth_token") as caught:
        RayCluster(Target("ray", address=dashboard.address)).check_version()
    assert "5d" not in str(caught.value)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "two\nlines-5d")
    with mistake("secret", "RAY_AUTH_TOKEN"):
        RayCluster(Target("ray", address=dashboard.address)).check_version()


def test_following_survives_dropped_connections(
    dashboard: Dashboard,
    submission: Submission,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(submit_module, "POLL_SECONDS", 0.01)
    monkeypatch.setattr("elmwright.jobs.submit.targets.ray_jobs.time.sleep", lambda _: None)
    job = submit(submission)
    play_job(dashboard, submission, "SUCCEEDED")
    answers: list[Answer] = [(0, "")] * 5 + [(200, {"logs": "all of it\n"})]
    dashboard.answers[f"GET /api/jobs/{submission.id}/logs"] = lambda: answers.pop(0)
    assert submit_module.follow("tiny", job, through=False).word == "finished"
    assert capsys.readouterr().out == "all of it\n"


def test_missing_log_is_reported(
    dashboard: Dashboard, submission: Submission, capsys: pytest.CaptureFixture[str]
) -> None:
    submit(submission)
    play_job(dashboard, submission, "PENDING")
    dashboard.answers[f"GET /api/jobs/{submission.id}/logs"] = (200, {"logs": ""})
    assert main(["logs", "tiny"]) == 0
    assert "its log is still empty" in capsys.readouterr().err
    dashboard.answers[f"GET /api/jobs/{submission.id}"] = (404, "")
    assert main(["logs", "tiny"]) == 1
    assert "it has no log, or no longer has one" in capsys.readouterr().err
