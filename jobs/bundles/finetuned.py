"""Saves a biLM that a task has fine-tuned as a bundle, which every command can open.

It has the tokenisation and the vocabulary of its base. It has no softmax, because a task trains
none, so it gives vectors and cannot score text. The mixes belong to the task and are in its
`state_dict`. The card and `provenance.json` name the base and the text it was trained on.
"""

import json
import shutil
import tempfile
import time
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from safetensors.torch import save_file

from elmwright import __version__
from elmwright.jobs.bundles.base_model import BaseModel, base_model
from elmwright.jobs.bundles.bundle import FILES, OPTIONAL, SUMS, read_sums, write_sums
from elmwright.jobs.bundles.bundle_json import BundleConfig, Vocabulary
from elmwright.jobs.bundles.model_folder import verify_folder
from elmwright.jobs.environment.machine_facts import environment
from elmwright.model.bilm import BiLM
from elmwright.model.formats.bilm_format import write_options, write_weights
from elmwright.model.formats.folder import MODEL, VOCAB, model_tensors, read_vocab, write_config
from elmwright.model.text.text_input import PIECES
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.records import from_data, to_data
from elmwright.pipeline.storage.files import at
from elmwright.pipeline.storage.untrusted import read_object

TEMPLATE = Path(__file__).parent / "finetuned_card.md.jinja"


@dataclass(frozen=True)
class Opened:
    """The MODEL that an `Elmo` was opened from."""

    called: str
    """As the user named it."""
    folder: Path
    """The verified folder."""


def save_finetuned(
    bilm: BiLM, opened: Opened, target: Path, *, name: str, licence: str, force: bool
) -> None:
    """Write the bundle of a fine-tuned biLM, whole or not at all."""
    if not (opened.folder / VOCAB).is_file():
        raise UserError(
            "model-incomplete",
            f"{opened.called} has no {VOCAB}, which every bundle has; put its vocabulary beside "
            "it, and open it again",
        )
    target = target.resolve()
    if target.exists():
        _check_replaceable(target, force)
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".writing-{target.name}-", dir=target.parent))
    try:
        new = work / "new"
        new.mkdir()
        base = base_model(opened.called, opened.folder)
        _write(new, bilm, opened.folder, base, name or target.name, licence)
        write_sums(new)
        verify_folder(new)
        if target.exists():
            target.rename(work / "old")
        new.rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _check_replaceable(target: Path, force: bool) -> None:
    """Refuse to replace anything but a bundle, and that only if asked to."""
    if not force:
        raise UserError(
            "output", f"{target} exists already; choose another folder, or give force=True"
        )
    names = {path.name for path in target.iterdir()} if target.is_dir() else {""}
    if not (names <= {*FILES, *OPTIONAL, SUMS} and SUMS in names and read_sums(target)):
        raise UserError("output", f"{target} is not just a bundle, so it is not replaced")


def _write(
    target: Path, bilm: BiLM, folder: Path, base: BaseModel, name: str, licence: str
) -> None:
    tensors = {key: tensor.float().cpu() for key, tensor in model_tensors(bilm).items()}
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, target / MODEL)
    vocab = read_vocab(folder / VOCAB)
    write_options(target / "options.json", bilm.config, {"n_tokens_vocab": len(vocab)})
    write_weights(target / "weights.hdf5", bilm.config, tensors)
    shutil.copyfile(folder / VOCAB, target / VOCAB)
    if (folder / PIECES).is_file():
        shutil.copyfile(folder / PIECES, target / PIECES)
    about = _about(folder, Vocabulary(len(vocab), at(folder / VOCAB).sha256()))
    write_config(target / "config.json", bilm.config, to_data(about))
    card = Environment(  # noqa: S701 - Markdown, not HTML
        trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
    )
    card.filters |= {
        "cell": lambda text: " ".join(text.replace("|", "\\|").split()),
        "json": json.dumps,
        "n": "{:,}".format,
    }
    text = card.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        name=name, licence=licence, base=base, about=about, model=bilm.config, version=__version__
    )
    (target / "README.md").write_text(text, encoding="utf-8")
    origin = {
        **to_data(environment()),
        "exported": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "config": {"export": {"name": name, "licence": licence}},
        "corpus_fingerprint": "",
        "mlflow_run_id": "",
        "weights": "fine-tuned in a task",
        "base": to_data(base),
    }
    (target / "provenance.json").write_text(json.dumps(origin, indent=1), encoding="utf-8")


def _about(folder: Path, vocab: Vocabulary) -> BundleConfig:
    """What config.json says of the base, without what was measured of it."""
    about = BundleConfig(step=0, vocab=vocab, heldout_sha256={})
    if not (folder / "config.json").is_file():
        return about
    measured = {"evaluation", "step", "vocab", "heldout_sha256", "eval_lanes"}
    names = {field.name for field in fields(BundleConfig)} - measured
    content = read_object(folder / "config.json")
    kept: dict[str, Any] = {key: value for key, value in content.items() if key in names}
    try:
        return from_data(BundleConfig, to_data(replace(about)) | kept)
    except ValueError as error:
        raise UserError(
            "model-invalid", f"{folder / 'config.json'} cannot be read ({error!s:.200})"
        ) from error
