"""Checks that a run's folders can be written and that its MLflow answers."""

import os
from pathlib import Path

from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.rundir.layout import RunFolder, check_has_server
from elmwright.jobs.stages.problems import Problems
from elmwright.jobs.tracking.check_server import check_server
from elmwright.jobs.tracking.store import sqlite_file
from elmwright.jobs.tracking.tracker import tracking_uri
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.storage.files import at, join


def check_places(problems: Problems, config: RunConfig, folder: RunFolder) -> None:
    """Note folders that cannot be created or written."""
    problems.catch(check_has_server, config, folder)
    places = {"run.scratch": str(folder.scratch)}
    if not folder.is_in_store:
        places["run.dir"] = folder.root
    elif config.tracking.uri:
        problems.catch(at(join(folder.root, ".writable")).exists)
    if folder.corpus_dir and not at(folder.corpus_dir).is_url:
        places["corpus.dir"] = folder.corpus_dir
    reported = set()
    for name, place in sorted(places.items()):
        reason, where = _unwritable(Path(place))
        if reason and where not in reported:
            reported.add(where)
            problems.note(
                f"{name} {place} cannot be written ({where} {reason}); make it writable or choose "
                f"another {name}"
            )


def _unwritable(place: Path) -> tuple[str, Path]:
    """Why a folder cannot be created or written, and the existing folder that prevents it."""
    here = place
    while not here.exists() and here != here.parent:
        here = here.parent
    if not here.is_dir():
        return "is not a folder", here
    return ("" if os.access(here, os.W_OK | os.X_OK) else "is read-only for us"), here


def check_tracking(config: RunConfig, folder: RunFolder) -> None:
    """Refuse an MLflow address that cannot work; one that does not answer now is accepted."""
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
