"""Submitting to the background of this machine, and the run book."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from elmwright.jobs.cli.command import main
from elmwright.jobs.config.toml_file import load_config
from elmwright.jobs.runbook import runbook
from elmwright.jobs.runbook.submission import (
    Job,
    NoHandle,
    ProcessHandle,
    RayJobHandle,
    SlurmHandle,
    State,
    Submission,
    relative_paths,
    state_of_exit,
)
from elmwright.jobs.runbook.target import KINDS, Target
from elmwright.jobs.submit import job as entry
from elmwright.jobs.submit import send as submit_module
from elmwright.jobs.submit.doctor import EXAMINERS
from elmwright.jobs.submit.send import prepare, state_of, submit
from elmwright.jobs.submit.targets.background import Background, is_alive, process_handle
from elmwright.jobs.submit.targets.kinds import PLACES
from tests.support.mistakes import mistake
from tests.support.tiny import elmwright, write_config, write_text
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow(14)

PLANTED = "planted-secret-42d1"


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def submission(folder: Path, target: Target | None = None, **changes: Any) -> Submission:
    config = load_config(str(write_config(folder, folder / "text.txt", **changes)))
    return prepare(config, target or Target("local"), "corpus")


def test_failed_background_run_is_reported_by_every_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole job without Ray: its text is missing, which the run reports at once."""
    monkeypatch.setenv("LAB_SECRET_TOKEN", PLANTED)
    config = write_config(tmp_path, tmp_path / "missing.txt")
    done = elmwright("submit", config, "--to", "local", "--follow")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "in corpus.sources does not exist" in done.stdout
    assert "tiny is failed: a mistake in what was asked" in done.stdout
    status = json.loads(elmwright("status", "tiny", "--json").stdout)
    assert (status["state"], status["exit_code"]) == ("failed", 2)
    assert status["progress"]["stage"] == "corpus"
    by_folder = elmwright("status", tmp_path / "run")
    assert "missing" in elmwright("logs", tmp_path / "run").stdout
    assert status["id"] in by_folder.stdout
    cancelled = elmwright("cancel", "tiny")
    assert cancelled.returncode == 2
    assert "there is nothing to cancel: it is failed" in cancelled.stderr
    assert "tiny " in elmwright("jobs").stdout
    resumed = elmwright("resume", "tiny", "--follow")
    assert resumed.returncode == 2
    assert "no checkpoint yet, so training starts from the beginning" in resumed.stdout
    assert len(runbook.attempts_of("tiny")) == 2
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or PLANTED.encode() not in path.read_bytes(), path


def test_dry_run_prints_the_job_and_writes_nothing(tmp_path: Path) -> None:
    config = write_config(tmp_path, write_text(tmp_path / "text.txt", 3))
    before = sorted(tmp_path.rglob("*"))
    done = elmwright("submit", config, "--to", "local", "--dry-run")
    assert done.returncode == 0
    assert "elmwright.jobs.submit.job" in done.stdout
    done = elmwright(
        "submit", config, "--to", "slurm", "--dry-run", "--set", "tracking.uri=http://x:5000"
    )
    assert "#SBATCH --job-name=elmwright-tiny" in done.stdout
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", ["", "../up", "a b", "söder", "-x", "a" * 101, "a/b"])
def test_an_odd_name_is_refused(tmp_path: Path, name: str) -> None:
    config = write_config(tmp_path, tmp_path / "text.txt")
    done = elmwright("submit", config, "--to", "local", f"--name={name}")
    assert done.returncode == 2
    assert "run.name" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "state").exists()


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


def test_running_run_is_not_sent_again(tmp_path: Path, sleeper: "subprocess.Popen[bytes]") -> None:
    first = submission(tmp_path)
    runbook.remember(Job(first, process_handle(sleeper.pid)))
    assert state_of(runbook.attempts_of("tiny")[-1]).word == "running"
    with mistake("busy", "'tiny'", "local", first.id):
        submit(submission(tmp_path))


def test_a_process_that_was_killed_leaves_an_interrupted_run(
    tmp_path: Path, sleeper: "subprocess.Popen[bytes]"
) -> None:
    job = Job(submission(tmp_path), process_handle(sleeper.pid))
    os.kill(sleeper.pid, signal.SIGKILL)
    sleeper.wait()
    assert Background(Target("local")).state(job) == State("interrupted", "its process is gone")


def test_reused_process_number_is_never_signalled(
    tmp_path: Path, sleeper: "subprocess.Popen[bytes]"
) -> None:
    later = replace(process_handle(sleeper.pid), started=1)
    assert not is_alive(later)
    Background(Target("local")).stop(Job(submission(tmp_path), later))
    time.sleep(0.2)
    assert sleeper.poll() is None


def test_written_exit_code_counts_if_the_process_is_elsewhere(tmp_path: Path) -> None:
    job = Job(submission(tmp_path), ProcessHandle(pid=1, started=1, host="elsewhere"))
    assert state_of(job).word == "running"
    runbook.write_outcome(job.submission, 75)
    assert state_of(job) == state_of_exit(75)


def test_the_run_book_keeps_every_attempt_in_order(tmp_path: Path) -> None:
    process = ProcessHandle(pid=7, started=8, host="here")
    handles = (process, SlurmHandle("2"), RayJobHandle("tiny-1"), NoHandle())
    jobs = [Job(submission(tmp_path), handle) for handle in handles]
    for job in jobs:
        runbook.remember(job)
    assert runbook.attempts_of("tiny") == jobs
    assert runbook.read_all() == ([jobs[-1]], [])
    page = tmp_path / "state" / "elmwright" / "runs" / "tiny.json"
    assert page.stat().st_mode & 0o077 == 0
    written = [job["handle"] for job in json.loads(page.read_text())["attempts"]]
    assert written == [
        {"pid": 7, "started": 8, "host": "here"},
        {"job": "2"},
        {"rayjob": "tiny-1"},
        {},
    ]


def test_a_kind_of_target_that_is_not_known_is_refused(tmp_path: Path) -> None:
    job = Job(replace(submission(tmp_path), target=Target("cloud", name="lab")))
    with mistake("target", "lab", "'cloud'"):
        state_of(job)


def test_every_kind_of_target_has_a_class_and_can_be_examined() -> None:
    assert tuple(PLACES) == tuple(EXAMINERS) == KINDS


def test_job_refuses_an_environment_without_its_dependencies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(entry, "requirements", lambda: ["numpy>=99", "no-such-thing>=1", "rich"])
    with mistake("environment", "numpy", ">=99", "no-such-thing is missing"):
        entry.check_dependencies()


def test_relative_paths_need_the_folder_they_are_relative_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sent = submission(tmp_path, run_dir="here")
    assert sent.dir == str(tmp_path / "here")
    config = load_config(str(tmp_path / "tiny.toml"))
    entry.enter_folder(sent, config)
    gone = replace(sent, cwd="/no/such/folder")
    with mistake("shared-path", "'here'", "/no/such/folder"):
        entry.enter_folder(gone, config)


def test_a_model_to_start_from_is_a_path_like_the_others(tmp_path: Path) -> None:
    submission(tmp_path, train_init_from="models/elmo")
    config = load_config(str(tmp_path / "tiny.toml"))
    assert "models/elmo" in relative_paths(config)
    submission(tmp_path, train_init_from="models:/elmo@best")
    config = load_config(str(tmp_path / "tiny.toml"))
    assert relative_paths(config) == []


def test_a_job_that_brings_its_own_ray_waits_for_its_workers(tmp_path: Path) -> None:
    """The user's own setting is kept, also in the submission."""
    sent = submission(tmp_path, Target("slurm"))
    config = load_config(str(tmp_path / "tiny.toml"))
    assert sent.config["cluster"]["wait_minutes"] == 0
    assert entry.waiting_config(config, sent).cluster.wait_minutes == entry.STARTING_MINUTES
    assert entry.waiting_config(config, submission(tmp_path, Target("local"))) == config
    own = load_config(str(tmp_path / "tiny.toml"), ["cluster.wait_minutes=60"])
    assert entry.waiting_config(own, sent).cluster.wait_minutes == 60


def test_submitting_to_slurm_leaves_the_users_own_waiting_time(tmp_path: Path) -> None:
    config = write_config(tmp_path, tmp_path / "text.txt", cluster_wait_minutes=60)
    done = elmwright(
        "submit",
        config,
        "--to",
        "slurm",
        "--dry-run",
        "--json",
        "--set",
        "tracking.uri=http://x:5000",
    )
    assert json.loads(done.stdout)["config"]["cluster"]["wait_minutes"] == 60


def test_a_damaged_page_of_the_run_book_hides_no_other_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runbook.remember(Job(submission(tmp_path), ProcessHandle(pid=1, started=1, host="elsewhere")))
    for number, content in enumerate(("{}", "half a pa", '{"attempts": [{"submission": 3}]}')):
        (tmp_path / "state" / "elmwright" / "runs" / f"bad{number}.json").write_text(content)
    assert main(["jobs"]) == 0
    output = capsys.readouterr()
    assert "tiny " in output.out
    assert output.err.count("is damaged; delete it") == 3
    assert main(["status", "bad0"]) == 2
    assert "is damaged; delete it" in capsys.readouterr().err


def test_a_damaged_note_in_a_runs_folder_is_named(tmp_path: Path) -> None:
    note = tmp_path / "run" / "submissions" / "one" / "job.json"
    note.parent.mkdir(parents=True)
    for content in ("half a no", "{}", "[]", "[" * 100_000, '{"submission": ' + "[" * 100_000):
        note.write_text(content)
        with mistake("file-damaged", "one/job.json"):
            runbook.submissions_in(str(tmp_path / "run"))


@pytest.mark.parametrize(
    "content", ["half", "{}", "[]", "3", "[" * 100_000, '{"exit": []}', '{"exit": "x"}', "null"]
)
def test_a_damaged_outcome_or_handle_counts_as_none(content: str, tmp_path: Path) -> None:
    sent = submission(tmp_path)
    place = Path(runbook.job_folder(sent))
    place.mkdir(parents=True)
    (place / "outcome.json").write_text(content)
    (place / "job.json").write_text(content.replace("exit", "handle"))
    assert runbook.outcome_of(sent) is None
    assert runbook.handle_of(Job(sent), ProcessHandle) is None


def test_a_job_names_a_package_that_the_cluster_lacks(tmp_path: Path) -> None:
    """As on a cluster without it: neither the package nor its metadata can be found."""
    lacking = tmp_path / "lacking"
    lacking.mkdir()
    (lacking / "sitecustomize.py").write_text(
        "import sys\nfrom importlib import metadata\n"
        "sys.modules['ftfy'] = None\nversion = metadata.version\n"
        "def lacks(name):\n"
        "    if name == 'ftfy':\n"
        "        raise metadata.PackageNotFoundError(name)\n"
        "    return version(name)\n"
        "metadata.version = lacks\n"
    )
    note = tmp_path / "submission.json"
    note.write_text(submission(tmp_path).to_json())
    done = subprocess.run(
        [sys.executable, "-m", "elmwright.jobs.submit.job", str(note), str(os.getpid())],
        env={**os.environ, "PYTHONPATH": str(lacking)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "ftfy" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_defect_of_the_driver_is_a_failure_and_not_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sent = submission(tmp_path)

    def defect(_: object) -> None:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(entry, "run_submission", defect)
    assert entry.run_once(sent) == 1
    assert "ZeroDivisionError: a defect" in capsys.readouterr().err


def test_job_writes_its_exit_code_beside_the_submission(tmp_path: Path) -> None:
    job = submit(submission(tmp_path, Target("local")))  # whose text is missing
    assert wait_until(lambda: runbook.outcome_of(job.submission) is not None, 60)
    assert (state_of(job).word, state_of(job).exit_code) == ("failed", 2)


STOPS_SLOWLY = """
import sys, time
from elmwright.jobs.terminal.signals import stop_signals
with stop_signals() as stop, stop.saving("stopping", print):
    open(sys.argv[1] + "/up", "w").close()
    while not stop.is_set():
        time.sleep(0.05)
    time.sleep(1)
    open(sys.argv[1] + "/checkpoint", "w").close()
"""


def test_cancelling_twice_still_writes_the_checkpoint(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", STOPS_SLOWLY, str(tmp_path)])
    try:
        assert wait_until((tmp_path / "up").exists, 60)
        job = Job(submission(tmp_path), process_handle(process.pid))
        for _ in range(3):
            submit_module.cancel(job, wait=False)
            time.sleep(0.2)
        assert process.wait(30) == 0
    finally:
        process.kill()
    assert (tmp_path / "checkpoint").exists()


def test_job_whose_submission_was_cut_off_is_found_by_its_job_file(
    tmp_path: Path, sleeper: "subprocess.Popen[bytes]"
) -> None:
    job = Job(submission(tmp_path))
    assert state_of(job).word == "interrupted"
    runbook.write_job(Job(job.submission, process_handle(sleeper.pid)))
    assert state_of(job) == State("running", f"process {sleeper.pid}")


def test_ctrl_c_while_a_job_is_sent_leaves_it_in_the_run_book(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_off(*_: object) -> dict[str, Any]:
        raise KeyboardInterrupt

    monkeypatch.setattr(Background, "submit", cut_off)
    sent = submission(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        submit(sent)
    assert runbook.attempts_of("tiny") == [Job(sent)]
