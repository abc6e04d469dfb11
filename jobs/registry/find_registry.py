"""Which registry is meant where none is named: that of the runs in the current folder.

A run writes to the MLflow of its `tracking.uri`, by default to a SQLite file of its own. So in a
project whose runs are in `runs/`, `elmwright versions demo` can find its registry itself: the one
that knows the model. SQLite files are asked directly, read-only; of servers only what a run's
`published.json` says is known. Neither imports MLflow nor uses the network.
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

WHICH = (
    "say --to http://… (MLflow), a folder or s3://…, or set MLFLOW_TRACKING_URI, for example to "
    "sqlite:///runs/demo/mlflow/mlflow.db"
)


def registry_of(name: str, said: str | None = "", run: str = "", *, quiet: bool = False) -> str:
    """The registry to use for the model `name`: the one that was said, MLFLOW_TRACKING_URI, that
    of the `run` which it comes from, or that of the runs here which knows it."""
    uri = with_login(said) if said else os.environ.get("MLFLOW_TRACKING_URI", "")
    if uri:
        return uri
    known = {} if run else registries_here()
    knowing = [registry_of_run(run)] if run else [u for u, names in known.items() if name in names]
    if len(knowing) == 1:
        if not quiet:
            print(f"note: using the registry {short(knowing[0])}", file=sys.stderr)
        return knowing[0]
    if knowing:
        raise UserError(
            "argument",
            f"{len(knowing)} registries here know a model {name!r} "
            f"({', '.join(short(uri) for uri in knowing)}); name one with --to",
        )
    names = sorted({name for found in known.values() for name in found})
    if names:
        raise UserError(
            "version-missing",
            f"no registry of the runs in {RUNS}/ here has a model {name!r} (they have: "
            f"{', '.join(names)}); for another registry, say --to or set MLFLOW_TRACKING_URI"
            f"{did_you_mean(name, names)}",
        )
    raise UserError(
        "run-missing", f"which registry? no run in {RUNS}/ here has published a model; {WHICH}"
    )


def registries_here(folder: str | Path = RUNS) -> dict[str, set[str]]:
    """The registry of each run in a folder that has models, and their names."""
    found: dict[str, set[str]] = {}
    for run in runs_in(folder):
        uri = registry_of_run(str(run))
        names = found.setdefault(uri, set())
        published = at(run / "published.json").read_json() or {}
        if published.get("name"):
            names.add(str(published["name"]))
        names |= models_in(uri) or set()
    return {uri: names for uri, names in found.items() if names}


def registry_of_run(run: str) -> str:
    """The registry that a run's config names, or its own; a relative file means the project's."""
    root = at(run).resolved()
    settings = at(join(root, "config.json")).read_json() or {}
    said = str(settings.get("tracking", {}).get("uri") or "") or elsewhere(RunFolder.at(root))
    if not said:
        return f"sqlite:///{join(root, 'mlflow', 'mlflow.db')}"
    scheme, three, place = said.partition(":///")
    if scheme == "sqlite" and three:
        home = str(settings.get("run", {}).get("dir") or "")
        return f"sqlite:///{from_project(root, home, place)}"
    return with_login(said)


def run_of_bundle(bundle: Path) -> str:
    """The folder of the run that a bundle is in; empty if it is in none."""
    run = bundle.resolve().parent
    return str(run) if is_run(run) else ""


def models_in(uri: str) -> set[str] | None:
    """The registered models of a SQLite file; None if that cannot be known by reading it."""
    database = Path(uri.removeprefix("sqlite:///").partition("?")[0])
    if not uri.startswith("sqlite:///") or not database.is_file():
        return None
    try:
        with closing(sqlite3.connect(f"{database.resolve().as_uri()}?mode=ro", uri=True)) as base:
            return {str(name) for (name,) in base.execute("SELECT name FROM registered_models")}
    except sqlite3.Error:  # being created, being written, or of another program
        return None


def short(uri: str) -> str:
    """A registry as a user would type it here."""
    if uri.startswith("sqlite:///"):
        return f"sqlite:///{nearby(uri.removeprefix('sqlite:///'))}"
    return without_secret(uri)
