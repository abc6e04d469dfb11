"""A run's folder that was moved or copied: its MLflow database learns where it is now.

MLflow writes absolute locations of artifacts into its database. Opened at another place, a run's
own SQLite file would send readers, and worse, writers, to where the folder came from. So before it
is used its old prefix is replaced by the new one, in one transaction and under the run's lock. All
other files of a run name each other relative to its folder. Servers are never touched.

A SQLite file that the user has named (`tracking.uri`) is put right too, as far as its artifacts are
stored beside it and there is no longer a database at the place that it came from.
"""

import fcntl
import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from elmwright.jobs.layout import flock
from elmwright.pipeline.errors import UserError

ARTIFACTS = "artifacts"
"""Folder of the artifacts, beside the database."""
LOCATIONS = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
)
"""Columns of MLflow's tables that hold file:// URLs."""
OURS = (
    ("tags", "value", "key = 'elmwright.run_dir'"),
    ("logged_model_params", "param_value", "param_key = 'uri'"),
)
"""Where we have written plain paths of a run, by column and condition."""


def settle(database: Path) -> None:
    """Replace the prefix of locations where a database was moved; its run's lock is ours."""
    if not _came_from(database):
        return
    with database_lock(database):
        for old in _came_from(database):  # looked up again: another command may have been quicker
            _replace(database, old)


def at_home(database: Path) -> None:
    """The same for a command that does not hold the run's lock."""
    if not _came_from(database):
        return
    if not _is_own(database):
        settle(database)
        return
    try:
        with flock(database.parent.parent / "run.lock"):
            settle(database)
    except UserError:
        if _came_from(database):  # else whoever has the lock has done it
            raise


@contextmanager
def database_lock(database: Path) -> Iterator[None]:
    """Wait until no other publish uses this SQLite file, creates its tables or moves it."""
    database.parent.mkdir(parents=True, exist_ok=True)
    lock = database.with_name(f".{database.name}.lock")
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _is_own(database: Path) -> bool:
    """Whether this is the database that a run keeps in its own folder."""
    run = database.parent.parent
    named = (database.parent.name, database.name) == ("mlflow", "mlflow.db")
    return named and (run / "config.json").is_file()


def _came_from(database: Path) -> list[Path]:
    """Folders of the database that its experiments still name, and that are not its own."""
    if not database.is_file():
        return []
    mine, own = database.parent.resolve(), _is_own(database)
    with closing(_open(database, "ro")) as connection:
        if not _has(connection, "experiments", "artifact_location"):
            return []
        rows = connection.execute("SELECT name, artifact_location FROM experiments").fetchall()
        found = set()
        for name, location in rows:
            parsed = urlparse(location or "")
            place = Path(unquote(parsed.path))
            if parsed.scheme != "file" or place.name != ARTIFACTS:
                continue
            old = place.parent
            if old.resolve() == mine:
                continue
            moved = not (old / database.name).exists() and (mine / ARTIFACTS).is_dir()
            if own or (moved and _has_our_runs(connection, name)):
                found.add(old)
    return sorted(found)


def _has_our_runs(connection: sqlite3.Connection, experiment: str) -> bool:
    """Whether the runs of an experiment are elmwright's: others' locations are theirs."""
    query = (
        "SELECT 1 FROM runs JOIN tags ON tags.run_uuid = runs.run_uuid JOIN experiments ON "
        "experiments.experiment_id = runs.experiment_id "
        "WHERE experiments.name = ? AND tags.key = 'elmwright.key'"
    )
    return connection.execute(query, (experiment,)).fetchone() is not None


def _replace(database: Path, old: Path) -> None:
    """Put the database's own folder in place of `old` wherever a location begins with it."""
    new = database.parent.resolve()
    urls = _prefix(old.as_uri(), new.as_uri())
    with closing(_open(database, "rw")) as connection:
        connection.execute("BEGIN IMMEDIATE")
        try:
            for table, column in LOCATIONS:
                _rewrite(connection, table, column, "1", urls)
            if _is_own(database):
                run = _prefix(str(old.parent), str(new.parent))
                for table, column, which in OURS:
                    _rewrite(connection, table, column, which, run)
                _rewrite(connection, "datasets", "dataset_source", "1", _inside_json(run))
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise


def _prefix(old: str, new: str) -> Callable[[str], str]:
    def change(text: str) -> str:
        same = text == old or text.startswith(f"{old}/")
        return new + text[len(old) :] if same else text

    return change


def _inside_json(change: Callable[[str], str]) -> Callable[[str], str]:
    """The same for the `uri` of a data set's source."""

    def changed(text: str) -> str:
        try:
            source: Any = json.loads(text)
        except ValueError:
            return text
        if not (isinstance(source, dict) and isinstance(source.get("uri"), str)):
            return text
        uri = change(source["uri"])
        return text if uri == source["uri"] else json.dumps({**source, "uri": uri})

    return changed


def _rewrite(
    connection: sqlite3.Connection,
    table: str,
    column: str,
    which: str,
    change: Callable[[str], str],
) -> None:
    if not _has(connection, table, column):  # MLflow's tables change from version to version
        return
    # Names are constants of this module; values are bound.
    rows = connection.execute(f"SELECT rowid, {column} FROM {table} WHERE {which}").fetchall()  # noqa: S608
    changes = [(change(value), row) for row, value in rows if isinstance(value, str)]
    before = dict(rows)
    connection.executemany(
        f"UPDATE {table} SET {column} = ? WHERE rowid = ?",  # noqa: S608
        [(value, row) for value, row in changes if value != before[row]],
    )


def _has(connection: sqlite3.Connection, table: str, column: str) -> bool:
    found = connection.execute("SELECT name FROM pragma_table_info(?)", (table,)).fetchall()
    return (column,) in found


def _open(database: Path, mode: str) -> sqlite3.Connection:
    uri = f"{database.resolve().as_uri()}?mode={mode}"
    return sqlite3.connect(uri, uri=True, timeout=60, isolation_level=None)
