"""The MLflow of a run: its SQLite file or its server, opened, recognised and tidied.

What every part that speaks to MLflow needs (tracker.py, logged_models.py, mlflow_registry.py,
ui.py), and nothing that knows what is sent there.
"""

import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.rundir.moved_run import correct_shared_database
from elmwright.jobs.secrets.hiding import for_others, secret_in, without_secret
from elmwright.jobs.tracking.check_server import check_driver
from elmwright.jobs.tracking.database import create_database
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.storage.files import at

_SHARED = re.compile(r"(https?|postgresql|mysql|mssql)(\+\w+)?://")
"""An MLflow that many runs report to."""
_ADDRESS = re.compile(
    r"(?P<scheme>[^:/]+)://((?P<user>[^/?\#@]*)@)?(?P<host>[^/?\#]*)(?P<path>.*)", re.DOTALL
)
_PORTS = {
    "http": ":80",
    "https": ":443",
    "postgresql": ":5432",
    "mysql": ":3306",
    "mssql": ":1433",
}
VARIABLE = "MLFLOW_TRACKING_URI"
"""MLflow's own variable: where the whole address belongs if a password is part of it."""
OWN_STORE = "sqlite:///mlflow/mlflow.db"
"""How a run's files name the SQLite file in its folder: relative to that folder."""


def with_login(uri: str) -> str:
    """The URI of an MLflow, with the login that MLFLOW_TRACKING_URI has for it, if it is the same:
    files of a run and configs name it without."""
    said = os.environ.get(VARIABLE, "")
    return said if said and uri != said and same_store(uri, said) else uri


def from_environment() -> str:
    """The server or database that MLFLOW_TRACKING_URI names for runs whose config names none.

    Not a SQLite file: it is some run's own, named there to read it, and each run has one.
    """
    said = os.environ.get(VARIABLE, "")
    return said if _SHARED.match(said) else ""


def elsewhere(folder: RunFolder) -> str:
    """The server or database that a run without tracking.uri reported to, as MLFLOW_TRACKING_URI
    said then; empty if that was its own SQLite file."""
    saved = str((at(folder.tracking).read_json() or {}).get("uri") or "")
    return saved if _SHARED.match(saved) else ""


def same_store(one: str, other: str) -> bool:
    """Whether two URIs mean the same MLflow, whatever login they have."""
    (user, place), (name, where) = _parts(one), _parts(other)
    return place == where and (user == name or not user or not name)


def _parts(uri: str) -> tuple[str, str]:
    """User and place; a web address has no user, whose name would be a part of its login."""
    match = _ADDRESS.fullmatch(without_secret(uri).rstrip("/"))
    if not match:
        return "", uri.rstrip("/")
    scheme = match["scheme"].lower()
    host = match["host"].lower().removesuffix(_PORTS.get(scheme.partition("+")[0], ""))
    user = "" if scheme.startswith("http") else match["user"] or ""
    return user, f"{scheme}://{host}{match['path']}"


def is_store(saved: str, uri: str, folder: RunFolder) -> bool:
    """Whether a file of the run means this MLflow; before 0.2 it had the absolute path of the
    run's own, which is another if the folder was moved."""
    if saved in (uri, relative_uri(uri, folder.root)) or same_store(saved, uri):
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
    """An MLflow client; creates the folder of a SQLite file, and corrects a file that was moved."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    if secret_in(uri):  # MLflow would print the address of a run that ends, password and all
        os.environ["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] = "true"
    os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
    if database := sqlite_file(uri):
        database.parent.mkdir(parents=True, exist_ok=True)
        correct_shared_database(database)
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    check_driver(uri)
    if database:
        create_database(database)
    try:
        return MlflowClient(tracking_uri=uri, registry_uri=uri)
    except MlflowException as error:
        raise UserError(
            "tracking-server",
            for_others(
                f"tracking.uri {without_secret(uri)!r} is not one MLflow knows: {error.message}"
            ),
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


@contextmanager
def default_uri(uri: str) -> Iterator[None]:
    """MLflow's own code looks up a logged model where the process's default says.

    Changing that default also changes the environment, which is the user's.
    """
    import mlflow

    before = os.environ.get(VARIABLE)
    chosen = mlflow.get_tracking_uri() if mlflow.is_tracking_uri_set() else None
    try:
        mlflow.set_tracking_uri(uri)
        yield
    finally:
        # What the environment said is not set again: MLflow would no longer look there.
        mlflow.set_tracking_uri(None if chosen == before else chosen)
        if before is not None:
            os.environ[VARIABLE] = before


def relative_uri(uri: str, run: str) -> str:
    """A URI as the files of a run name it: its own SQLite file relative to the run's folder."""
    prefix = f"sqlite:///{run.rstrip('/')}/"
    return f"sqlite:///{uri[len(prefix) :]}" if uri.startswith(prefix) else uri
