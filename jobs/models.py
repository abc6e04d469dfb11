"""From what a user calls a model to a verified folder of it.

A MODEL is
  - a RUN (find_run.py): its bundle if that is whole, else its newest valid checkpoint;
  - a bundle folder, a checkpoint folder, or a folder with `options.json` and one `*.hdf5` in bilm
    format; bundles and checkpoints may be in an object store (s3://…), too;
  - a version in an MLflow registry: `models:/name@alias` or `models:/name/3`;
  - a version on a shelf (see shelf.py): `folder/name@alias`, `s3://bucket/models/name/3`.

Files that carry digests are compared with them before anything is loaded, and what comes from a
registry or a shelf must be the very model that was published there. What has to be fetched is kept
in ELMWRIGHT_CACHE (by default ~/.cache/elmwright), under the digest of its list of files.
"""

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elmwright.jobs import runbook
from elmwright.jobs.config_file import RECIPES
from elmwright.jobs.find_run import RUNS, find_here, find_run, is_name, is_run, run_names
from elmwright.jobs.layout import RunFolder
from elmwright.jobs.wording import did_you_mean, nearby
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.files import exists, is_url, join, read_json, reading
from elmwright.pipeline.storage import sha256_bytes
from elmwright.pipeline.untrusted import read_small

if TYPE_CHECKING:
    from elmwright.jobs.pretrained import Elmo

CACHE = "ELMWRIGHT_CACHE"
REQUIRE = "ELMWRIGHT_REQUIRE_SIGNATURE"
"""A public key: if this variable names one, only bundles signed with it are loaded."""


def load(model: str | Path, **options: Any) -> "Elmo":
    """The ELMo layer over `model`, ready to embed: `load("models:/demo@candidate")`.

    The same as `elmwright.Elmo.from_pretrained`, which tells the options.
    """
    from elmwright.jobs.pretrained import Elmo

    return Elmo.from_pretrained(model, **options)


def resolve(model: str, tracking_uri: str = "", require_signature: str | Path = "") -> Path:
    """The local folder of a model, with its digests (and, if asked, its signature) checked."""
    folder = _find(model, tracking_uri)
    key = require_signature or os.environ.get(REQUIRE, "")
    if key:
        from elmwright.jobs.bundle import SUMS
        from elmwright.jobs.signing import verify_signature

        if not (folder / SUMS).is_file():
            raise UserError(f"{model} is not a bundle, and only bundles are signed")
        verify_signature(folder, Path(key))
    return folder


def _find(model: str, tracking_uri: str) -> Path:
    from elmwright.jobs.shelf import fetch_reference

    if model.startswith("models:/"):
        return _from_registry(model, tracking_uri)
    if not is_url(model) and is_run(model):
        return model_of_run(RunFolder.at(model))
    if not is_url(model) and Path(model).is_dir() and not means_run(model):
        folder = Path(model)
        if (folder / "MLmodel").is_file() and (folder / "data").is_dir():
            folder = folder / "data"  # as MLflow keeps it
        verify_folder(folder)
        return folder
    on_shelf = fetch_reference(model)
    if on_shelf is not None:
        return on_shelf
    if is_url(model):
        run = RunFolder.at(model) if is_run_url(model) else None
        return model_of_run(run) if run else local_folder(model)
    return model_of_run(find_run_of(model))


def holds_model(folder: Path) -> bool:
    """Whether a folder holds a model, or what is left of one."""
    there = {path.name for path in folder.iterdir()}
    ours = {"config.json", "model.safetensors"} <= there
    damaged = there & {"SHA256SUMS", "MANIFEST.json", "provenance.json", "state.json"}
    bilm = "options.json" in there and any(name.endswith(".hdf5") for name in there)
    return bool(ours or bilm or damaged or {"MLmodel", "data"} <= there)


def means_run(name: str) -> bool:
    """Whether a bare name means the run in runs/, although a folder here has it too: that holds
    no model and is no run."""
    if not is_name(name) or not Path(name).is_dir() or is_run(name):
        return False
    return is_run(Path(RUNS, name)) and not holds_model(Path(name))


def find_run_of(model: str) -> RunFolder:
    """The run that is meant by a MODEL which is no folder and no name in a registry."""
    config = Path(model).is_file() and model.endswith(".toml")
    if config or (is_name(model) and not Path(model).is_file()):
        run = find_here(model) or (find_run(model) if runbook.attempts_of(model) else None)
        if run is not None:
            return run
    recipe = is_name(model) and (RECIPES / f"{model}.toml").is_file()
    raise UserError(
        f"there is no model folder {model!r} and no run of that name"
        + (
            f"; 'elmwright run {model}' makes one"
            if recipe
            else "; give a run, a bundle, a checkpoint, a folder with options.json and one .hdf5, "
            f"or models:/NAME@ALIAS{did_you_mean(model, run_names())}"
        )
    )


def is_run_url(url: str) -> bool:
    """Whether a folder of an object store is that of a run."""
    from elmwright.jobs.bundle import SUMS
    from elmwright.jobs.checkpoint import MANIFEST

    if any(exists(join(url, name)) for name in (SUMS, MANIFEST)):
        return False
    return "run" in (read_json(join(url, "config.json")) or {})


def model_of_run(run: RunFolder) -> Path:
    """The bundle of a run if it is whole, else its newest valid checkpoint, verified."""
    from elmwright.jobs.bundle import SUMS, is_whole
    from elmwright.jobs.checkpoint import newest_valid

    bundle = join(run.root, "bundle")
    if exists(join(bundle, SUMS)) if run.remote else is_whole(Path(bundle)):
        folder = local_folder(bundle)
        if not run.remote:
            verify_folder(folder)
        return folder

    def warn(text: str) -> None:
        print(f"warning: {text}", file=sys.stderr)

    newest = newest_valid(run.checkpoints, warn)
    if newest is None:
        raise UserError(
            f"the run {nearby(run.root)} has no bundle and no checkpoint yet; train it first"
        )
    print(f"note: {nearby(run.root)} has no bundle yet; this is its checkpoint of step "
          f"{newest.step:,}", file=sys.stderr)  # fmt: skip
    return local_folder(newest.path)


def verify_folder(folder: Path) -> None:
    """Compare a bundle or a checkpoint with its digests; other folders carry none."""
    from elmwright.jobs.bundle import SUMS, verify_bundle
    from elmwright.jobs.checkpoint import MANIFEST, verify_checkpoint

    if (folder / SUMS).is_file():
        verify_bundle(folder)
    elif (folder / MANIFEST).is_file() and (folder / "state.json").is_file():
        verify_checkpoint(folder)
    else:
        there = {path.name for path in folder.iterdir()}
        if "provenance.json" in there or {"model.safetensors", "README.md"} <= there:
            raise UserError(f"{folder / SUMS} is missing: the bundle is damaged")
        if "state.json" in there:
            raise UserError(f"{folder / MANIFEST} is missing: the checkpoint is damaged")


def _from_registry(uri: str, tracking_uri: str) -> Path:
    from elmwright.jobs.find_registry import registry_of
    from elmwright.jobs.registry import find_version, open_registry

    reference = uri.removeprefix("models:/")
    registry = open_registry(registry_of(re.split("[@/]", reference)[0], tracking_uri))
    return registry.fetch(*find_version(registry, reference, uri))


def local_folder(path: str) -> Path:
    """A bundle or checkpoint as a folder of this disk; out of a store it is copied, once."""
    if not is_url(path):
        return Path(path)
    from elmwright.jobs.bundle import SUMS, SUMS_BYTES, parse_sums
    from elmwright.jobs.checkpoint import MANIFEST, parse_manifest

    names: Iterable[str]
    if exists(join(path, SUMS)):
        listed = read_small(join(path, SUMS), SUMS_BYTES)
        names = (*parse_sums(listed, join(path, SUMS)), SUMS)
    elif exists(join(path, MANIFEST)):
        listed = read_small(join(path, MANIFEST))
        names = (*parse_manifest(listed, join(path, MANIFEST))["files"], MANIFEST)
    else:
        raise UserError(f"{path} holds no bundle and no checkpoint")

    def download(folder: Path) -> None:
        for name in names:
            with reading(join(path, name)) as file, (folder / name).open("wb") as out:
                shutil.copyfileobj(file, out, 1 << 22)

    return cached(sha256_bytes(listed), download)


def cached(key: str, download: Callable[[Path], None]) -> Path:
    """The verified folder `key` of the cache; `download` fills it if it is missing or damaged.

    `key` is the sha256 of the folder's list of digests: what has no such list is not that folder.
    """
    home = Path(os.environ.get(CACHE) or "~/.cache/elmwright").expanduser()
    place = home / key
    if place.is_dir():
        try:
            _verify_cached(place, key)
        except UserError:
            shutil.rmtree(place)
        else:
            return place
    home.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=".writing-", dir=home))
    try:
        download(beside)
        _verify_cached(beside, key)
        try:
            beside.rename(place)
        except OSError:
            if not place.is_dir():  # else another process was faster, with the same files
                raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return place


def _verify_cached(folder: Path, key: str) -> None:
    from elmwright.jobs.bundle import SUMS
    from elmwright.jobs.checkpoint import MANIFEST

    lists = [folder / name for name in (SUMS, MANIFEST) if (folder / name).is_file()]
    if [sha256_bytes(read_small(path)) for path in lists] != [key]:
        raise UserError(f"{folder} is not what was asked for; fetch it again")
    verify_folder(folder)
