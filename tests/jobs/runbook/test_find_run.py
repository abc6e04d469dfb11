"""A run is found by its folder, its name here, its config, or the name it was submitted under."""

import json
import shutil
from pathlib import Path

import pytest

from elmwright.jobs.cli.command import main
from elmwright.jobs.config.toml_file import load_config
from elmwright.jobs.runbook import runbook
from elmwright.jobs.runbook.find_run import find_attempts, find_run, run_names, running_command
from elmwright.jobs.runbook.submission import Job, Submission
from elmwright.jobs.runbook.target import Target
from elmwright.jobs.rundir.file_lock import is_locked
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.rundir.run_lock import locked
from elmwright.jobs.submit.send import prepare
from elmwright.pipeline.errors import UserError
from tests.support.mistakes import mistake
from tests.support.tiny_runs.started_run import start


def submitted(config: Path, *overrides: str) -> Submission:
    sent = prepare(load_config(str(config), list(overrides)), Target("local"), "publish")
    runbook.remember(Job(sent))
    return sent


@pytest.mark.parametrize("text", ["runs/tiny", "tiny", "tiny.toml", "runs/tiny/"])
def test_every_way_to_name_a_run_leads_to_its_folder(project: Path, text: str) -> None:
    assert find_run(text).root == str(project / "runs" / "tiny")
    folder, attempts = find_attempts(text)
    assert folder is not None
    assert folder.root == find_run(text).root
    assert attempts == []


def test_a_submitted_run_is_found_by_its_name_from_anywhere(
    project: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = start(project / "tiny.toml", "run.name=other")
    sent = submitted(project / "tiny.toml", "run.name=other")
    monkeypatch.chdir(own_home)
    assert find_run("other").root == str(other)
    folder, attempts = find_attempts("other")
    assert folder is not None
    assert folder.root == str(other)
    assert [job.submission for job in attempts] == [sent]
    assert run_names() == ["other"]


def test_a_submitted_run_whose_folder_is_elsewhere_has_attempts_but_no_folder(
    project: Path,
) -> None:
    sent = submitted(project / "tiny.toml", "run.name=away", 'run.dir="/nowhere/away"')
    folder, attempts = find_attempts("away")
    assert folder is None
    assert attempts[0].submission == sent
    with mistake("run-missing", "/nowhere/away"):
        find_run("away")


def test_run_in_this_folder_comes_before_a_submitted_one(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    submitted(project / "tiny.toml", 'run.dir="/elsewhere/tiny"')
    assert find_run("tiny").root == str(project / "runs" / "tiny")
    _, attempts = find_attempts("tiny")
    assert attempts == []
    assert "the submitted run 'tiny' is in /elsewhere/tiny" in capsys.readouterr().err


def test_queued_attempt_belongs_to_the_folder(project: Path) -> None:
    sent = submitted(project / "tiny.toml")
    for text in ("tiny", "runs/tiny", "tiny.toml"):
        assert [job.submission.id for job in find_attempts(text)[1]] == [sent.id]


def test_a_job_that_has_not_begun_is_known_by_its_folder(project: Path) -> None:
    """Only its job file exists yet, and another machine has no run book of it."""
    config = load_config(str(project / "tiny.toml"), ["run.name=waits"])
    sent = prepare(config, Target("local"), "publish")
    runbook.write_job(Job(sent))
    for text in ("waits", "runs/waits", sent.dir):
        folder, attempts = find_attempts(text)
        assert folder is not None
        assert folder.root == sent.dir
        assert [job.submission for job in attempts] == [sent]


@pytest.mark.parametrize("how", ["copy", "move"])
def test_a_copy_of_a_submitted_run_never_acts_on_its_original(
    project: Path, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    config = project / "tiny.toml"
    original = start(config, "run.name=sent")
    sent = submitted(config, "run.name=sent")
    runbook.write_job(Job(sent))
    other = project / "runs" / "other"
    if how == "copy":
        shutil.copytree(original, other)
        assert [job.submission for job in find_attempts("sent")[1]] == [sent]
    else:
        original.rename(other)
    for text in ("other", "runs/other", str(other)):
        folder, attempts = find_attempts(text)
        assert folder is not None
        assert folder.root == str(other)
        assert attempts == []
    for command in ("cancel", "resume"):
        assert main([command, "runs/other"]) == 2
        assert "runs/other was not submitted" in capsys.readouterr().err
    assert main(["status", "runs/other", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["dir"] == str(other)


def test_unknown_run_is_refused_with_the_nearest_name(project: Path) -> None:
    with pytest.raises(UserError, match=r"no run 'tinny': .*; did you mean 'tiny'\?$"):
        find_run("tinny")
    with mistake("run-missing", "'dmeo'", "'demo'?"):
        find_attempts("dmeo")
    with mistake("run-missing", "'elmwright run small'"):
        find_run("small")
    (project / "empty").mkdir()
    with mistake("run-missing", "empty"):
        find_run("empty")


def test_a_run_in_use_is_seen_without_taking_its_lock(project: Path) -> None:
    folder = find_run("tiny")
    lock = Path(folder.root, "run.lock")
    assert not is_locked(lock)
    with locked(folder):
        assert is_locked(lock)
        assert "process" in running_command(folder)
        with mistake("busy"), locked(folder):
            pass
    assert not is_locked(lock)
    assert running_command(folder) == ""


def test_lock_last_held_by_another_machine_is_tried(project: Path) -> None:
    folder = find_run("tiny")
    lock = Path(folder.root, "run.lock")
    with locked(folder):
        lock.write_text(json.dumps({"pid": 1, "host": "another"}))
        assert is_locked(lock)
    assert not is_locked(lock)


def test_scratch_inside_a_run_is_where_the_run_is_now(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The saved config says runs/tiny/scratch, which in another folder is another run's."""
    moved = project / "moved"
    (project / "runs" / "tiny").rename(moved)
    assert RunFolder.at(moved).scratch == moved / "scratch"
    monkeypatch.chdir(project / "runs")
    assert RunFolder.at(moved).scratch == moved / "scratch"


def test_a_run_that_was_not_submitted_can_be_neither_cancelled_nor_resumed(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = find_run("tiny")
    with locked(folder):
        for command in ("cancel", "resume"):
            assert main([command, "tiny"]) == 2
            assert "was not submitted; it is in use by" in capsys.readouterr().err
    Path(folder.root, "run.lock").write_text(json.dumps({"command": "elmwright run tiny.toml"}))
    assert main(["cancel", "tiny"]) == 2
    assert "'elmwright run tiny.toml' continues it" in capsys.readouterr().err
