"""From a checkpoint to a bundle that has been read back and compared.

The weights are the checkpoint's own bytes. Before the bundle gets its name, an independent reader
(`model.reference`: numpy, no torch, its own parsing of weights.hdf5) computes representations of
real held-out sentences from it, and they must equal the trained model's. The same checkpoint gives
the same bytes: the time is in provenance.json and nowhere else.
"""

import json
import platform
import shutil
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from elmwright import __version__
from elmwright.jobs.bundle import verify_bundle, write_sums
from elmwright.jobs.checkpoint import CheckpointInfo, fetch, list_checkpoints
from elmwright.jobs.config import RunConfig
from elmwright.jobs.config_file import config_hash, to_dict
from elmwright.jobs.layout import RunFolder
from elmwright.jobs.model_card import model_card
from elmwright.jobs.tracking import read_run_id
from elmwright.model.bilm_format import write_options, write_weights
from elmwright.model.elmo import Elmo
from elmwright.model.folder import load_folder, model_tensors, write_config
from elmwright.model.reference import ReferenceBiLM
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.files import join, read_json
from elmwright.pipeline.manifest import Manifest
from elmwright.pipeline.shards import ShardReader

PROBES = 8
"""Sentences compared between the trained model and the bundle."""
TOLERANCE = 1e-4
"""Largest difference allowed between torch in float32 and the reference in float64; values are
of the order of 1, and the trained demo differs by about 1e-6."""


def export(config: RunConfig, folder: RunFolder) -> str:
    """Write `bundle/` from the newest checkpoint; a sentence about what was checked."""
    result = read_json(folder.result) or {}
    infos = {info.sha256: info for info in list_checkpoints(folder.checkpoints)}
    info = infos[result["checkpoint_sha256"]]
    manifest = Manifest.load(folder.corpus)
    beside = folder.bundle.with_name(".writing-bundle")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    try:
        checked = _write(beside, config, folder, info, manifest)
    except OSError as error:
        shutil.rmtree(beside, ignore_errors=True)
        raise UserError(
            f"the bundle could not be written ({error.strerror}); make room and run the same "
            "command again"
        ) from error
    old = folder.bundle.with_name(".old-bundle")
    shutil.rmtree(old, ignore_errors=True)
    if folder.bundle.exists():
        folder.bundle.rename(old)
    beside.rename(folder.bundle)
    shutil.rmtree(old, ignore_errors=True)
    return checked


def _write(
    target: Path, config: RunConfig, folder: RunFolder, info: CheckpointInfo, manifest: Manifest
) -> str:
    checkpoint = fetch(info.path, folder.scratch)
    for name in ("model.safetensors", "softmax.safetensors", "vocab.txt"):
        shutil.copyfile(checkpoint / name, target / name)
    loaded = load_folder(checkpoint)
    settings = {"dropout": config.train.dropout, "n_tokens_vocab": manifest.vocab.size}
    write_options(target / "options.json", config.model, settings)
    write_weights(target / "weights.hdf5", config.model, model_tensors(loaded.bilm))
    evaluation = (read_json(folder.result) or {})["evaluation"]
    extra = {
        "evaluation": evaluation,
        "vocab": {"size": manifest.vocab.size, "sha256": manifest.vocab.sha256},
        "eval_lanes": config.eval.lanes,
        "tokenizer": config.corpus.tokenizer,
        "language": config.corpus.language,
    }
    write_config(target / "config.json", config.model, extra)
    (target / "README.md").write_text(
        model_card(config, manifest, info.step, evaluation), encoding="utf-8"
    )
    provenance = _provenance(config, folder, info, manifest)
    (target / "provenance.json").write_text(json.dumps(provenance, indent=1))
    write_sums(target)
    verify_bundle(target)
    worst, count = _compare(target, Elmo(loaded.bilm), heldout_sentences(folder.corpus, manifest))
    if not worst <= TOLERANCE:
        raise RuntimeError(
            f"the bundle gives other vectors than the trained model (difference {worst:.3g}); "
            "it was not published: please report this"
        )
    return f"{count} sentences give the same vectors through an independent reader (Δ {worst:.1e})"


def heldout_sentences(corpus: str, manifest: Manifest) -> list[list[str]]:
    """The first sentences of a held-out set (of train, where there is none)."""
    split = list(manifest.splits.values())[-1]
    block = ShardReader(join(corpus, split.shards[0].tar)).read(0)
    ends = np.cumsum(block.lengths)[:PROBES]
    words = [block.types[token] for token in block.tokens]
    starts = [0, *ends[:-1]]
    return [words[a:b] for a, b in zip(starts, ends, strict=True)]


def _compare(bundle: Path, elmo: Elmo, sentences: list[list[str]]) -> tuple[float, int]:
    """The largest difference between the trained model's vectors and the bundle's."""
    elmo.eval()
    expected = elmo.embed(sentences)
    reference = ReferenceBiLM(bundle / "options.json", bundle / "weights.hdf5")
    worst = 0.0
    for sentence, vectors in zip(sentences, expected, strict=True):
        found, _ = reference.embed(sentence)
        if found.shape != vectors.shape:
            raise RuntimeError(
                f"shape {found.shape} from the bundle, {vectors.shape} from training"
            )
        worst = max(worst, float(np.abs(found - vectors).max()))
    return worst, len(sentences)


def _provenance(
    config: RunConfig, folder: RunFolder, info: CheckpointInfo, manifest: Manifest
) -> dict[str, Any]:
    packages = ("torch", "ray", "mlflow", "numpy", "pyarrow", "safetensors", "h5py", "sentencex")
    return {
        "elmwright": __version__,
        "git": _git_state(),
        "exported": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "config": to_dict(config),
        "config_sha256": config_hash(config),
        "seed": config.run.seed,
        "corpus_fingerprint": manifest.fingerprint,
        "checkpoint_step": info.step,
        "checkpoint_sha256": info.sha256,
        "mlflow_run_id": read_run_id(folder),
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "packages": {name: metadata.version(name) for name in packages},
    }


def _git_state() -> dict[str, Any] | None:
    """Commit and cleanliness of the checkout this code runs from, if it is one."""
    here = Path(__file__).resolve().parent

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(here), *arguments], capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        if not (here.parent / ".git").exists():
            return None
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.CalledProcessError):
        return None
