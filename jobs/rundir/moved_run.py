"""Corrects the MLflow database of a run's folder that was moved or copied.

MLflow writes absolute locations of artifacts into its database. In a folder that was moved, they
would send readers, and worse, writers, to the old place. So before a run's own SQLite file is used,
the old prefix is replaced by the new one, in one transaction and under the run's lock. All other
files of a run refer to each other relative to its folder. Servers are never touched.

A SQLite file that the user has named (`tracking.uri`) may have other users. It is corrected only if
the database and the artifacts no longer exist at the old place and artifacts are beside it,
and then only for elmwright's own experiments, runs, models and versions.
"""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
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
"""Columns of MLflow's tables with file:// URLs, and the condition for elmwright's rows. Versions
come first, because they are recognised by the location of their logged models."""
OURS = (
    ("tags", "value", "key = 'elmwright.run_dir'"),
    ("logged_model_params", "param_value", "param_key = 'uri'"),
)
"""Columns with plain paths of a run that we have written, and the condition for these rows."""


def correct_locked_database(database: Path) -> None:
    """Correct a database that was moved; the caller holds its run's lock."""
    if not _came_from(database):
        return
    with waiting_lock(lock_of(database)):
        for old in _came_from(database):  # looked up again: another command may have been quicker
            _replace(database, old)


def correct_database(database: Path) -> None:
    """Correct a database that was moved, for a command that does not hold the run's lock."""
    if not _came_from(database):
        return
    if not _is_own(database):
        correct_locked_database(database)
        return
    try:
        with refusing_lock(database.parent.parent / "run.lock"):
            correct_locked_database(database)
    except UserError:
        if _came_from(database):  # else whoever has the lock has done it
            raise


def correct_shared_database(database: Path) -> None:
    """Correct a database that the user has named; a run's own is corrected under the run's lock."""
    if not _is_own(database):
        correct_locked_database(database)


def lock_of(database: Path) -> Path:
    """The lock of whoever publishes to this SQLite file, creates its tables or moves it."""
    return database.with_name(f".{database.name}.lock")


def _is_own(database: Path) -> bool:
    """Whether this is the database that a run keeps in its own folder."""
    run = database.parent.parent
    named = (database.parent.name, database.name) == ("mlflow", "mlflow.db")
    return named and (run / "config.json").is_file()


def _came_from(database: Path) -> list[Path]:
    """Other folders that the experiments of the database still refer to."""
    if not database.is_file():
        return []
    here = database.parent.resolve()
    is_own = _is_own(database)
    with closing(_open(database, "ro")) as connection:
        if not _has(connection, "experiments", "artifact_location"):
            return []
        if not is_own and not _has(connection, "logged_models", "model_type"):
            return []  # of an older MLflow, which reports that itself
        which = "1" if is_own else LOCATIONS[-1][-1]
        query = f"SELECT artifact_location FROM experiments WHERE {which}"  # noqa: S608 - constants
        folders = set()
        for (location,) in connection.execute(query).fetchall():
            parsed = urlparse(location or "")
            place = Path(unquote(parsed.path))
            if parsed.scheme != "file" or place.name != ARTIFACTS:
                continue
            old = place.parent
            if old.resolve() == here:
                continue
            is_gone = not (old / database.name).exists() and not place.exists()
            if is_own or (is_gone and (here / ARTIFACTS).is_dir()):
                folders.add(old)
    return sorted(folders)


def _replace(database: Path, old: Path) -> None:
    """Put the database's own folder in place of `old` wherever a location begins with it."""
    new = database.parent.resolve()
    urls = _prefix(old.as_uri(), new.as_uri())
    with closing(_open(database, "rw")) as connection:
        connection.execute("BEGIN IMMEDIATE")
        try:
            is_own = _is_own(database)
            for table, column, which in LOCATIONS:
                _rewrite(connection, table, column, "1" if is_own else which, urls)
            if is_own:
                run = _prefix(str(old.parent), str(new.parent))
                for table, column, which in OURS:
                    _rewrite(connection, table, column, which, run)
                _rewrite(connection, "datasets", "dataset_source", "1", _inside_json(run))
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise


def _prefix(old: str, new: str) -> Callable[[str], str]:
    """A function that replaces the folder at the beginning of a path or URL."""

    def change(text: str) -> str:
        is_inside = text == old or text.startswith(f"{old}/")
        return new + text[len(old) :] if is_inside else text

    return change


def _inside_json(change: Callable[[str], str]) -> Callable[[str], str]:
    """A function that changes the `uri` in the JSON of a dataset's source."""

    def change_source(text: str) -> str:
        try:
            source = json.loads(text)
            uri = source["uri"]
            moved = change(uri)
        except (ValueError, TypeError, KeyError, AttributeError):
            return text  # of another kind
        return text if moved == uri else json.dumps({**source, "uri": moved})

    return change_source


def _rewrite(
    connection: sqlite3.Connection,
    table: str,
    column: str,
    which: str,
    change: Callable[[str], str],
) -> None:
    if not _has(connection, table, column):  # MLflow's tables change from version to version
        return
    connection.create_function("moved", 1, change)
    connection.execute(
        f"UPDATE {table} SET {column} = moved({column}) "  # noqa: S608 - constants
        f"WHERE typeof({column}) = 'text' AND ({which})"
    )


def _has(connection: sqlite3.Connection, table: str, column: str) -> bool:
    columns = connection.execute("SELECT name FROM pragma_table_info(?)", (table,)).fetchall()
    return (column,) in columns


def _open(database: Path, mode: str) -> sqlite3.Connection:
    uri = f"{database.resolve().as_uri()}?mode={mode}"
    return sqlite3.connect(uri, uri=True, timeout=60, isolation_level=None)
