"""An MLflow database that was moved or copied: its paths are corrected once, by its own run."""

import json
import shutil
import sqlite3
import subprocess
import time
from contextlib import closing
from pathlib import Path

import pytest
from mlflow import MlflowClient

from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.rundir.moved_run import correct_database
from elmwright.jobs.rundir.run_lock import locked
from elmwright.jobs.tracking.store import connect
from elmwright.jobs.tracking.tracker import Tracker
from elmwright.pipeline.storage.files import at
from tests.support.tiny import manifest
from tests.support.tiny_runs.shown_run import write_journal, write_run

pytestmark = pytest.mark.slow(4)


def moved_store(tmp_path: Path, empty_database: Path) -> tuple[RunConfig, Path]:
    """A run whose folder was moved after MLflow had heard of it: its config, its new place."""
    (tmp_path / "old").mkdir()
    config, folder = write_run(tmp_path / "old", steps=40)
    folder.mlflow.mkdir()
    shutil.copyfile(empty_database, folder.mlflow / "mlflow.db")
    tracker = Tracker(config, folder, manifest())
    tracker.start()
    assert tracker.finish("FINISHED") is None
    (tmp_path / "old" / "run").rename(tmp_path / "new")
    return config, tmp_path / "new"


def test_moved_database_is_corrected_once_under_the_lock(
    tmp_path: Path, empty_database: Path
) -> None:
    _, place = moved_store(tmp_path, empty_database)
    database = place / "mlflow" / "mlflow.db"
    with locked(RunFolder.at(place)):
        after = database.read_bytes()
        with closing(sqlite3.connect(database)) as opened_:
            rows = [row for row in opened_.iterdump() if str(tmp_path / "old") in row]
        rows = [row for row in rows if "'Default'" not in row]
        assert rows, "settings stay as they were"
        assert all('INTO "params"' in row for row in rows), rows
        correct_database(database)  # the lock is taken, and there is nothing to do
        assert database.read_bytes() == after


def test_copied_run_never_writes_to_its_original(tmp_path: Path, empty_database: Path) -> None:
    config, place = moved_store(tmp_path, empty_database)
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-r", place, copy], check=True)
    folder = RunFolder(str(copy), copy / "scratch")
    with locked(RunFolder.at(place)), locked(folder):  # neither has the lock of the other
        write_journal(folder, range(42, 61, 2))
        tracker = Tracker(config, folder, manifest())
        tracker.start()
        assert tracker.finish("FINISHED") is None
    assert not (tmp_path / "old").joinpath("run").exists()
    counts = []
    for one in (place, copy):
        with closing(sqlite3.connect(one / "mlflow" / "mlflow.db")) as opened_:
            query = "SELECT count(*) FROM metrics WHERE key = 'train/loss'"
            counts.append(opened_.execute(query).fetchone()[0])
    assert counts == [20, 30]
    assert list((copy / "mlflow" / "artifacts" / "models").glob("*"))


def test_tracking_state_of_another_database_begins_a_new_mlflow_run(
    tmp_path: Path, empty_database: Path
) -> None:
    config, place = moved_store(tmp_path, empty_database)
    folder = RunFolder(str(place), place / "scratch")
    shutil.copyfile(empty_database, folder.mlflow / "mlflow.db")
    state = json.loads(Path(folder.tracking).read_text())
    at(folder.tracking).write_json({**state, "uri": "sqlite:////elsewhere/run/mlflow/mlflow.db"})
    tracker = Tracker(config, folder, manifest())
    assert tracker.run_id == ""
    tracker.start()
    assert tracker.finish("FINISHED") is None
    assert tracker.run_id not in ("", state["run_id"])


def test_check_for_a_move_is_quick(tmp_path: Path, empty_database: Path) -> None:
    _, place = moved_store(tmp_path, empty_database)
    database = place / "mlflow" / "mlflow.db"
    correct_database(database)
    start = time.perf_counter()
    correct_database(database)
    assert time.perf_counter() - start < 0.5  # 1.4 ms


@pytest.mark.parametrize("how", ["move", "copy"])
def test_moved_run_keeps_its_curve_and_copy_gets_its_own(
    tmp_path: Path, empty_database: Path, how: str
) -> None:
    (tmp_path / "lab").mkdir()
    database = tmp_path / "lab" / "all.db"
    shutil.copyfile(empty_database, database)
    config, folder = write_run(tmp_path, steps=40, tracking_uri=f"sqlite:///{database}")
    tracker = Tracker(config, folder, manifest())
    tracker.start()
    assert tracker.finish("FINISHED") is None
    target = tmp_path / "elsewhere"
    if how == "move":
        Path(folder.root).rename(target)
    else:
        subprocess.run(["cp", "-r", folder.root, target], check=True)
    other = RunFolder(str(target), target / "scratch")
    write_journal(other, range(42, 61, 2))
    tracker = Tracker(config, other, manifest())
    tracker.start()
    assert tracker.finish("FINISHED") is None
    client = MlflowClient(f"sqlite:///{database}")
    runs = client.search_runs([client.get_experiment_by_name("elmwright").experiment_id])
    found = {
        run.data.tags["elmwright.run_dir"]: len(
            client.get_metric_history(run.info.run_id, "train/loss")
        )
        for run in runs
    }
    moved = {other.root: 30}
    assert found == (moved if how == "move" else {folder.root: 20, **moved})


@pytest.mark.parametrize("how", ["publish", "train"])
def test_named_database_is_corrected_only_if_its_old_place_is_gone(
    tmp_path: Path, empty_database: Path, how: str
) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    there.mkdir()
    shutil.copyfile(empty_database, there / "all.db")
    config, folder = write_run(tmp_path, steps=40, tracking_uri=f"sqlite:///{there}/all.db")
    tracker = Tracker(config, folder, manifest())
    tracker.start()
    assert tracker.finish("FINISHED") is None
    client = MlflowClient(f"sqlite:///{there}/all.db")
    theirs = client.create_experiment("theirs", f"{there.as_uri()}/artifacts")
    their_run = client.create_run(theirs).info.run_id
    our_run = tracker.run_id
    subprocess.run(["cp", "-r", there, here], check=True)

    def locations() -> dict[str, str]:
        with closing(sqlite3.connect(here / "all.db")) as database:
            rows = database.execute("SELECT name, artifact_location FROM experiments").fetchall()
            rows += database.execute("SELECT run_uuid, artifact_uri FROM runs").fetchall()
            return dict(rows)

    before = locations()
    correct_database(here / "all.db")
    assert locations() == before, "it is unknown which of the two is meant"
    (there / "all.db").unlink()
    correct_database(here / "all.db")
    assert locations() == before, "the artifacts are still where the database says"
    shutil.rmtree(there)
    if how == "publish":
        correct_database(here / "all.db")
    else:
        connect(f"sqlite:///{here}/all.db")
    after = locations()
    assert after["elmwright"] == f"{here.as_uri()}/artifacts"
    assert after[our_run].startswith(f"{here.as_uri()}/artifacts/")
    assert after["theirs"] == before["theirs"] == f"{there.as_uri()}/artifacts"
    assert after[their_run] == before[their_run]
