"""The MLflow of a run: its SQLite file or its server, opened, recognised and tidied.

What every part that speaks to MLflow needs (tracking.py, logged_models.py, mlflow_registry.py,
ui.py), and nothing that knows what is sent there.
"""

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from elmwright.jobs.check_mlflow import check_driver
from elmwright.jobs.hiding import hide
from elmwright.jobs.layout import RunFolder
from elmwright.jobs.mlflow_database import create_database
from elmwright.jobs.provenance import relative_uri
from elmwright.pipeline.errors import UserError

OWN_STORE = "sqlite:///mlflow/mlflow.db"
"""How a run's files name the SQLite file in its folder: relative to that folder."""


def is_store(saved: str, uri: str, folder: RunFolder) -> bool:
    """Whether a file of the run means this MLflow; before 0.2 it had the absolute path of the
    run's own, which is another if the folder was moved."""
    if saved in (uri, hide(uri), relative_uri(uri, folder.root)):  # passwords are not written
        return True
    own = relative_uri(uri, folder.root) == OWN_STORE
    return own and saved.startswith("sqlite:////") and saved.endswith("/mlflow/mlflow.db")


def has_run(database: Path, run_id: str) -> bool:
    """Whether a SQLite file of MLflow's knows a run; asked without MLflow, in a millisecond."""
    if not database.is_file():
        return False
    with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True, timeout=60)) as opened:
        try:
            query = "SELECT 1 FROM runs WHERE run_uuid = ?"
            return opened.execute(query, (run_id,)).fetchone() is not None
        except sqlite3.OperationalError:  # no tables yet
            return False


def artifact_folder(uri: str) -> str | None:
    """Beside a SQLite file; MLflow would put artifacts into whatever folder a command is run in.
    A server has a place of its own."""
    database = sqlite_file(uri)
    return (database.parent / "artifacts").as_uri() if database else None


def sqlite_file(uri: str) -> Path | None:
    """The database, if MLflow is a SQLite file here."""
    if not uri.startswith("sqlite:///"):
        return None
    return Path(uri.removeprefix("sqlite:///").partition("?")[0]).absolute()


def connect(uri: str) -> Any:
    """An MLflow client; a SQLite file's folder is created, and one that was moved is put right."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
    if database := sqlite_file(uri):
        from elmwright.jobs.moving import shared_at_home

        database.parent.mkdir(parents=True, exist_ok=True)
        shared_at_home(database)
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    check_driver(uri)
    if database:
        create_database(database)
    try:
        return MlflowClient(tracking_uri=uri, registry_uri=uri)
    except MlflowException as error:
        raise UserError(
            hide(f"tracking.uri {uri!r} is not one MLflow knows: {error.message}")
        ) from error


def remove_logged_model(client: Any, uri: str, model: Any) -> None:
    """Remove a logged model and its files; MLflow alone would leave the files for ever.

    In this order nobody can make a version of a model whose files are going; should this be
    killed in between, `mlflow gc` knows the files.
    """
    from mlflow.exceptions import MlflowException
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    try:
        client.delete_logged_model(model.model_id)
    except MlflowException as error:  # another command may be removing it, too
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
    place = get_artifact_repository(model.artifact_location, tracking_uri=uri)
    place.delete_artifacts()
