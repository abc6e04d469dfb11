"""Quick checks of arguments, before a model is loaded or a large library imported.

torch takes seconds to import, and more on a busy machine. A user who mistyped the name of a file
should not wait for it, so each command that takes files or models checks them here first. These
checks import neither torch, Ray, MLflow nor numpy. The code that reads a file or model later
checks it fully.
"""

import os
import re
from pathlib import Path

from elmwright.jobs.publishing.choose_checkpoint import choose, list_scored
from elmwright.jobs.registry.find_registry import models_in, registry_of
from elmwright.jobs.registry.resolve import find_run_of, holds_model, is_run_url, means_run
from elmwright.jobs.runbook.find_corpus import corpus_of
from elmwright.jobs.runbook.find_run import find_run, is_run
from elmwright.jobs.runbook.runbook import is_name
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.using.sentences import is_stream, pieces
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.format.manifest import Manifest
from elmwright.pipeline.storage.files import at, join


def check_text(source: str) -> None:
    """Refuse a text that does not exist, cannot be read, or is empty."""
    if is_stream(source):
        return
    if Path(source).is_dir():
        raise UserError("argument", f"{source} is a folder; name a file of one sentence per line")
    pieces(Path(source), None)


def check_file(path: str, what: str) -> None:
    """Refuse a file that does not exist; `what` describes it."""
    if not Path(path).is_file():
        raise UserError("file-missing", f"there is no {what} {path}; check the path")


def check_model(model: str, require_signature: str | None = None) -> None:
    """Refuse a MODEL argument that cannot name a model, and a missing public key."""
    if require_signature:
        check_file(require_signature, "public key")
    if model.startswith("models:/"):
        _check_registered(model)
    elif at(model).is_url:
        _check_url(model)
    elif is_run(model):
        _check_run(model)
    elif Path(model).is_dir() and not means_run(model):
        _check_folder(Path(model))
    elif not _is_in_plain_folder(model):
        _check_run(find_run_of(model).root)


def _check_registered(model: str) -> None:
    reference = model.removeprefix("models:/")
    match = re.fullmatch(r"([^/@]+)(?:@[\w-]+|/[0-9]+)", reference)
    if not match:
        raise UserError("argument", f"{model!r} is not models:/NAME@ALIAS or models:/NAME/VERSION")
    uri = registry_of(match[1], quiet=True)
    if uri.startswith("sqlite:///"):
        check_database(uri)
        names = models_in(uri)
        if names is not None and match[1] not in names:
            advice = f"it has: {', '.join(sorted(names))}" if names else "publish one first"
            raise UserError(
                "version-missing", f"{uri} has no version of a model {match[1]!r}; {advice}"
            )


def check_database(uri: str) -> None:
    """Refuse an MLflow database (SQLite) that does not exist: MLflow would create it."""
    database = Path(uri.removeprefix("sqlite:///").partition("?")[0]).absolute()
    if not database.is_file():
        raise UserError("file-missing", f"there is no MLflow database {database}; check the path")


def _check_url(model: str) -> None:
    names = ("SHA256SUMS", "MANIFEST.json", "config.json")
    if not any(at(join(model, name)).exists() for name in names) and not _is_in_plain_folder(model):
        raise UserError("model-missing", f"{model} holds no bundle and no checkpoint")


def _is_in_plain_folder(model: str) -> bool:
    """Whether this is ROOT/NAME@ALIAS or ROOT/NAME/3 of a registry in a plain folder."""
    match = re.fullmatch(r"(.*?)/?([^/@]+)(?:@[\w-]+|/[0-9]+)", model)
    return match is not None and at(join(match[1] or ".", match[2], "index.json")).exists()


def _check_run(root: str) -> None:
    if at(root).is_url or at(join(root, "bundle", "SHA256SUMS")).exists():
        return
    if not any(Path(root, "train", "checkpoints").glob("step-*/MANIFEST.json")):
        raise UserError(
            "model-missing", f"the run {root} has no bundle and no checkpoint yet; train it first"
        )


def _check_folder(folder: Path) -> None:
    if (folder / "MLmodel").is_file() and (folder / "data").is_dir():
        folder = folder / "data"
    if not holds_model(folder):
        raise UserError(
            "model-missing",
            f"{folder} holds no model; looked for config.json with model.safetensors, for "
            "options.json with one .hdf5 file, and for a run",
        )


def check_export(folder: RunFolder, step: str, output: str, force: bool) -> None:
    """Refuse a checkpoint that does not exist, and to overwrite a bundle without `force`."""
    if step != "best":  # finding the best may need an evaluation first
        choose(list_scored(folder), step, folder)
    if not output and step in ("result", "latest"):
        check_folder_output(str(folder.bundle), force)


def text_or_corpus(text: str) -> str:
    """The path of a text, or the corpus folder; `UserError` if it cannot be read."""
    if is_stream(text) or (Path(text).is_file() and Path(text).suffix != ".toml"):
        check_text(text)
        return text
    return corpus_of(text)


def check_split(corpus: str, split: str) -> None:
    """Refuse a held-out set that a corpus does not have."""
    splits = [name for name in Manifest.load(corpus).splits if name != "train"]
    if split not in splits:
        raise UserError(
            "split-missing",
            f"{corpus} has no held-out set {split!r} (it has: {', '.join(splits) or 'none'})",
        )


def run_of(model: str) -> str:
    """The run folder that a MODEL argument names; `UserError` if it is not a run."""
    if at(model).is_url:
        if is_run_url(model):
            return model
    elif (
        is_run(model)
        or Path(model).is_file()
        or (is_name(model) and not Path(model).exists())
        or means_run(model)
    ):
        return find_run(model).root
    raise UserError("argument", f"{model} is not a run, so --corpus must name the corpus")


def check_verifiable(path: str, key: str | None) -> str:
    """The path to verify, a run's name or config resolved; `UserError` if it does not exist."""
    if key:
        check_file(key, "public key")
    if path.startswith("models:/"):
        _check_registered(path)
        return path
    is_file = Path(path).is_file() and Path(path).suffix != ".toml"
    if is_file or at(path).is_folder() or _is_in_plain_folder(path):
        return path
    return find_run(path).root


def check_folder_output(output: str, force: bool) -> None:
    """Refuse an output folder that exists already or cannot be created."""
    target = Path(output).absolute()
    if target.exists() and not force:
        raise UserError(
            "output", f"{output} exists already; choose another with -o, or add --force"
        )
    parent = next(path for path in target.parents if path.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise UserError(
            "permission",
            f"no permission to use {parent}; change its permissions or choose another place",
        )
