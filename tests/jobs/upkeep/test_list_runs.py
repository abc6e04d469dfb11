"""`runs`, `status` and `logs` of runs that were started by hand."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from elmwright.jobs.checkpoints.contents import SavedScore, TrainingResult
from elmwright.jobs.cli.command import main
from elmwright.jobs.runbook.find_run import find_run
from elmwright.jobs.rundir.run_lock import locked
from elmwright.jobs.upkeep.list_runs import ago, as_table, list_runs, measure
from elmwright.pipeline.records import to_data
from tests.support.tiny_runs.started_run import start, write


def trained_to(root: Path, step: int, perplexity: float = 0.0) -> None:
    write(root / "corpus" / "MANIFEST.json", {})
    records = [{"kind": "metrics", "step": step, "time": 1, "values": {"train/tokens_per_s": 10.0}}]
    if perplexity:
        records.append(
            {"kind": "eval", "step": step, "time": 1, "values": {"h/fresh_perplexity": perplexity}}
        )
    lines = "".join(json.dumps(record) + "\n" for record in records)
    write(root / "train" / "journal.jsonl", lines)


def finish(root: Path) -> None:
    trained_to(root, 12)
    result = TrainingResult(
        step=12,
        checkpoint="step-00000012",
        checkpoint_sha256="0" * 64,
        evaluation={"h": SavedScore(perplexity=1234.5, tokens=1)},
    )
    write(root / "train" / "result.json", to_data(result))
    write(root / "bundle" / "SHA256SUMS", "")
    write(root / "published.json", {})


def test_the_list_tells_state_step_perplexity_and_size(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = project / "runs" / "tiny"
    trained_to(tiny, 6, perplexity=50.5)
    finish(start(project / "tiny.toml", "run.name=done"))
    start(project / "tiny.toml", "run.name=new")
    (project / "runs" / "notes").mkdir()  # no run
    with locked(find_run("tiny")):
        assert main(["runs", "--json"]) == 0
        found = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
        assert main(["runs"]) == 0
        lines = capsys.readouterr().out.splitlines()
    assert set(found) == {"tiny", "done", "new"}
    seen = {name: (row["state"], row["stage"], row["step"]) for name, row in found.items()}
    assert seen == {
        "tiny": ("running", "train", 6),
        "done": ("finished", "done", 12),
        "new": ("interrupted", "corpus", 0),
    }
    assert found["tiny"]["perplexity"] == {"h": 50.5}
    assert found["tiny"]["bytes"] > 0
    assert lines[0].split() == ["run", "state", "step", "perplexity", "size", "changed"]
    (row,) = (line for line in lines if line.startswith("done"))
    assert "finished" in row
    assert "12/12" in row
    assert "1,234.5*" in row, "its result does not say its states, as in earlier versions"
    assert lines[-1] == "* (states carried over)"
    assert " 50.5 " in next(line for line in lines if line.startswith("tiny"))
    states = {name: row["perplexity_states"] for name, row in found.items()}
    assert (states["tiny"], states["done"]) == ("fresh", "carried")
    assert any("running: train" in line for line in lines)
    assert max(map(len, lines)) <= 80


def test_a_folder_without_runs_says_how_to_make_one(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "other").mkdir()
    monkeypatch.chdir(project / "other")
    assert main(["runs"]) == 0
    assert "elmwright run demo" in capsys.readouterr().out
    assert main(["runs", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    assert main(["runs", "nowhere"]) == 2


def test_a_file_with_two_names_counts_once(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 100_000)
    once = measure(tmp_path)[0]
    os.link(tmp_path / "a", tmp_path / "b")
    assert measure(tmp_path)[0] == once >= 100_000


def test_times_are_as_people_say_them() -> None:
    assert [ago(n) for n in (-5, 59, 60, 7300, 86_400 * 3)] == [
        "just now",
        "just now",
        "1 minute ago",
        "2 hours ago",
        "3 days ago",
    ]


def test_status_of_a_run_here(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny = project / "runs" / "tiny"
    trained_to(tiny, 6, perplexity=50.5)
    write(tiny / "run.lock", {"command": "elmwright run tiny.toml", "host": "x", "pid": 1})
    for name in ("tiny", "runs/tiny", "tiny.toml"):
        assert main(["status", name]) == 0
        out = capsys.readouterr().out
        assert "interrupted" in out
        assert "6 of 12" in out
        assert "'elmwright run tiny.toml' resumes" in out
    with locked(find_run("tiny")):
        assert main(["status", "tiny", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["state"], found["progress"]["stage"]) == ("running", "train")
    assert f"process {os.getpid()}" in found["why"]


def test_a_run_that_was_asked_for_less_is_finished_with_that(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = project / "runs" / "tiny"
    finish(tiny)
    (tiny / "published.json").unlink()
    for command, state in (
        ("elmwright run tiny.toml", "interrupted"),
        ("elmwright run tiny.toml --until export", "finished"),
        ("elmwright run --until=train tiny.toml", "finished"),
        ("elmwright train tiny.toml", "finished"),
        ("elmwright publish tiny.toml", "interrupted"),
    ):
        write(tiny / "run.lock", {"command": command, "host": "x", "pid": 1})
        assert main(["status", "tiny", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["state"] == state, command


def test_logs_of_a_run_here_are_followed_until_it_ends(project: Path) -> None:
    tiny = project / "runs" / "tiny"
    log = tiny / "elmwright.log"
    log.write_text("first line\n")
    follow = [sys.executable, "-m", "elmwright.jobs.cli", "logs", "-f", "tiny"]
    with locked(find_run("tiny")):
        process = subprocess.Popen(follow, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "first line\n"
        with log.open("a") as file:
            file.write("second line\n")
        assert process.stdout.readline() == "second line\n"
        assert process.poll() is None
        finish(tiny)
    rest = process.communicate(timeout=30)[0]
    assert rest == "-- tiny is finished\n"


def test_a_log_that_is_not_there(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", "tiny"]) == 2
    assert "there is no runs/tiny/elmwright.log" in capsys.readouterr().err


def test_the_newest_run_comes_first(project: Path) -> None:
    start(project / "tiny.toml", "run.name=older")
    old = time.time() - 5000
    for path in (project / "runs" / "older").rglob("*"):
        os.utime(path, (old, old))
    assert [run.name for run in list_runs()] == ["tiny", "older"]
    assert as_table(list_runs())[2].endswith("1 hour ago")
