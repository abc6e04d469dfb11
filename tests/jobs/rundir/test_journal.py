"""The journal keeps the first record of every step, and an incomplete last line is harmless."""

import json
import os
import threading
from pathlib import Path

import pytest

from elmwright.jobs.checkpoints.checkpoint import StaleAttempt
from elmwright.jobs.rundir.journal import Journal
from elmwright.jobs.rundir.journal_lines import read_journal
from elmwright.jobs.rundir.journal_records import (
    CheckpointPruned,
    CheckpointSaved,
    Metrics,
    Record,
    parse_record,
)


def records(path: Path) -> list[Record]:
    return [record for record, _ in read_journal(path, 0)]


def test_records_are_read_in_order_and_from_any_position(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    for step in (1, 2, 3):
        journal.write(Metrics(step=step, values={"loss": 1.0 / step}))
    journal.close()
    everything = list(read_journal(path, 0))
    assert [record.step for record, _ in everything] == [1, 2, 3]
    rest = [record.step for record, _ in read_journal(path, everything[0][1])]
    assert rest == [2, 3]


def test_repeated_step_keeps_its_first_record(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    first = Journal(path)
    first.write(Metrics(step=1, values={"loss": 3.0}))
    first.write(CheckpointSaved(step=1, path="x", sha256="a", perplexity={}))
    first.close()
    before = records(path)
    second = Journal(path)
    second.write(Metrics(step=1, values={"loss": 99.0}))
    second.write(Metrics(step=2, values={"loss": 2.0}))
    second.close()
    assert records(path)[:2] == before
    assert [record.step for record in records(path)] == [1, 1, 2]


def test_guard_prevents_writing(tmp_path: Path) -> None:
    def stale() -> None:
        raise StaleAttempt("attempt 2 has begun")

    path = tmp_path / "journal.jsonl"
    journal = Journal(path, stale)
    journal.write(Metrics(step=1, values={}))
    with pytest.raises(StaleAttempt):
        journal.flush()
    with pytest.raises(StaleAttempt):  # the loop learns of it with its next record
        journal.write(Metrics(step=2, values={}))
    journal.close()
    assert records(path) == []


def test_full_disk_leaves_no_half_line_and_closed_journal_ignores_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    journal.write(Metrics(step=1, values={}))
    journal.flush()
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[: len(data) // 2]))
    journal.write(Metrics(step=2, values={}))  # training continues
    assert [record.step for record in records(path)] == [1]
    with pytest.raises(OSError, match="No space left"):
        journal.flush()  # but no checkpoint may be committed ahead of the journal
    monkeypatch.undo()
    journal.write(Metrics(step=3, values={"now": 3}))
    journal.close()
    journal.write(Metrics(step=4, values={}))
    assert [record.step for record in records(path)] == [1, 2, 3]


def test_writing_a_record_does_not_wait_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, begun, released = os.write, threading.Event(), threading.Event()
    timed_out = []

    def write(descriptor: int, data: bytes) -> int:
        begun.set()
        if not released.wait(60):
            timed_out.append(data)
        return real(descriptor, data)

    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    monkeypatch.setattr(os, "write", write)
    journal.write(Metrics(step=0, values={}))
    assert begun.wait(60)
    for step in range(1, 100):
        journal.write(Metrics(step=step, values={}))  # the disk has not answered yet
    released.set()
    journal.close()
    assert timed_out == []
    assert [record.step for record in records(path)] == list(range(100))


def test_incomplete_last_line_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    journal.write(Metrics(step=1, values={}))
    journal.close()
    with path.open("ab") as file:
        file.write(b'{"kind": "metrics", "st')
    assert len(records(path)) == 1
    journal = Journal(path)
    journal.write(Metrics(step=2, values={}))
    journal.close()
    assert [record.step for record in records(path)] == [1, 2]


def test_checkpoint_with_other_bytes_or_after_pruning_is_recorded_again(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    for _ in range(2):  # also after it was opened anew
        journal = Journal(path)
        journal.write(CheckpointSaved(step=5, path="x", sha256="a", perplexity={}))
        journal.close()
    journal = Journal(path)
    journal.write(CheckpointSaved(step=5, path="x", sha256="b", perplexity={}))
    journal.write(CheckpointPruned(step=5))
    journal.write(CheckpointPruned(step=5))
    journal.write(CheckpointSaved(step=5, path="x", sha256="b", perplexity={}))
    journal.close()
    kinds = [(record.kind, getattr(record, "sha256", None)) for record in records(path)]
    assert kinds == [
        ("checkpoint", "a"),
        ("checkpoint", "b"),
        ("pruned", None),
        ("checkpoint", "b"),
    ]


def test_order_of_fields_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path) as journal:
        journal.write(
            CheckpointSaved(step=5, time=7, path="x", sha256="a", perplexity={"heldout": 2.5})
        )
        journal.write(Metrics(step=6, time=8, values={"train/loss": 1.5, "train/skipped": 2}))
    assert path.read_text() == (
        '{"kind": "checkpoint", "step": 5, "time": 7, "path": "x", "sha256": "a", '
        '"perplexity": {"heldout": 2.5}, "perplexity_states": "carried"}\n'
        '{"kind": "metrics", "step": 6, "time": 8, "values": {"train/loss": 1.5, '
        '"train/skipped": 2}}\n'
    )


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('{"kind": "newer", "step": 3, "time": 1, "more": [1]}', Record(step=3, time=1)),
        ('{"kind": "pruned", "step": 3, "time": 1, "why": 2}', CheckpointPruned(step=3, time=1)),
        (
            '{"kind": "metrics", "step": 3, "time": 1, "values": {"x": Infinity}}',
            Metrics(step=3, time=1, values={"x": float("inf")}),
        ),
        ('{"kind": "metrics", "step": 3, "time": 1, "values": {"x": true}}', None),
        ('{"kind": "metrics", "step": 3, "values": {}}', None),
        ('{"kind": "pruned", "step": -1, "time": 1}', None),
        ('{"kind": "scoring", "step": 1, "time": 1, "tokens": 0}', None),
        ('{"kind": ["pruned"], "step": 1, "time": 1}', None),
    ],
)
def test_parse_record_returns_none_for_invalid_records(line: str, expected: Record | None) -> None:
    assert parse_record(json.loads(line)) == expected
