"""Describes what a run will cost and what will go wrong, before it is started: `elmwright check`.

`describe` gathers the facts as a `Plan` (plan_record.py), `plan_warnings.py` derives warnings from
them, and `plan_text.py` turns them into a few lines of text.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from elmwright.jobs.checkpoints.checkpoint import list_checkpoints
from elmwright.jobs.cluster.connection import check_reachable, is_remote, why_unreachable
from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.config.toml_file import config_hash
from elmwright.jobs.planning import estimate
from elmwright.jobs.planning.plan_record import (
    BaseModel,
    Cores,
    Disk,
    MlflowServer,
    Parameters,
    Plan,
    Processor,
    Reachable,
    Sample,
    SourceSize,
    Speed,
    Store,
    TextSize,
    Time,
    Vocabulary,
)
from elmwright.jobs.planning.plan_warnings import warnings_of
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.rundir.stage_names import STAGES
from elmwright.jobs.secrets.hiding import hide, without_secret
from elmwright.jobs.stages.corpus_inputs import find_heldout, find_train
from elmwright.jobs.stages.places import check_places
from elmwright.jobs.stages.preflight import preflight
from elmwright.jobs.stages.problems import Problems
from elmwright.jobs.stages.stage import Run, find_run
from elmwright.jobs.stages.workflow import ALL_STAGES, pending
from elmwright.jobs.terminal.wording import size
from elmwright.jobs.tracking.check_server import check_server
from elmwright.jobs.tracking.tracker import tracking_uri
from elmwright.jobs.upkeep.list_runs import statuses
from elmwright.model.config import shape_problem
from elmwright.pipeline.build.corpus_folder import DISK_FACTOR
from elmwright.pipeline.build.preview import Preview, preview_text, text_bytes
from elmwright.pipeline.config import EMBEDDED
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.format.manifest import Manifest, finished_corpus
from elmwright.pipeline.progress import plural
from elmwright.pipeline.reading import harvest
from elmwright.pipeline.reading.sources import SourceFile
from elmwright.pipeline.storage.files import at


def describe(config: RunConfig, *, measure: bool = False) -> Plan:
    """The facts, problems and warnings that are known about a run before it starts."""
    folder = RunFolder.of(config)
    run = find_run(config, folder)
    config = run.config
    stages = _pending(run)
    manifest = None if "corpus" in stages else finished_corpus(folder.corpus)
    problems = preflight(run, ALL_STAGES, stages)
    if not stages:
        check_places(problems, config, folder)
    train = [] if manifest else find_train(Problems(), config.corpus, folder.corpus)
    preview = _preview(problems, config, train)
    vocabulary = Vocabulary(_vocabulary(config, manifest), known=manifest is not None)
    text = _text(config, manifest, preview, train)
    cores = len(os.sched_getaffinity(0))
    time = None
    if not is_remote(config):
        words = vocabulary.words
        if measure:
            speed = _measured(config, preview, words, cores)
        else:
            speed = Speed(estimate.rule_of_thumb(config, words, cores))
        time = _time(config, folder, stages, speed, text, words, cores)
    fits = not shape_problem(config.model, run.base.shape or config.model)
    base = run.base.folder if fits else None
    parts = config.model.parameter_counts()
    softmax = vocabulary.words * (config.model.projection_dim + 1)
    parameters = Parameters(parts["encoder"], parts["lstm"], softmax)
    plan = Plan(
        config=config,
        hash=config_hash(config),
        parameters=parameters,
        sizes=_sizes(config, folder, manifest, vocabulary, parameters),
        sources=_sources(config, train),
        sample=_sample(preview),
        vocabulary=vocabulary,
        text=text,
        cores=Cores(config.train.processes, config.train.threads, cores),
        processor=_processor(config),
        cluster=config.cluster.address,
        pending=tuple(stages),
        disk=_disk(config, folder, stages, text, vocabulary.words),
        time=time,
        reachable=_reachable(problems, config, folder),
        init_from=BaseModel(config.train.init_from, str(base or "")),
        problems=tuple(problems),
    )
    return replace(plan, warnings=tuple(warnings_of(plan)))


def _processor(config: RunConfig) -> Processor | None:
    if is_remote(config) or config.train.device == "cuda":
        return None
    from elmwright.jobs.planning.measuring import processor

    return processor(config)


def _pending(run: Run) -> Sequence[str]:
    """The names of the first stage that is not done and of all stages after it."""
    try:
        return [stage.name for stage in pending(run, ALL_STAGES)]
    except (OSError, UserError):
        return STAGES  # a store that does not answer is reported by the next check


def _sizes(
    config: RunConfig,
    folder: RunFolder,
    manifest: Manifest | None,
    vocabulary: Vocabulary,
    parameters: Parameters,
) -> dict[str, str]:
    """The sizes of the model, the run and its text, each as a phrase to show."""
    up_to = "" if manifest else "up to "
    train, tokens = config.train, config.train.tokens
    checkpoint = estimate.checkpoint_bytes(config, vocabulary.words)
    sizes = {
        "parameters": f"{parameters.encoder + parameters.lstm:,} (encoder {parameters.encoder:,}, "
        f"LSTMs {parameters.lstm:,}) + softmax {up_to}{parameters.softmax:,} for "
        f"{up_to}{vocabulary.words:,} words",
        "checkpoint": f"{up_to}{size(checkpoint)}",
        "step": f"{tokens:,} tokens ({plural(train.lanes, 'lane')} × {train.window}), "
        f"{plural(train.processes, 'process', 'processes')} × "
        f"{plural(train.lanes // train.processes, 'lane')}",
        "training": f"{plural(train.max_steps, 'step')}, {train.max_steps * tokens:,} tokens",
        "run folder": folder.root,
        "epoch": "unknown until the corpus is built ('elmwright corpus')",
    }
    if manifest:
        split = manifest.splits["train"]
        epoch = split.blocks * manifest.block_steps
        sizes["epoch"] = (
            f"{split.steps:,} tokens in {plural(split.blocks, 'block')} = "
            f"{epoch / tokens:,.1f} steps; "
            f"the run has {train.max_steps * tokens / epoch:.2f} epochs"
        )
    return sizes


def _vocabulary(config: RunConfig, manifest: Manifest | None) -> int:
    """The number of words in the vocabulary, or the most that it may have."""
    if manifest:
        return manifest.vocab.size
    if not config.vocab.file:
        return config.vocab.max_size
    try:
        return at(config.vocab.file).read_bytes().count(b"\n")
    except (OSError, UserError):
        return config.vocab.max_size  # preflight reports the reason


def _sources(config: RunConfig, train: list[SourceFile]) -> tuple[SourceSize, ...]:
    rows = []
    for index, source in enumerate(config.corpus.sources):
        sizes = [file.bytes for file in train if file.source == index]
        rows.append(SourceSize(hide(source.path), len(sizes), sum(sizes)))
    return tuple(rows)


def _preview(problems: Problems, config: RunConfig, train: list[SourceFile]) -> Preview | None:
    """A preview of the text, or None without text; adds a problem if the text cannot be used."""
    if not train:
        return None
    preview = problems.catch(preview_text, train, config.corpus, config.run.seed)
    if preview is None:
        return None
    broken = sum(preview.broken.values())
    if not preview.documents:
        problems.note("the sources hold no text; check corpus.sources")
    elif broken == preview.documents:
        most_common = max(preview.broken, key=preview.broken.__getitem__)
        reason = f"({most_common}) {preview.detail}".rstrip()
        problems.note(
            f"none of {plural(broken, 'document')} can be read {reason}; check corpus.sources"
        )
    elif preview.kept == 0:
        problems.note(
            "the rules keep nothing of the sample; 'elmwright corpus CONFIG --sample 1000' shows "
            "which rule drops what"
        )
    pieces = config.corpus.sentencepiece
    marks = 4 + 256 * pieces.byte_fallback
    if config.corpus.tokenizer == "sentencepiece" and preview.alphabet + marks > pieces.size:
        problems.note(
            f"corpus.sentencepiece.size = {pieces.size} is less than the {preview.alphabet} "
            f"characters of the sample plus {marks} marks; increase it"
        )
    return preview


def _sample(preview: Preview | None) -> Sample | None:
    if preview is None:
        return None
    return Sample(
        documents=preview.documents,
        broken=preview.broken,
        whole=preview.whole,
        kept_words=preview.kept,
        languages=preview.languages,
        longest_characters=preview.longest,
    )


def _text(
    config: RunConfig, manifest: Manifest | None, preview: Preview | None, train: list[SourceFile]
) -> TextSize:
    """The amount of text, known from the corpus or estimated from the sample."""
    if manifest:
        splits = {name: split.steps for name, split in manifest.splits.items()}
        tokens = splits.pop("train")
        return TextSize(tokens, sum(splits.values()), splits, bytes=0, known=True)
    entries = config.corpus.heldout.items()
    shares = {name: entry for name, entry in entries if isinstance(entry, float)}
    tokens, n_bytes = preview.steps if preview else 0, sum(map(text_bytes, train))
    if _reads_docstrings(config) and not train:
        tokens, n_bytes = tokens + estimate.HARVEST_TOKENS, n_bytes + estimate.HARVEST_BYTES
    heldout = {name: round(tokens * share) for name, share in shares.items()}
    for file in find_heldout(Problems(), config.corpus) if n_bytes else ():
        more = round(text_bytes(file) * tokens / n_bytes)
        heldout[file.split] = heldout.get(file.split, 0) + more
    tokens -= round(tokens * sum(shares.values()))
    return TextSize(tokens, sum(heldout.values()), heldout, n_bytes, known=False)


def _reads_docstrings(config: RunConfig) -> bool:
    return any(source.path == EMBEDDED for source in config.corpus.sources)


def _disk(
    config: RunConfig, folder: RunFolder, stages: Sequence[str], text: TextSize, words: int
) -> Disk:
    """The bytes that a run still has to write, and the free bytes of the disk it writes to."""
    place = folder.scratch if folder.is_in_store else Path(folder.root)
    corpus = training = 0
    if not at(folder.corpus).is_url:
        corpus = max(0, round(DISK_FACTOR * text.bytes) - _bytes_in(Path(folder.corpus)))
    if stages and not folder.is_in_store:
        used = _bytes_in(Path(folder.train), folder.bundle, folder.mlflow)
        training = max(0, estimate.training_bytes(config, words) - used)
    return Disk(corpus + training, at(place).free_bytes(), str(place))


def _bytes_in(*places: Path) -> int:
    """The bytes of all files in these folders; a file with two names is counted once."""
    sizes = {(s.st_dev, s.st_ino): s.st_size for place in places for s in statuses(place)}
    return sum(sizes.values())


def _measured(config: RunConfig, preview: Preview | None, words: int, cores: int) -> Speed:
    """The speed of training on this machine, measured with one process."""
    from elmwright.jobs.planning.measuring import DOCUMENTATION, documentation, measure

    sample = preview.sentences if preview else ()
    one_process = measure(config, sample or documentation(), words)
    at_once = max(1, min(config.train.processes, cores // config.train.threads))
    return replace(
        one_process,
        tokens_per_s=one_process.tokens_per_s * at_once,
        text="the sample" if sample else DOCUMENTATION,
    )


def _time(
    config: RunConfig,
    folder: RunFolder,
    stages: Sequence[str],
    speed: Speed,
    text: TextSize,
    words: int,
    cores: int,
) -> Time:
    """The time that the rest of the run takes on this machine at this speed."""
    newest = max((info.step for info in list_checkpoints(folder.checkpoints)), default=0)
    steps_left = max(0, config.train.max_steps - newest) if "train" in stages else 0
    builds_corpus = "corpus" in stages
    harvests = (
        builds_corpus and _reads_docstrings(config) and not harvest.frozen_parts(folder.corpus)
    )
    return estimate.duration(
        config,
        speed,
        cores=cores,
        vocabulary=words,
        text_bytes=text.bytes if builds_corpus else 0,
        heldout_tokens=list(text.heldout_sets.values()),
        steps_left=steps_left,
        harvest_seconds=estimate.HARVEST_SECONDS if harvests else 0.0,
    )


def _reachable(problems: Problems, config: RunConfig, folder: RunFolder) -> Reachable:
    """Whether MLflow and the object stores answer; adds a problem if a Ray cluster does not."""
    if is_remote(config):
        try:
            check_reachable(config.cluster.address)
        except OSError as error:
            problems.note(why_unreachable(config.cluster.address, error), "cluster-unreachable")
    uri = tracking_uri(config, folder)
    before = len(problems)
    note = problems.catch(check_server, uri)
    answers = note is None and len(problems) == before
    mlflow = MlflowServer(without_secret(uri), answers, note or "")
    places = [folder.root, folder.corpus_dir, *(s.path for s in config.corpus.sources)]
    stores = {}
    for store in sorted({"/".join(place.split("/")[:3]) for place in places if at(place).is_url}):
        before = len(problems)
        problems.catch(at(f"{store}/.elmwright").exists)
        stores[store] = Store(len(problems) == before)
    return Reachable(mlflow, stores)
