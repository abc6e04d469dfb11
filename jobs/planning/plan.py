"""What a config will cost and whether it can work, before anything is started: `elmwright check`.

`describe` gathers the facts as data (what `--json` prints), `plan_warnings.py` looks at them for
what a user may not want, and `plan_text.py` says them in the few lines that a person reads first.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from elmwright.jobs.checkpoints.checkpoint import list_checkpoints
from elmwright.jobs.cluster.connection import check_answers, is_remote, why_unreachable
from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.config.toml_file import config_hash, to_dict
from elmwright.jobs.planning import estimate
from elmwright.jobs.planning.plan_warnings import warnings_of
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.rundir.stage_names import STAGES
from elmwright.jobs.secrets.hiding import hide, hide_all, without_secret
from elmwright.jobs.stages.corpus_inputs import find_given, find_train
from elmwright.jobs.stages.places import check_places
from elmwright.jobs.stages.preflight import preflight
from elmwright.jobs.stages.problems import Problems
from elmwright.jobs.stages.stage import Run
from elmwright.jobs.stages.train import find_init_from
from elmwright.jobs.stages.workflow import ALL_STAGES, pending
from elmwright.jobs.terminal.wording import size
from elmwright.jobs.tracking.check_server import check_server
from elmwright.jobs.tracking.tracker import tracking_uri
from elmwright.jobs.upkeep.list_runs import statuses
from elmwright.pipeline.build.corpus_folder import DISK_FACTOR
from elmwright.pipeline.build.preview import Look, look_at, text_bytes
from elmwright.pipeline.config import EMBEDDED
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.format.manifest import Manifest, finished_corpus
from elmwright.pipeline.progress import plural
from elmwright.pipeline.reading import harvest
from elmwright.pipeline.reading.sources import SourceFile
from elmwright.pipeline.storage import files
from elmwright.pipeline.storage.disk import free_bytes


def describe(config: RunConfig, *, measure: bool = False) -> dict[str, Any]:
    """Everything that can be told of a run now: facts, problems and warnings."""
    folder = RunFolder.of(config)
    run = Run(config, folder)
    left = _pending(run)
    manifest = None if "corpus" in left else finished_corpus(folder.corpus)
    problems = preflight(run, ALL_STAGES, left)
    if not left:
        check_places(problems, config, folder)
    train = [] if manifest else find_train(Problems(), config.corpus, folder.corpus)
    look = _look(problems, config, train)
    plan = {
        **_sizes(config, folder, manifest),
        "sources": _sources(config, train),
        "sample": _sample(look),
        **_text(config, manifest, look, train),
        "cores": {
            "processes": config.train.processes,
            "threads": config.train.threads,
            "here": len(os.sched_getaffinity(0)),
        },
        "cluster": config.cluster.address,
        "pending": list(left),
    }
    plan["disk"] = _disk(config, folder, plan)
    plan["time"] = _time(config, folder, plan, look, measured=measure)
    plan["reachable"] = _reachable(problems, config, folder)
    base = Problems().of(find_init_from, config, folder)
    plan["init_from"] = {"model": config.train.init_from, "folder": str(base or "")}
    plan["problems"] = list(problems)
    plan["warnings"] = warnings_of(config, plan)
    return plan


def _pending(run: Run) -> Sequence[str]:
    """The names of the first stage that is not done, and of all after it."""
    try:
        return [stage.name for stage in pending(run, ALL_STAGES)]
    except (OSError, UserError):
        return STAGES  # a store that does not answer is reported by what asks it next


def _sizes(config: RunConfig, folder: RunFolder, manifest: Manifest | None) -> dict[str, Any]:
    """The resolved config, its hash, and sizes in words."""
    parts = config.model.parameter_counts()
    words = _vocabulary(config, manifest)
    softmax = words * (config.model.projection_dim + 1)
    up_to = "" if manifest else "up to "
    train, tokens = config.train, config.train.tokens
    checkpoint = estimate.checkpoint_bytes(config, words)
    sizes = {
        "parameters": f"{sum(parts.values()):,} (encoder {parts['encoder']:,}, "
        f"LSTMs {parts['lstm']:,}) + softmax {up_to}{softmax:,} for {up_to}{words:,} words",
        "checkpoint": f"{up_to}{size(checkpoint)}",
        "step": f"{tokens:,} tokens ({plural(train.lanes, 'lane')} × {train.window}), "
        f"{plural(train.processes, 'process', 'processes')} × "
        f"{plural(train.lanes // train.processes, 'lane')}",
        "training": f"{plural(train.max_steps, 'step')}, {train.max_steps * tokens:,} tokens",
        "run folder": folder.root,
    }
    if manifest:
        split = manifest.splits["train"]
        epoch = split.blocks * manifest.block_steps
        sizes["epoch"] = (
            f"{split.steps:,} tokens in {plural(split.blocks, 'block')} = "
            f"{epoch / tokens:,.1f} steps; "
            f"the run makes {train.max_steps * tokens / epoch:.2f} epochs"
        )
    else:
        sizes["epoch"] = "not known before the corpus is built ('elmwright corpus')"
    return {
        "config": hide_all(to_dict(config)),
        "hash": config_hash(config),
        "parameters": {**parts, "softmax": softmax},
        "sizes": sizes,
    }


def _vocabulary(config: RunConfig, manifest: Manifest | None) -> int:
    if manifest:
        return manifest.vocab.size
    if not config.vocab.file:
        return config.vocab.max_size
    try:
        return files.read_bytes(config.vocab.file).count(b"\n")
    except (OSError, UserError):
        return config.vocab.max_size  # preflight says what is wrong with it


def _sources(config: RunConfig, train: list[SourceFile]) -> list[dict[str, Any]]:
    rows = []
    for index, source in enumerate(config.corpus.sources):
        mine = [file for file in train if file.source == index]
        size = sum(file.bytes for file in mine)
        rows.append({"path": hide(source.path), "files": len(mine), "bytes": size})
    return rows


def _look(problems: Problems, config: RunConfig, train: list[SourceFile]) -> Look | None:
    """A sample of the text, where there is any to be read; what is wrong with all of it."""
    if not train:
        return None

    look = problems.of(look_at, train, config.corpus, config.run.seed)
    if look is None:
        return None
    broken = sum(look.broken.values())
    if broken == look.documents:
        why = max(look.broken, key=look.broken.__getitem__) if look.broken else "no text"
        problems.note(
            f"none of {plural(broken, 'document')} can be read ({why}) {look.detail}".rstrip()
            + "; check corpus.sources"
            if broken
            else "the sources hold no text; check corpus.sources"
        )
    elif look.kept == 0:
        problems.note(
            "the rules keep nothing of the sample; see which drops what with "
            "elmwright corpus CONFIG --sample 1000"
        )
    pieces = config.corpus.sentencepiece
    marks = 4 + 256 * pieces.byte_fallback
    if config.corpus.tokenizer == "sentencepiece" and look.alphabet + marks > pieces.size:
        problems.note(
            f"corpus.sentencepiece.size = {pieces.size} is less than the {look.alphabet} characters"
            f" of the sample and {marks} marks; make it larger"
        )
    return look


def _sample(look: Look | None) -> dict[str, Any] | None:
    if look is None:
        return None
    return {
        "documents": look.documents,
        "broken": look.broken,
        "whole": look.whole,
        "kept_words": look.kept,
        "languages": look.languages,
        "longest_characters": look.longest,
    }


def _text(
    config: RunConfig, manifest: Manifest | None, look: Look | None, train: list[SourceFile]
) -> dict[str, Any]:
    """How much text there is, as known or as the sample lets expect."""
    entries = config.corpus.heldout.items()
    shares = {name: entry for name, entry in entries if isinstance(entry, float)}
    if manifest:
        heldout = {name: s.steps for name, s in manifest.splits.items() if name != "train"}
        tokens, size, known = manifest.splits["train"].steps, 0, True
    else:
        tokens, size, known = look.steps if look else 0, sum(map(text_bytes, train)), False
        if _embedded(config) and not train:
            tokens, size = tokens + estimate.HARVEST_STEPS, size + estimate.HARVEST_BYTES
        heldout = {name: round(tokens * share) for name, share in shares.items()}
        for file in find_given(Problems(), config.corpus) if size else ():
            more = round(text_bytes(file) * tokens / size)
            heldout[file.split] = heldout.get(file.split, 0) + more
        tokens -= round(tokens * sum(shares.values()))
    return {
        "vocabulary": {"words": _vocabulary(config, manifest), "known": known},
        "text": {
            "tokens": tokens,
            "heldout_tokens": sum(heldout.values()),
            "heldout_sets": heldout,
            "bytes": size,
            "known": known,
        },
    }


def _embedded(config: RunConfig) -> bool:
    return any(source.path == EMBEDDED for source in config.corpus.sources)


def _disk(config: RunConfig, folder: RunFolder, plan: dict[str, Any]) -> dict[str, Any]:
    """What a run takes besides what is there, and what is free where it goes."""
    words = plan["vocabulary"]["words"]
    place = folder.scratch if folder.remote else Path(folder.root)
    corpus = training = 0
    if not files.is_url(folder.corpus):
        there = _room(Path(folder.corpus))
        corpus = max(0, round(DISK_FACTOR * plan["text"]["bytes"]) - there)
    if plan["pending"] and not folder.remote:
        there = _room(Path(folder.train), folder.bundle, folder.mlflow)
        training = max(0, estimate.training_bytes(config, words) - there)
    return {
        "needed": corpus + training,
        "free": free_bytes(place),
        "where": str(place),
    }


def _room(*places: Path) -> int:
    """What the files in these folders take; a file with two names is counted once."""
    found = {(s.st_dev, s.st_ino): s.st_size for place in places for s in statuses(place)}
    return sum(found.values())


def _time(
    config: RunConfig,
    folder: RunFolder,
    plan: dict[str, Any],
    look: Look | None,
    *,
    measured: bool,
) -> dict[str, Any] | None:
    """How long the rest of the run takes on this machine, by rule or measured."""
    if is_remote(config):
        return None
    cores, words = plan["cores"]["here"], plan["vocabulary"]["words"]
    newest = max((info.step for info in list_checkpoints(folder.checkpoints)), default=0)
    left = max(0, config.train.max_steps - newest) if "train" in plan["pending"] else 0
    rate = estimate.rule_of_thumb(config, words, cores)
    how: dict[str, Any] = {"measured": False, "gflops_per_core": estimate.GFLOPS}
    if measured:
        from elmwright.jobs.planning.measuring import DOCUMENTATION, documentation, measure

        sample = look.sentences if look else ()
        how["text"] = "the sample" if sample else DOCUMENTATION
        found = measure(config, sample or documentation(), words)
        at_once = max(1, min(config.train.processes, cores // config.train.threads))
        rate = found.tokens_per_s * at_once
        how |= {"measured": True, "steps": found.steps, "seconds": found.seconds}
    building = "corpus" in plan["pending"]
    wants_harvest = building and _embedded(config) and not harvest.frozen_parts(folder.corpus)
    took = estimate.duration(
        config,
        cores=cores,
        vocabulary=words,
        tokens_per_s=rate,
        text_bytes=plan["text"]["bytes"] if building else 0,
        heldout_tokens=list(plan["text"]["heldout_sets"].values()),
        steps_left=left,
        harvest_seconds=estimate.HARVEST_SECONDS if wants_harvest else 0.0,
    )
    return {**vars(took), "total": took.total, "steps_left": left, **how}


def _reachable(problems: Problems, config: RunConfig, folder: RunFolder) -> dict[str, Any]:
    """Whether MLflow and the object stores that are named answer; a Ray cluster that does not is a
    problem."""
    found: dict[str, Any] = {}
    if is_remote(config):
        try:
            check_answers(config.cluster.address)
        except OSError as error:
            problems.note(why_unreachable(config.cluster.address, error))
    uri = tracking_uri(config, folder)
    before = len(problems)
    silent = problems.of(check_server, uri)
    answers = silent is None and len(problems) == before
    found["mlflow"] = {"uri": without_secret(uri), "answers": answers, "note": silent or ""}
    places = [folder.root, folder.corpus_dir, *(s.path for s in config.corpus.sources)]
    stores = {"/".join(place.split("/")[:3]) for place in places if files.is_url(place)}
    for store in sorted(stores):
        before = len(problems)
        problems.of(files.exists, f"{store}/.elmwright")
        found[store] = {"answers": len(problems) == before}
    return found
