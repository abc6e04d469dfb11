"""Checks that a run's folders can be written and that its MLflow answers."""

import os
from pathlib import Path

from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.stages.problems import Problems
from elmwright.jobs.tracking.check_server import check_server
from elmwright.jobs.tracking.store import sqlite_file
from elmwright.jobs.tracking.tracker import tracking_uri
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.storage.files import at, join


def check_places(problems: Problems, config: RunConfig, folder: RunFolder) -> None:
    """Folders that cannot be made or written."""
    places = {"run.scratch": str(folder.scratch)}
    if not folder.remote:
        places["run.dir"] = folder.root
    elif not config.tracking.uri:
        problems.note(
            f"run.dir {folder.root} is in an object store, where MLflow cannot keep a database; "
            "set tracking.uri to an MLflow server"
        )
    else:
        problems.of(at(join(folder.root, ".writable")).exists)
    if folder.corpus_dir and not at(folder.corpus_dir).is_url:
        places["corpus.dir"] = folder.corpus_dir
    said = set()
    for name, place in sorted(places.items()):
        reason, where = _unwritable(Path(place))
        if reason and where not in said:
            said.add(where)
            problems.note(
                f"{name} {place} cannot be written ({where} {reason}); make it writable or choose "
                f"another {name}"
            )


def _unwritable(place: Path) -> tuple[str, Path]:
    """Why a folder could not be made or written, and which one above it is the reason."""
    here = place
    while not here.exists() and here != here.parent:
        here = here.parent
    if not here.is_dir():
        return "is not a folder", here
    return ("" if os.access(here, os.W_OK | os.X_OK) else "is read-only for us"), here


def check_tracking(config: RunConfig, folder: RunFolder) -> None:
    """MLflow can be spoken to, or is only silent for the moment."""
    uri = tracking_uri(config, folder)
    check_server(uri)
    database = sqlite_file(uri)
    if database is None or not config.tracking.uri:
        return
    reason, where = _unwritable(database.parent)
    if reason:
        raise UserError(
            "tracking-server",
            f"tracking.uri names {database}, which cannot be written ({where} {reason}); make it "
            "writable or choose another",
        )
