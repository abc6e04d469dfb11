"""From a checkpoint to a bundle that has been read back and compared.

The weights are the checkpoint's own bytes. Before the bundle gets its name, two things are done
with it: an independent reader (`model.reference`: numpy, no torch, its own parsing of
weights.hdf5) computes representations of real held-out sentences, which must equal the trained
model's; and the held-out perplexity is computed from the bundle's files, which must equal what the
trainer measured, where it measured all of the set. The same checkpoint gives the same bytes: the
time is in provenance.json and nowhere else.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from elmwright.jobs.bundle import SUMS, verify_bundle, write_sums
from elmwright.jobs.checkpoint import (
    CheckpointInfo,
    folder_name,
    list_checkpoints,
    verify_checkpoint,
)
from elmwright.jobs.config import RunConfig
from elmwright.jobs.config_file import config_from, load_config
from elmwright.jobs.journal import read_journal
from elmwright.jobs.layout import RunFolder
from elmwright.jobs.model_card import model_card
from elmwright.jobs.models import local_folder
from elmwright.jobs.provenance import provenance
from elmwright.jobs.tracking import read_run_id, tracking_uri
from elmwright.jobs.training_facts import training_facts, training_svg
from elmwright.model.bilm_format import write_options, write_weights
from elmwright.model.elmo import Elmo
from elmwright.model.folder import load_folder, model_tensors, write_config
from elmwright.model.reference import ReferenceBiLM
from elmwright.pipeline.errors import Failed, UserError
from elmwright.pipeline.files import exists, join, read_bytes, read_json
from elmwright.pipeline.manifest import Manifest, canonical
from elmwright.pipeline.shards import ShardReader
from elmwright.pipeline.storage import sha256_bytes

PROBES = 8
"""Sentences compared between the trained model and the bundle."""
TOLERANCE = 1e-4
"""Largest difference allowed between torch in float32 and the reference in float64; values are
of the order of 1, and the trained demo differs by about 1e-6."""
SAME = 1e-6
"""Relative difference allowed between the trainer's perplexity and the bundle's, both on a CPU."""
NEAR = 1e-3
"""The same where the trainer computed on a GPU or in bfloat16, and the export does not."""
PIECES = "sentencepiece.model"


def export(config: RunConfig, folder: RunFolder) -> str:
    """Write `bundle/` from what training ended with; a sentence about what was checked."""
    chosen = (read_json(folder.result) or {})["checkpoint_sha256"]
    infos = {info.sha256: info for info in list_checkpoints(folder.checkpoints)}
    return export_checkpoint(config, folder, infos[chosen], folder.bundle)


def export_run(
    run: str,
    step: str,
    output: str,
    *,
    overrides: list[str],
    without_softmax: bool = False,
    force: bool = False,
    key: str = "",
) -> tuple[Path, str]:
    """`elmwright export RUN --step …`: the bundle's folder, and a sentence about the checks."""
    config = _run_config(run, overrides)
    folder = RunFolder.of(config)
    info = choose(list_checkpoints(folder.checkpoints), step, config, folder)
    verify_checkpoint(info.path)
    newest = step in ("result", "latest")
    target = (
        folder.bundle if newest else folder.bundle.with_name(f"bundle-{folder_name(info.step)}")
    )
    target = Path(output) if output else target
    if target.exists() and not force:
        raise UserError(f"{target} exists already; choose another with -o, or add --force")
    if target.exists() and not (target / SUMS).is_file():
        raise UserError(f"{target} is not a bundle, so --force does not replace it")
    checked = export_checkpoint(
        config, folder, info, target, without_softmax=without_softmax, key=key
    )
    return target, checked


def _run_config(run: str, overrides: list[str]) -> RunConfig:
    """The config of a run, given by its folder or its config file; run.dir is where it lies."""
    saved = join(run, "config.json")
    if not exists(saved):
        if Path(run).is_dir():
            raise UserError(f"{run} is not a run's folder (it has no config.json)")
        return load_config(run, overrides)
    if overrides:
        raise UserError("--set goes with a config file; a run's folder has its settings")
    data = json.loads(read_bytes(saved))
    if "run" not in data:
        raise UserError(f"{run} is not a run's folder; give the folder that holds train/")
    data["run"]["dir"] = run
    return config_from(data, saved)


def choose(
    infos: list[CheckpointInfo], step: str, config: RunConfig, folder: RunFolder
) -> CheckpointInfo:
    """The checkpoint that `--step` means: a number, `latest`, or `best` by held-out perplexity."""
    if not infos:
        raise UserError(f"{folder.root} has no checkpoints; train first")
    if step == "result":  # what training ended with; of a run that goes on, the newest
        ended = (read_json(folder.result) or {}).get("checkpoint_sha256")
        return next((info for info in infos if info.sha256 == ended), infos[-1])
    if step == "latest":
        return infos[-1]
    if step == "best":
        return _best(infos, config, folder)
    for info in infos:
        if step.isdigit() and info.step == int(step):
            return info
    known = ", ".join(str(info.step) for info in infos)
    raise UserError(f"there is no checkpoint {step!r}; there are best, latest and: {known}")


def _best(infos: list[CheckpointInfo], config: RunConfig, folder: RunFolder) -> CheckpointInfo:
    """The lowest perplexity of the first held-out set.

    Only evaluations of equally many tokens compare: the best of each kind are candidates, and if
    there are several, all of the held-out set is scored with each.
    """
    best: dict[int, tuple[float, CheckpointInfo]] = {}
    for info in infos:
        for score in list(info.perplexity.values())[:1]:
            if info.tokens not in best or score < best[info.tokens][0]:
                best[info.tokens] = score, info
    if not best:
        raise UserError(
            f"no checkpoint of {folder.root} was evaluated; use --step latest or its number"
        )
    candidates = [info for _, info in best.values()]
    if len(candidates) == 1:
        return candidates[0]
    manifest = Manifest.load(folder.corpus)
    full: dict[int, float] = {}
    for info in candidates:
        scores = recorded(info, manifest) or _evaluate(info.path, folder)
        full[info.step] = next(iter(scores.values()))["perplexity"]
    return min(candidates, key=lambda info: full[info.step])


def recorded(info: CheckpointInfo, manifest: Manifest) -> dict[str, dict[str, Any]] | None:
    """The trainer's evaluation of a checkpoint, if it was of all held-out tokens."""
    everything = sum(s.steps for name, s in manifest.splits.items() if name != "train")
    if not everything or info.tokens != everything:
        return None
    state = json.loads(read_bytes(join(info.path, "state.json")))
    return dict(state["evaluation"])


def export_checkpoint(
    config: RunConfig,
    folder: RunFolder,
    info: CheckpointInfo,
    target: Path,
    *,
    without_softmax: bool = False,
    key: str = "",
) -> str:
    """Write the bundle of a checkpoint, whole or not at all; a sentence about what was checked."""
    target = target.absolute()
    beside = target.with_name(f".writing-{target.name}")
    shutil.rmtree(beside, ignore_errors=True)
    try:
        beside.mkdir(parents=True)
        checked = _write(beside, config, folder, info, without_softmax, key)
    except OSError as error:
        shutil.rmtree(beside, ignore_errors=True)
        raise UserError(
            f"the bundle could not be written ({error.strerror}); make room and run the same "
            "command again"
        ) from error
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    old = target.with_name(f".old-{target.name}")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        target.rename(old)
    beside.rename(target)
    shutil.rmtree(old, ignore_errors=True)
    return checked


def _write(
    target: Path,
    config: RunConfig,
    folder: RunFolder,
    info: CheckpointInfo,
    without_softmax: bool,
    key: str,
) -> str:
    manifest = Manifest.load(folder.corpus)
    checkpoint = local_folder(info.path)
    for name in ("model.safetensors", "softmax.safetensors", "vocab.txt"):
        shutil.copyfile(checkpoint / name, target / name)
    if PIECES in manifest.extra_files:
        (target / PIECES).write_bytes(read_bytes(join(folder.corpus, PIECES)))
    loaded = load_folder(checkpoint)
    if loaded.config != config.model:
        raise UserError(f"[model] of the config is not what {info.path} was trained with")
    settings = {"dropout": config.train.dropout, "n_tokens_vocab": manifest.vocab.size}
    write_options(target / "options.json", config.model, settings)
    write_weights(target / "weights.hdf5", config.model, model_tensors(loaded.bilm))
    expected = recorded(info, manifest)
    # Perplexity depends a little on the lanes, and they may have been changed since.
    lanes = next(iter(expected.values()))["lanes"] if expected else config.eval.lanes
    about = _about(config, manifest, info.step, lanes)
    write_config(target / "config.json", config.model, about)
    state = read_json(checkpoint / "state.json") or {}
    elsewhere = config.train.bf16 or state.get("device", "cpu") != "cpu"
    allowed = NEAR if elsewhere else SAME
    evaluation, measured = _measure(target, folder, manifest, expected, allowed)
    write_config(target / "config.json", config.model, {"evaluation": evaluation, **about})
    if without_softmax:
        (target / "softmax.safetensors").unlink()
    _describe(target, config, folder, info, manifest, evaluation, state.get("machine", ""))
    about_it = provenance(
        config,
        manifest,
        step=info.step,
        sha256=info.sha256,
        run_id=read_run_id(folder),
        tracking_uri=tracking_uri(config, folder),
    )
    (target / "provenance.json").write_text(json.dumps(about_it, indent=1))
    if key:
        from elmwright.jobs.signing import sign

        sign(target, Path(key))
    write_sums(target)
    verify_bundle(target)
    worst, count = _compare(target, Elmo(loaded.bilm), heldout_sentences(folder.corpus, manifest))
    if not worst <= TOLERANCE:
        raise Failed(
            f"the bundle gives other vectors than the trained model (difference {worst:.3g}); "
            "it was not written: please report this"
        )
    return (
        f"{count} sentences give the same vectors through an independent reader (Δ {worst:.1e})"
        f"{measured}"
    )


def _about(config: RunConfig, manifest: Manifest, step: int, lanes: int) -> dict[str, Any]:
    """What config.json says beside the model's shape: all that comparing and tokenising need."""
    return {
        "step": step,
        "vocab": {"size": manifest.vocab.size, "sha256": manifest.vocab.sha256},
        "heldout_sha256": {
            name: sha256_bytes(canonical([shard.sha256 for shard in split.shards]))
            for name, split in manifest.splits.items()
            if name != "train"
        },
        "eval_lanes": lanes,
        "tokenizer": config.corpus.tokenizer,
        "sentences": config.corpus.sentences,
        "language": config.corpus.language,
    }


def _measure(
    target: Path,
    folder: RunFolder,
    manifest: Manifest,
    expected: dict[str, dict[str, Any]] | None,
    allowed: float,
) -> tuple[dict[str, Any], str]:
    """Held-out perplexity from the bundle's own files, compared with the trainer's."""
    if len(manifest.splits) == 1:
        return {}, ""
    found = _evaluate(target, folder)
    if expected is None:
        return found, "; held-out perplexity was computed from the bundle"
    for split, score in expected.items():
        mine, trainers = found[split]["perplexity"], score["perplexity"]
        if not abs(mine - trainers) <= allowed * trainers:
            raise Failed(
                f"the bundle has a perplexity of {mine!r} on {split!r}, the trainer had "
                f"{trainers!r}; it was not written: please report this"
            )
    return expected, "; held-out perplexity is the trainer's"


def _evaluate(model: str | Path, folder: RunFolder) -> dict[str, dict[str, Any]]:
    from elmwright.jobs.evaluate import evaluate_model

    return evaluate_model(str(model), folder.corpus, None)


def _describe(
    target: Path,
    config: RunConfig,
    folder: RunFolder,
    info: CheckpointInfo,
    manifest: Manifest,
    evaluation: dict[str, Any],
    hardware: str,
) -> None:
    """Write the training curve and the model card."""
    first = next(iter(evaluation), "heldout")
    tokens = config.train.tokens
    records = [record for record, _ in read_journal(folder.journal, 0)]
    facts = training_facts(records, info.step, tokens, first)
    picture = training_svg(facts, first)
    if picture:
        (target / "training.svg").write_text(picture, encoding="utf-8")
    card = model_card(
        config,
        manifest,
        info.step,
        evaluation,
        facts,
        hardware=hardware,
        has_softmax=(target / "softmax.safetensors").exists(),
        has_curve=picture is not None,
    )
    (target / "README.md").write_text(card, encoding="utf-8")


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
            raise Failed(f"shape {found.shape} from the bundle, {vectors.shape} from training")
        worst = max(worst, float(np.abs(found - vectors).max()))
    return worst, len(sentences)
