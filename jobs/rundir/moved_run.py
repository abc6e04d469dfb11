"""A run's folder that was moved or copied: its MLflow database learns where it is now.

MLflow writes absolute locations of artifacts into its database. Opened at another place, a run's
own SQLite file would send readers, and worse, writers, to where the folder came from. So before it
is used its old prefix is replaced by the new one, in one transaction and under the run's lock. All
other files of a run name each other relative to its folder. Servers are never touched.

A SQLite file that the user has named (`tracking.uri`) may be others' too. It is put right only
where neither the database nor the artifacts are any longer at the place that it came from and
artifacts are beside it; and only what is elmwright's: its experiments, runs, models and versions.
"""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from elmwright.jobs.rundir.file_lock import refusing_lock, waiting_lock
from elmwright.pipeline.errors import UserError

ARTIFACTS = "artifacts"
"""Folder of the artifacts, beside the database."""
OUR_RUNS = "SELECT run_uuid FROM tags WHERE key = 'elmwright.key'"
OUR_MODELS = f"source_run_id IN ({OUR_RUNS}) OR model_type = 'elmwright-bundle'"
OUR_EXPERIMENTS = (
    f"SELECT experiment_id FROM runs WHERE run_uuid IN ({OUR_RUNS}) "  # noqa: S608 - constants
    f"UNION SELECT experiment_id FROM logged_models WHERE {OUR_MODELS}"
)
# A copy of a version under another name has the files of the same logged model.
OUR_VERSIONS = (
    "EXISTS (SELECT 1 FROM logged_models WHERE "  # noqa: S608 - constants
    "substr(model_versions.storage_location, 1, length(logged_models.artifact_location)) = "
    f"logged_models.artifact_location AND ({OUR_MODELS}))"
)
LOCATIONS = (
    ("model_versions", "source", OUR_VERSIONS),
    ("model_versions", "storage_location", OUR_VERSIONS),
    ("logged_models", "artifact_location", OUR_MODELS),
    ("runs", "artifact_uri", f"run_uuid IN ({OUR_RUNS})"),
    ("experiments", "artifact_location", f"experiment_id IN ({OUR_EXPERIMENTS})"),
)
"""Columns of MLflow's tables that hold file:// URLs, and which of their rows are elmwright's.
Versions come first: they are recognised by where their logged models are."""
OURS = (
    ("tags", "value", "key = 'elmwright.run_dir'"),
    ("logged_model_params", "param_value", "param_key = 'uri'"),
)
"""Where we have written plain paths of a run, by column and condition."""


def settle(database: Path) -> None:
    """Replace the prefix of locations where a database was moved; its run's lock is ours."""
    if not _came_from(database):
        return
    with waiting_lock(lock_of(database)):
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
        with refusing_lock(database.parent.parent / "run.lock"):
            settle(database)
    except UserError:
        if _came_from(database):  # else whoever has the lock has done it
            raise


def shared_at_home(database: Path) -> None:
    """The same for a database that the user has named; a run's own is its lock's to put right."""
    if not _is_own(database):
        settle(database)


def lock_of(database: Path) -> Path:
    """The lock of whoever publishes to this SQLite file, creates its tables or moves it."""
    return database.with_name(f".{database.name}.lock")


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
        if not own and not _has(connection, "logged_models", "model_type"):
            return []  # of an older MLflow, which will say so
        which = "1" if own else LOCATIONS[-1][-1]
        query = f"SELECT artifact_location FROM experiments WHERE {which}"  # noqa: S608 - constants
        found = set()
        for (location,) in connection.execute(query).fetchall():
            parsed = urlparse(location or "")
            place = Path(unquote(parsed.path))
            if parsed.scheme != "file" or place.name != ARTIFACTS:
                continue
            old = place.parent
            if old.resolve() == mine:
                continue
            gone = not (old / database.name).exists() and not place.exists()
            if own or (gone and (mine / ARTIFACTS).is_dir()):
                found.add(old)
    return sorted(found)


def _replace(database: Path, old: Path) -> None:
    """Put the database's own folder in place of `old` wherever a location begins with it."""
    new = database.parent.resolve()
    urls = _prefix(old.as_uri(), new.as_uri())
    with closing(_open(database, "rw")) as connection:
        connection.execute("BEGIN IMMEDIATE")
        try:
            own = _is_own(database)
            for table, column, which in LOCATIONS:
                _rewrite(connection, table, column, "1" if own else which, urls)
            if own:
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
