"""A damaged journal: every other line is still read."""

import json
import shutil
from pathlib import Path

import pytest
from mlflow import MlflowClient

from elmwright.jobs.checkpoints.checkpoint import begin_attempt
from elmwright.jobs.rundir.journal import Journal
from elmwright.jobs.rundir.journal_lines import damage_notes_path, damaged_lines, read_journal
from elmwright.jobs.rundir.journal_records import Metrics
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.rundir.stop_request import ask_to_stop, withdraw_stop
from elmwright.jobs.tracking.tracker import Tracker, is_caught_up
from elmwright.jobs.training.loop.exchange import Ranks
from elmwright.jobs.training.loop.train import train
from elmwright.jobs.upkeep.status import read_progress, submission_here
from elmwright.jobs.upkeep.verify import verify_path
from elmwright.pipeline.format.manifest import Manifest
from elmwright.pipeline.storage.files import at
from tests.support.mistakes import mistake
from tests.support.tiny_runs.training import losses, prepare, weights

pytestmark = pytest.mark.slow(39)

RANDOM = bytes(range(1, 10)) + b"\x8e\xff\x00 {[" + bytes(range(11, 90))
DAMAGE = {
    "random bytes": lambda line: RANDOM + b"\n",
    "no UTF-8": lambda line: line.replace(b"metrics", b"m\xff\xfeics"),
    "zeros": lambda line: bytes(len(line)) + b"\n",
    "zeros and no end": lambda line: bytes(len(line)),
    "cut, and joined with the next": lambda line: line[: len(line) // 2],
    "a number": lambda line: b"17\n",
    "a list": lambda line: b"[1, 2]\n",
    "no step": lambda line: line.replace(b'"step"', b'"pets"'),
    "a step that is none": lambda line: line.replace(b'"step": 2', b'"step": "2"'),
    "a huge step": lambda line: line.replace(b'"step": 2', b'"step": 2' + b"0" * 400),
    "values that are none": lambda line: line.replace(b'"values": {', b'"values": 3, "old": {'),
    "nested without end": lambda line: b"[" * 100_000 + b"\n",
    "three megabytes": lambda line: b"x" * 3_000_000 + b"\n",
}


def steps(path: str | Path) -> list[int]:
    return [record.step for record, _ in read_journal(path, 0)]


def write(path: str | Path, numbers: range) -> Journal:
    journal = Journal(path)
    for step in numbers:
        journal.write(Metrics(step=step, values={"train/loss": 1 / step}))
    return journal


def damage(path: Path, number: int, kind: str) -> None:
    """Replace a line of a file, counted from 0."""
    lines = path.read_bytes().splitlines(keepends=True)
    lines[number] = DAMAGE[kind](lines[number])
    path.write_bytes(b"".join(lines))


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_line_is_skipped_and_warned_of_once(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write(path, range(1, 6)).close()
    damage(path, 1, kind)
    damaged = path.read_bytes()
    assert steps(path) == [1, 3, 4, 5]
    (found,) = damaged_lines(path)
    assert damaged[found.begin - 1 : found.begin] == b"\n"
    write(path, range(5, 8)).close()
    assert path.read_bytes().startswith(damaged), "a journal is never rewritten"
    records = [record for record, _ in read_journal(path, 0)]
    (warning,) = [record for record in records if record.kind == "warning"]
    assert f"at byte {found.begin}" in warning.text
    assert f"{path}.damaged" in warning.text
    assert [r.step for r in records if r.kind == "metrics"] == [1, 3, 4, 5, 6, 7]
    kept = json.loads(Path(damage_notes_path(path)).read_text())
    assert (kept["begin"], kept["end"]) == (found.begin, found.end)
    assert kept["bytes"].encode("latin-1") == damaged[found.begin : found.end][:65536]
    before = path.read_bytes()
    Journal(path).close()
    assert path.read_bytes() == before, "it is recorded once"


def test_reader_continues_at_its_position_after_damage(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write(path, range(1, 6)).close()
    positions = [position for _, position in read_journal(path, 0)]
    damage(path, 3, "cut, and joined with the next")
    damage(path, 1, "zeros and no end")
    assert [r.step for r, _ in read_journal(path, positions[0])] == [3, 5]


def test_records_of_one_line_keep_the_position_before_it_until_the_last(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write(path, range(1, 4)).close()
    lines = path.read_bytes().splitlines()
    path.write_bytes(lines[0] + b"\n" + lines[1] + b"\x00\x00" + lines[2] + b"\n")
    found = [(record.step, position) for record, position in read_journal(path, 0)]
    begin = len(lines[0]) + 1
    assert found == [(1, begin), (2, begin), (3, path.stat().st_size)]


def test_records_that_lost_their_newlines_are_read(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write(path, range(1, 41)).close()
    path.write_bytes(path.read_bytes().replace(b"\n", b"") + b"\n")
    assert steps(path) == list(range(1, 41))


def test_search_for_records_in_a_damaged_line_is_limited(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write(path, range(1, 3)).close()
    first, second = path.read_bytes().splitlines()
    path.write_bytes(first + b'{"kind": 1' * 90_000 + second + b"\n")
    assert steps(path) == [1], "what is behind so much damage is given up"


def test_record_without_its_newline_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write(path, range(1, 4)).close()
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with Journal(path) as journal:
        assert path.read_bytes() == whole
        journal.write(Metrics(step=3, values={"train/loss": 9.0}))
        journal.write(Metrics(step=4, values={"train/loss": 9.0}))
        assert journal.damage == ""
    assert path.read_bytes().startswith(whole)
    assert steps(path) == [1, 2, 3, 4]


@pytest.mark.parametrize("tail", [b"17", b"{}", b'{"kind": "metrics", "step": 4', b"[" * 100_000])
def test_last_line_that_is_no_record_is_removed(tail: bytes, tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write(path, range(1, 4)).close()
    whole = path.read_bytes()
    path.write_bytes(whole + tail)
    Journal(path).close()
    assert path.read_bytes() == whole


@pytest.fixture
def stopped(corpus: Path, tmp_path: Path, empty_database: Path) -> tuple[object, RunFolder]:
    """A run that was stopped after some steps, all of them in MLflow."""
    home = tmp_path / "damaged"
    home.mkdir()
    config, run = prepare(home, corpus)
    run.mlflow.mkdir()
    shutil.copyfile(empty_database, run.mlflow / "mlflow.db")
    for _ in range(3):
        attempt = begin_attempt(run.attempt)
        ask_to_stop(run.stop_request)
        train(config, run, attempt, Ranks())
        withdraw_stop(run.stop_request)
    return config, run


def feed(config: object, run: RunFolder) -> None:
    tracker = Tracker(config, run, Manifest.load(run.corpus))  # type: ignore[arg-type]
    tracker.start()
    assert tracker.finish("FINISHED") is None


def logged(run: RunFolder) -> list[int]:
    """The steps of the loss in MLflow."""
    uri = f"sqlite:///{run.mlflow / 'mlflow.db'}"
    history = MlflowClient(uri, uri).get_metric_history(
        (at(run.tracking).read_json() or {})["run_id"], "train/loss"
    )
    return sorted(point.step for point in history)


def line_of(run: RunFolder, kind: str, step: int) -> int:
    lines = [json.loads(line) for line in Path(run.journal).read_bytes().splitlines()]
    return next(n for n, r in enumerate(lines) if (r["kind"], r["step"]) == (kind, step))


@pytest.mark.parametrize("sent", [True, pytest.param(False, marks=pytest.mark.heavy)])
@pytest.mark.parametrize(
    "kind", ["zeros", pytest.param("cut, and joined with the next", marks=pytest.mark.heavy)]
)
def test_run_with_damaged_journal_ends_in_the_same_bytes(
    kind: str, sent: bool, stopped: tuple[object, RunFolder], corpus: Path, tmp_path: Path
) -> None:
    config, run = stopped
    if sent:
        feed(config, run)
    damage(Path(run.journal), line_of(run, "metrics", 2), kind)
    progress = read_progress(submission_here(run))
    assert progress is not None
    assert progress.step == 3
    train(config, run, begin_attempt(run.attempt), Ranks())  # type: ignore[arg-type]
    feed(config, run)

    (tmp_path / "whole").mkdir()
    other, whole = prepare(tmp_path / "whole", corpus)
    train(other, whole, begin_attempt(whole.attempt), Ranks())
    assert weights(run) == weights(whole)
    assert losses(run) == {step: loss for step, loss in losses(whole).items() if step != 2}
    texts = [r.text for r, _ in read_journal(run.journal, 0) if r.kind == "warning"]
    assert len([text for text in texts if "damaged line" in text]) == 1
    assert logged(run) == [step for step in range(1, 21) if sent or step != 2]
    assert is_caught_up(config, run)  # type: ignore[arg-type]


def test_step_whose_record_was_lost_is_charted_once(
    stopped: tuple[object, RunFolder],
) -> None:
    """The record of a step behind the last checkpoint is lost after MLflow had it."""
    config, run = stopped
    with Journal(run.journal) as journal:
        for step in (4, 5):
            journal.write(Metrics(step=step, values={"train/loss": 9.0, "train/tokens_per_s": 1.0}))
    feed(config, run)
    assert logged(run) == [1, 2, 3, 4, 5]
    damage(Path(run.journal), line_of(run, "metrics", 4), "zeros")
    train(config, run, begin_attempt(run.attempt), Ranks())  # type: ignore[arg-type]
    feed(config, run)
    assert logged(run) == list(range(1, 21))


def test_verify_reports_a_damaged_line_until_it_is_noted(
    stopped: tuple[object, RunFolder],
) -> None:
    _, run = stopped
    assert any("journal" in line for line in verify_path(run.root))
    damage(Path(run.journal), line_of(run, "metrics", 2), "random bytes")
    with mistake("file-damaged", "journal.jsonl", "1 damaged line", "at byte"):
        verify_path(run.root)
    Journal(run.journal).close()
    (line,) = [line for line in verify_path(run.root) if "journal" in line]
    assert "1 damaged line set aside" in line


def test_damaged_last_line_of_a_finished_run_is_not_sent_again(
    stopped: tuple[object, RunFolder],
) -> None:
    config, run = stopped
    feed(config, run)
    assert is_caught_up(config, run)  # type: ignore[arg-type]
    with open(run.journal, "ab") as file:
        file.write(RANDOM + b"\n")
    assert is_caught_up(config, run)  # type: ignore[arg-type]


def test_damaged_notes_about_damage_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write(path, range(1, 4)).close()
    damage(path, 1, "zeros")
    Path(damage_notes_path(path)).write_bytes(b"\x00\xff[1]\n{}\n7\n")
    Journal(path).close()
    assert at(damage_notes_path(path)).exists()
    assert [r.kind for r, _ in read_journal(path, 0)].count("warning") == 1
