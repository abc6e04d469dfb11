"""A run in an object store gives the same bytes, without rename and without locks."""

import os
import pickle
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyarrow.fs import FileType

from elmwright.jobs.checkpoints.checkpoint import (
    begin_attempt,
    fetch,
    list_checkpoints,
    newest_valid,
    verify_checkpoint,
)
from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.config.toml_file import load_config
from elmwright.jobs.rundir import lease
from elmwright.jobs.rundir.journal import Journal
from elmwright.jobs.rundir.journal_lines import journal_end, read_journal
from elmwright.jobs.rundir.journal_records import Metrics
from elmwright.jobs.rundir.layout import RunFolder, open_run_folder
from elmwright.jobs.rundir.lease import leased
from elmwright.jobs.rundir.run_lock import locked
from elmwright.jobs.rundir.stop_request import StopNote, ask_to_stop, withdraw_stop
from elmwright.jobs.training.driver.launch import _reason, _storage
from elmwright.jobs.training.loop.exchange import Ranks
from elmwright.jobs.training.loop.train import train
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.records import to_data
from elmwright.pipeline.storage.files import at
from elmwright.pipeline.storage.object_store import StoreLocation
from tests.support.mistakes import mistake
from tests.support.s3_server import SECRET
from tests.support.tiny import write_config
from tests.support.tiny_runs.training import STEPS, losses, prepare, weights

pytestmark = [pytest.mark.usefixtures("s3"), pytest.mark.slow(25)]


def in_store(folder: Path, corpus: Path, name: str) -> tuple[RunConfig, RunFolder]:
    """A run of that name in the bucket, trained on a corpus on this disk."""
    folder.mkdir()
    changes = {
        "run_dir": f"s3://bucket/{name}",
        "run_scratch": str(folder / "scratch"),
        "corpus_dir": str(corpus),
        "tracking_uri": "http://127.0.0.1:1",
        "tracking_every_steps": 1,
        "train_max_steps": STEPS,
        "checkpoint_every_steps": 9,  # many small objects take long
        "train_processes": 1,
    }
    config = load_config(str(write_config(folder, folder / "text.txt", **changes)))
    return config, open_run_folder(config)


def test_run_resumed_in_a_store_equals_a_run_on_disk(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "disk").mkdir()
    config, disk = prepare(tmp_path / "disk", corpus, checkpoint_every_steps=9)
    train(config, disk, begin_attempt(disk.attempt), Ranks())

    monkeypatch.setattr("elmwright.jobs.rundir.stop_request.LOOK_SECONDS", 0.01)
    config, run = in_store(tmp_path / "store", corpus, "resumed")
    stops = 0
    while not at(run.result).exists():
        if stops == 0:
            ask_to_stop(run.stop_request)
        train(config, run, begin_attempt(run.attempt), Ranks())
        withdraw_stop(run.stop_request)
        stops += 1
    assert stops == 2
    assert weights(run) == weights(disk)
    assert losses(run) == losses(disk)
    for info in list_checkpoints(run.checkpoints):
        verify_checkpoint(info.path)
    assert [i.step for i in list_checkpoints(run.checkpoints)] == [
        i.step for i in list_checkpoints(disk.checkpoints)
    ]
    assert not list((tmp_path / "store" / "scratch").rglob("*.safetensors")), "nothing left behind"


def test_a_checkpoint_in_a_store_counts_only_with_its_manifest(
    s3: Path, corpus: Path, tmp_path: Path
) -> None:
    config, run = in_store(tmp_path / "store", corpus, "counted")
    train(config, run, begin_attempt(run.attempt), Ranks())
    steps = [info.step for info in list_checkpoints(run.checkpoints)]
    at(f"{run.checkpoints}/step-{steps[-1]:08d}/MANIFEST.json").remove()
    assert [info.step for info in list_checkpoints(run.checkpoints)] == steps[:-1]
    # A flipped bit in the newest of those that count.
    path = f"{run.checkpoints}/step-{steps[-2]:08d}"
    broken = at(f"{path}/state.json").read_json() or {}
    at(f"{path}/state.json").write_json({**broken, "step": 0})
    warnings: list[str] = []
    newest = newest_valid(run.checkpoints, warnings.append)
    assert newest is None or newest.step < steps[-2]
    assert "state.json" in warnings[0]
    with mistake("file-damaged", "state.json"):
        fetch(path, tmp_path / "copy")


def test_a_journal_in_segments_reads_like_one_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elmwright.jobs.rundir.journal.SEGMENT_SECONDS", 0.05)
    place = "s3://bucket/journal-test"
    journal = Journal(place)
    for step in range(1, 4):
        journal.write(Metrics(step=step, values={"x": step}))
        journal.flush()
    first, position = next(read_journal(place, 0))
    assert first.step == 1
    assert [r.step for r, _ in read_journal(place, position)] == [2, 3]
    journal.close()
    again = Journal(place)  # after a kill: what is held is not written again
    again.write(Metrics(step=3, values={"x": "doubled"}))
    again.write(Metrics(step=4, values={"x": 4}))
    deadline = time.monotonic() + 10
    while len(list(read_journal(place, 0))) < 4 and time.monotonic() < deadline:
        time.sleep(0.05)  # the thread writes by itself
    assert [r.values["x"] for r, _ in read_journal(place, 0)] == [1, 2, 3, 4]
    assert journal_end(place) == list(read_journal(place, 0))[-1][1]
    again.close()
    assert len(at(place).list_files()) == 2, "one segment an opening, until it is full"


def test_copy_of_a_segment_below_the_journal_is_not_read() -> None:
    place = "s3://bucket/journal-copied"
    journal = Journal(place)
    for step in range(1, 4):
        journal.write(Metrics(step=step, values={"x": step}))
    journal.close()
    (segment,) = at(place).list_files()
    first = at(segment.path).read_bytes().partition(b"\n")[0] + b"\n"
    at(segment.path.replace(place, f"{place}/backup")).write_bytes(first)
    assert [record.step for record, _ in read_journal(place, 0)] == [1, 2, 3]


def test_a_full_segment_is_followed_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elmwright.jobs.rundir.journal.SEGMENT_BYTES", 200)
    place = "s3://bucket/journal-long"
    journal = Journal(place)
    for step in range(1, 20):
        journal.write(Metrics(step=step, values={"x": step}))
        journal.flush()
    journal.close()
    assert 3 < len(at(place).list_files()) < 19
    assert [record.step for record, _ in read_journal(place, 0)] == list(range(1, 20))


def test_damaged_line_in_a_segment_is_skipped_and_noted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("elmwright.jobs.rundir.journal.SEGMENT_BYTES", 200)
    place = "s3://bucket/journal-damaged"
    with Journal(place) as journal:
        for step in range(1, 10):
            journal.write(Metrics(step=step, values={"x": step}))
            journal.flush()
    positions = [position for _, position in read_journal(place, 0)]
    second = at(place).list_files()[1].path
    lines = at(second).read_bytes().splitlines(keepends=True)
    lost = int(second.rpartition("/")[2].removesuffix(".jsonl"))
    lines[0] = bytes(20) + b"\r" + lines[0][21:]
    at(second).write_bytes(b"".join(lines))
    with Journal(place) as journal:
        journal.write(Metrics(step=10, values={"x": 10}))
        assert f"1 damaged line, the first at byte {lost};" in journal.damage
    gone = positions.index(lost) + 2
    records = [r for r, _ in read_journal(place, 0) if r.kind == "metrics"]
    assert [r.step for r in records] == [step for step in range(1, 11) if step != gone]
    assert [r.step for r, _ in read_journal(place, positions[5])][:3] == [7, 8, 9]
    assert at(f"{place}.damaged").exists()


def test_truncated_segment_leaves_the_others_readable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("elmwright.jobs.rundir.journal.SEGMENT_BYTES", 200)
    monkeypatch.setattr("elmwright.jobs.rundir.journal.HOLE_SECONDS", 0.0)
    place = "s3://bucket/journal-hole"
    with Journal(place) as journal:
        for step in range(1, 10):
            journal.write(Metrics(step=step, values={"x": step}))
            journal.flush()
    everything = list(read_journal(place, 0))
    middle = at(place).list_files()[1]
    begin = int(middle.path.rpartition("/")[2].removesuffix(".jsonl"))
    cut = begin + middle.bytes - 120
    left = [r.step for r, p in everything if not cut < p <= begin + middle.bytes]
    assert 4 < len(left) < 9
    at(middle.path).write_bytes(at(middle.path).read_bytes()[:-120])
    with Journal(place) as journal:
        journal.write(Metrics(step=10, values={"x": 10}))
    records = [r for r, _ in read_journal(place, 0)]
    assert [r.step for r in records if r.kind == "metrics"] == [*left, 10]
    assert [r.kind for r in records].count("warning") == 1
    at(f"{place}/999999999999.jsonl").write_bytes(b"{}\n")
    with mistake("file-damaged", "999999999999.jsonl"):
        Journal(place)


def test_unlisted_segment_is_not_overwritten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("elmwright.jobs.rundir.journal.SEGMENT_BYTES", 200)
    monkeypatch.setattr("elmwright.jobs.rundir.journal.HOLE_SECONDS", 0.0)
    place = "s3://bucket/journal-unlisted"
    with Journal(place) as journal:
        for step in range(1, 10):
            journal.write(Metrics(step=step, values={"x": step}))
            journal.flush()
    before = [(file.path, at(file.path).read_bytes()) for file in at(place).list_files()]
    with monkeypatch.context() as patched:
        listed = [file for file in at(place).list_files() if file.path != before[1][0]]
        patched.setattr(StoreLocation, "list_files", lambda _self: listed)
        with mistake("store-failed", before[1][0]):
            Journal(place)
    assert [(file.path, at(file.path).read_bytes()) for file in at(place).list_files()] == before
    with Journal(place) as journal:
        journal.write(Metrics(step=10, values={"x": 10}))
    assert [r.step for r, _ in read_journal(place, 0)] == list(range(1, 11))


def test_lease_that_is_not_renewed_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "RENEW", 0.1)
    monkeypatch.setattr(lease, "SETTLE", 0.1)
    place = str(tmp_path / "run.lock")
    assert not lease.is_held(place)
    with leased(place, replace(lease.this_process(), host="another-machine")):
        assert lease.is_held(place)
        monkeypatch.setattr(lease, "EXPIRES", -1.0)  # by our clock, which may be wrong
        assert lease.is_held(place), "its counter moves"
    assert not lease.is_held(place)
    left = {"owner": "x", "count": 3, **to_data(lease.this_process())}
    at(place).write_json({**left, "host": "another-machine"})
    assert not lease.is_held(place), "its counter does not change"
    monkeypatch.setattr(lease, "EXPIRES", 20.0)
    assert lease.is_held(place)
    at(place).write_json({**left, "pid": 2**22 + 1})
    assert not lease.is_held(place), "a process of this machine that has ended"


def test_lease_is_taken_over_when_its_holder_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lease, "RENEW", 0.2)
    monkeypatch.setattr(lease, "EXPIRES", 3.0)
    monkeypatch.setattr(lease, "SETTLE", 0.1)
    place = "s3://bucket/held/run.lock"
    holder = lease.this_process()
    with leased(place, holder), mistake("busy", "'elm"):  # noqa: SIM117
        with leased(place, holder):
            pass
    assert at(place).read_json() == {"owner": ""}, "given back"
    looks: list[str] = []
    read_json = StoreLocation.read_json

    def look(self: StoreLocation) -> Any:
        if threading.current_thread() is threading.main_thread():  # not the one that renews
            looks.append(self.path)
        return read_json(self)

    monkeypatch.setattr(StoreLocation, "read_json", look)
    elsewhere = {**to_data(lease.this_process()), "host": "another-machine"}
    at(place).write_json({"owner": "gone", "count": 7, **elsewhere})
    with leased(place, lease.this_process()):
        assert len(looks) > 2, "another machine is given time to show itself"
    looks.clear()
    at(place).write_json(
        {"owner": "gone", "count": 7, **to_data(lease.this_process()), "pid": 2**22 - 3}
    )
    with leased(place, lease.this_process()):
        assert len(looks) == 2, "before and after; a dead process of this machine is not waited for"


def test_one_of_two_simultaneous_commands_gets_the_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "EXPIRES", 1.0)
    monkeypatch.setattr(lease, "SETTLE", 1.0)
    place = "s3://bucket/contested/run.lock"
    at(place).write_json(
        {"owner": "gone", "count": 7, **to_data(lease.this_process()), "host": "elsewhere"}
    )
    got: list[str] = []
    together = threading.Barrier(2)

    def take() -> None:
        together.wait()
        try:
            with leased(place, lease.this_process()):
                got.append("lease")
                time.sleep(3)
        except UserError:
            got.append("refusal")

    threads = [threading.Thread(target=take) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == ["lease", "refusal"]


def test_a_store_run_needs_an_mlflow_server_and_is_locked(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    changes = {"run_dir": "s3://bucket/lockable", "run_scratch": str(tmp_path / "scratch")}
    path = write_config(tmp_path / "a", tmp_path / "text.txt", **changes)
    with mistake("tracking-server", "tracking.uri"):
        open_run_folder(load_config(str(path)))
    config = load_config(str(path), ["tracking.uri=http://127.0.0.1:1"])
    folder = open_run_folder(config)
    with locked(folder):
        held = at(f"{folder.root}/run.lock").read_json() or {}
        assert held["pid"] == os.getpid()
    assert at(f"{folder.root}/run.lock").read_json() == {"owner": ""}


def test_ray_train_may_create_existing_folders(s3: Path) -> None:
    """A store that keeps folders on a disk refuses the empty object for a folder."""
    at("s3://bucket/there/one.json").write_json({})
    storage = _storage(RunFolder("s3://bucket/there", Path("scratch")))
    system, inner = storage["storage_filesystem"], storage["storage_path"]
    system.create_dir(f"{inner}/run-1")
    with system.open_output_stream(f"{inner}/run-1/mark") as out:
        out.write(b"whole")
    again = pickle.loads(pickle.dumps(system))  # noqa: S301 - as Ray sends it to its processes
    assert again == system
    with again.open_input_stream(f"{inner}/run-1/mark") as file:
        assert file.read() == b"whole"
    assert again.get_file_info(f"{inner}/run-1/other").type == FileType.NotFound
    assert SECRET.encode() not in pickle.dumps(system)


def test_reason_of_a_failure_has_no_location() -> None:
    error = RuntimeError("The actor died:\nTraceback …\n  File x\nOSError: no such bucket\n")
    assert _reason(error) == "OSError: no such bucket"
    assert _reason(RuntimeError("one\ntwo")) == "one"


def test_files_beside_a_cleared_note_stay_listed(s3: Path) -> None:
    """Arrow's way of deleting makes some stores forget the rest of the folder."""
    attempt, stop = "s3://bucket/notes/train/attempt.json", "s3://bucket/notes/train/stop"
    assert begin_attempt(attempt) == 1
    ask_to_stop(stop)
    withdraw_stop(stop)
    withdraw_stop(stop)
    withdraw_stop("s3://bucket/notes/train/never")
    assert at(attempt).read_json() == {"attempt": 1}
    note = StopNote(stop)
    time.sleep(0.5)
    assert not note.found()
    note.close()
    ask_to_stop(stop)
    note = StopNote(stop)
    end = time.monotonic() + 20
    while not note.found() and time.monotonic() < end:
        time.sleep(0.05)
    assert note.found()
    note.close()
    assert begin_attempt(attempt, above=6) == 7
