"""The registry to use when the user names none: that of the runs in `runs/` of the current folder.

A run writes to the MLflow of its `tracking.uri`, by default to its own SQLite file. So in a project
whose runs are in `runs/`, `elmwright versions demo` can find the registry that has the model.
SQLite files are read directly. Servers are not asked: what a run published to one is read from its
`published.json`. So nothing here imports MLflow or uses the network.
"""

import os
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

from elmwright.jobs.runbook.find_run import RUNS, is_run, runs_in
from elmwright.jobs.rundir.layout import RunFolder, from_project
from elmwright.jobs.secrets.hiding import without_secret
from elmwright.jobs.terminal.wording import did_you_mean, nearby
from elmwright.jobs.tracking.store import elsewhere, with_login
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.storage.files import at, join

HOW_TO_NAME = (
    "give --to http://… (MLflow), a folder or s3://…, or set MLFLOW_TRACKING_URI, for example to "
    "sqlite:///runs/demo/mlflow/mlflow.db"
)


def registry_of(name: str, to: str | None = "", run: str = "", *, quiet: bool = False) -> str:
    """The registry to use for the model `name`.

    That is the first of these: `to` (the option `--to`), MLFLOW_TRACKING_URI, the registry of the
    `run` that the model comes from, the only registry of runs here that has the model. The last two
    are reported in a note, unless `quiet`.
    """
    uri = with_login(to) if to else os.environ.get("MLFLOW_TRACKING_URI", "")
    if uri:
        return uri
    models = {registry_of_run(run): {name}} if run else models_here()
    candidates = [uri for uri, names in models.items() if name in names]
    if len(candidates) == 1:
        if not quiet:
            print(f"note: using the registry {short_uri(candidates[0])}", file=sys.stderr)
        return candidates[0]
    if candidates:
        raise UserError(
            "argument",
            f"{len(candidates)} registries here have a model {name!r} "
            f"({', '.join(short_uri(uri) for uri in candidates)}); name one with --to",
        )
    names = sorted(set().union(*models.values()))
    if names:
        raise UserError(
            "version-missing",
            f"no registry of the runs in {RUNS}/ here has a model {name!r} (they have: "
            f"{', '.join(names)}); for another registry, give --to or set MLFLOW_TRACKING_URI"
            f"{did_you_mean(name, names)}",
        )
    raise UserError(
        "run-missing",
        f"which registry? no run in {RUNS}/ here has published a model; {HOW_TO_NAME}",
    )


def models_here() -> dict[str, set[str]]:
    """The registries of the runs here, and the names of the models in each."""
    models: dict[str, set[str]] = {}
    for run in runs_in(RUNS):
        uri = registry_of_run(str(run))
        names = models.setdefault(uri, set())
        published = at(run / "published.json").read_json() or {}
        if published.get("name"):
            names.add(str(published["name"]))
        names |= models_in(uri) or set()
    return models


def registry_of_run(run: str) -> str:
    """The registry that a run writes to: its tracking.uri, else the server or database that
    MLFLOW_TRACKING_URI named for it, else its own SQLite file.

    A relative path to a SQLite file starts at the folder of the project, not at the current one.
    """
    root = at(run).resolved()
    settings = at(join(root, "config.json")).read_json() or {}
    folder = RunFolder.at(root)
    uri = str(settings.get("tracking", {}).get("uri") or "") or elsewhere(folder)
    if not uri:
        return f"sqlite:///{folder.mlflow / 'mlflow.db'}"
    if uri.startswith("sqlite:///"):
        home = str(settings.get("run", {}).get("dir") or "")
        return f"sqlite:///{from_project(root, home, uri.removeprefix('sqlite:///'))}"
    return with_login(uri)


def run_of_bundle(bundle: Path) -> str:
    """The folder of the run that a bundle is in; empty if it is in none."""
    run = bundle.resolve().parent
    return str(run) if is_run(run) else ""


def models_in(uri: str) -> set[str] | None:
    """The models registered in a SQLite file; None if `uri` is no such file or it is unreadable."""
    database = Path(uri.removeprefix("sqlite:///").partition("?")[0])
    if not uri.startswith("sqlite:///") or not database.is_file():
        return None
    try:
        with closing(sqlite3.connect(f"{database.resolve().as_uri()}?mode=ro", uri=True)) as base:
            return {str(name) for (name,) in base.execute("SELECT name FROM registered_models")}
    except sqlite3.Error:  # being created or written, or not a database of MLflow
        return None


def short_uri(uri: str) -> str:
    """A registry as messages show it: its file as seen from here, its address without a secret."""
    if uri.startswith("sqlite:///"):
        return f"sqlite:///{nearby(uri.removeprefix('sqlite:///'))}"
    return without_secret(uri)
