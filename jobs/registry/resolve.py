"""From what a user calls a model to a verified folder of it.

A MODEL is
  - a RUN (find_run.py): its bundle if that is whole, else its newest valid checkpoint;
  - a bundle folder, a checkpoint folder, or a folder with `options.json` and one `*.hdf5` in bilm
    format; bundles and checkpoints may be in an object store (s3://…), too;
  - a version in an MLflow registry: `models:/name@alias` or `models:/name/3`;
  - a version on a shelf (see plain_folder.py): `folder/name@alias`, `s3://bucket/models/name/3`.

Files that carry digests are compared with them before anything is loaded, and what comes from a
registry or a shelf must be the very model that was published there. What has to be fetched is kept
in ELMWRIGHT_CACHE (by default ~/.cache/elmwright), under the digest of its list of files.
"""

import os
import re
import sys
from pathlib import Path

from elmwright.jobs.bundles.bundle import SUMS, is_whole
from elmwright.jobs.bundles.model_folder import local_folder, verify_folder
from elmwright.jobs.bundles.signing import verify_signature
from elmwright.jobs.checkpoints.checkpoint import MANIFEST, newest_valid
from elmwright.jobs.config.toml_file import RECIPES
from elmwright.jobs.registry.contract import fetch_reference
from elmwright.jobs.registry.find_registry import registry_of
from elmwright.jobs.registry.open_registry import open_registry
from elmwright.jobs.registry.plain_folder import fetch_from_folder
from elmwright.jobs.runbook import runbook
from elmwright.jobs.runbook.find_run import RUNS, find_here, find_run, is_run, run_names
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.terminal.wording import did_you_mean, nearby
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.storage.files import at, join

REQUIRE = "ELMWRIGHT_REQUIRE_SIGNATURE"
"""A public key: if this variable names one, only bundles signed with it are loaded."""


def resolve(model: str, tracking_uri: str = "", require_signature: str | Path = "") -> Path:
    """The local folder of a model, with its digests (and, if asked, its signature) checked."""
    folder = _find(model, tracking_uri)
    key = require_signature or os.environ.get(REQUIRE, "")
    if key:
        if not (folder / SUMS).is_file():
            raise UserError("signature", f"{model} is not a bundle, and only bundles are signed")
        verify_signature(folder, Path(key))
    return folder


def _find(model: str, tracking_uri: str) -> Path:
    if model.startswith("models:/"):
        reference = model.removeprefix("models:/")
        registry = open_registry(registry_of(re.split("[@/]", reference)[0], tracking_uri))
        return fetch_reference(registry, reference, model)
    if is_run(model):
        return model_of_run(RunFolder.at(model))
    if Path(model).is_dir() and not means_run(model):
        folder = Path(model)
        if (folder / "MLmodel").is_file() and (folder / "data").is_dir():
            folder = folder / "data"  # as MLflow keeps it
        verify_folder(folder)
        return folder
    fetched = fetch_from_folder(model)
    if fetched is not None:
        return fetched
    if at(model).is_url:
        run = RunFolder.at(model) if is_run_url(model) else None
        return model_of_run(run) if run else local_folder(model)
    return model_of_run(find_run_of(model))


def holds_model(folder: Path) -> bool:
    """Whether a folder holds a model, or what is left of one."""
    there = {path.name for path in folder.iterdir()}
    ours = {"config.json", "model.safetensors"} <= there
    damaged = there & {"SHA256SUMS", "MANIFEST.json", "provenance.json", "state.json"}
    bilm = all(any(name.endswith(end) for name in there) for end in ("options.json", ".hdf5"))
    return bool(ours or bilm or damaged or {"MLmodel", "data"} <= there)


def means_run(name: str) -> bool:
    """Whether a bare name means the run in runs/, although a folder here has the same name: one
    that has no model and is not a run."""
    if not runbook.is_name(name) or not Path(name).is_dir() or is_run(name):
        return False
    return is_run(Path(RUNS, name)) and not holds_model(Path(name))


def find_run_of(model: str) -> RunFolder:
    """The run that is meant by a MODEL which is neither a folder nor a registered name."""
    config = Path(model).is_file() and model.endswith(".toml")
    if config or (runbook.is_name(model) and not Path(model).is_file()):
        run = find_here(model) or (find_run(model) if runbook.attempts_of(model) else None)
        if run is not None:
            return run
    recipe = runbook.is_name(model) and (RECIPES / f"{model}.toml").is_file()
    raise UserError(
        "model-missing",
        f"there is no model folder {model!r} and no run of that name"
        + (
            f"; 'elmwright run {model}' makes one"
            if recipe
            else "; give a run, a bundle, a checkpoint, a folder with options.json and one .hdf5, "
            f"or models:/NAME@ALIAS{did_you_mean(model, run_names())}"
        ),
    )


def is_run_url(url: str) -> bool:
    """Whether a folder of an object store is that of a run."""
    if any(at(join(url, name)).exists() for name in (SUMS, MANIFEST)):
        return False
    return "run" in (at(join(url, "config.json")).read_json() or {})


def model_of_run(run: RunFolder) -> Path:
    """The bundle of a run if it is whole, else its newest valid checkpoint, verified."""
    bundle = join(run.root, "bundle")
    if at(join(bundle, SUMS)).exists() if run.is_in_store else is_whole(Path(bundle)):
        folder = local_folder(bundle)
        if not run.is_in_store:
            verify_folder(folder)
        return folder

    def warn(text: str) -> None:
        print(f"warning: {text}", file=sys.stderr)

    newest = newest_valid(run.checkpoints, warn)
    if newest is None:
        raise UserError(
            "model-missing",
            f"the run {nearby(run.root)} has no bundle and no checkpoint yet; train it first",
        )
    print(
        f"note: {nearby(run.root)} has no bundle yet; this is its checkpoint of step "
        f"{newest.step:,}",
        file=sys.stderr,
    )
    return local_folder(newest.path)
