"""Refuses values out of range, and combinations of settings that cannot work.

Only what the config alone can tell is here. What needs the corpus, the cluster or the disk is
checked by the stage that knows them.
"""

import re
from typing import Any

from elmwright.jobs.config.sections import RunConfig
from elmwright.model.config import MOST_CHARS
from elmwright.pipeline.config import MOST_STEPS
from elmwright.pipeline.records import BadField
from elmwright.pipeline.storage.files import at

_AT_LEAST_ONE = (
    "corpus.max_document_mb corpus.sentencepiece.size corpus.sentencepiece.sample "
    "corpus.minhash.bands corpus.minhash.rows corpus.minhash.ngram corpus.chunk_mb "
    "vocab.min_count shards.block_steps shards.blocks_per_shard model.dim "
    "model.projection_dim model.n_layers model.char_dim train.processes train.threads train.lanes "
    "train.window train.max_steps train.negatives eval.max_tokens eval.lanes "
    "checkpoint.every_steps checkpoint.keep_last tracking.every_steps train.accumulate "
    "train.max_bad_steps train.timeout_s"
).split()
_NOT_NEGATIVE = (
    "run.seed model.n_highway model.cell_clip model.proj_clip optim.clip_norm optim.weight_decay "
    "optim.warmup_steps train.max_restarts train.hold_steps train.cache_mb eval.every_steps "
    "eval.patience checkpoint.keep_every_steps cluster.cpus cluster.wait_minutes corpus.min_words "
    "corpus.min_sentence_words corpus.decontaminate_ngram corpus.gopher_quality.min_words "
    "corpus.gopher_quality.min_stop_words corpus.c4.min_line_words corpus.c4.min_sentences"
).split()
_ABOVE_ZERO = ["optim.lr", "optim.initial_accumulator", "optim.eps"]


def check_settings(config: RunConfig) -> None:
    """Values out of range, and combinations that cannot work."""

    def value(key: str) -> Any:
        found: Any = config
        for name in key.split("."):
            found = getattr(found, name)
        return found

    for keys, low, words in (
        (_AT_LEAST_ONE, 1, "at least 1"),
        (_NOT_NEGATIVE, 0, "0 or more"),
    ):
        for key in keys:
            if value(key) < low:
                raise BadField(key, f"must be {words}, got {value(key)}")
    for key in _ABOVE_ZERO:
        if not value(key) > 0:
            raise BadField(key, f"must be above 0, got {value(key)}")

    corpus, model, train = config.corpus, config.model, config.train
    _check_corpus(config)
    if corpus.max_words < corpus.min_words:
        raise BadField("corpus.max_words", "is smaller than corpus.min_words")
    if not 0 <= corpus.min_letter_share <= 1:
        raise BadField("corpus.min_letter_share", "must be from 0 to 1")
    if config.vocab.max_size < 4:
        raise BadField("vocab.max_size", "must be at least 4: <S>, </S>, <UNK> and a word")
    if model.max_chars < 3:
        raise BadField("model.max_chars", "must be at least 3: two marks and a character")
    if model.max_chars > MOST_CHARS:
        raise BadField("model.max_chars", f"must be at most {MOST_CHARS}: no word is longer")
    if not model.filters:
        raise BadField("model.filters", "is empty; give [width, number] pairs")
    for width, number in model.filters:
        if width < 1 or number < 1 or width > model.max_chars:
            raise BadField(
                "model.filters",
                f"[{width}, {number}]: a width is from 1 to model.max_chars, a number at least 1",
            )
    if not all(0 <= beta < 1 for beta in config.optim.betas):
        raise BadField("optim.betas", "must both be from 0 up to, but not including, 1")
    if not 0 <= train.dropout < 1:
        raise BadField("train.dropout", "must be from 0 up to, but not including, 1")
    if train.processes > train.lanes:
        raise BadField(
            "train.processes", f"is {train.processes}, more than train.lanes = {train.lanes}"
        )
    if train.lanes % train.processes:
        raise BadField(
            "train.lanes",
            f"{train.lanes} lanes cannot be shared evenly by {train.processes} processes; "
            f"take {train.lanes // train.processes * train.processes or train.processes}",
        )
    if config.shards.block_steps > MOST_STEPS:
        raise BadField(
            "shards.block_steps", f"must be at most {MOST_STEPS:,}: blocks are in memory"
        )
    if config.shards.block_steps % train.window:
        raise BadField(
            "shards.block_steps",
            f"{config.shards.block_steps} is not a multiple of train.window = {train.window}",
        )
    if config.eval.lanes % train.processes:
        raise BadField(
            "eval.lanes",
            f"{config.eval.lanes} lanes cannot be shared evenly by {train.processes} processes",
        )
    if re.match(r"[a-z][a-z0-9+]*://", config.run.dir) and not at(config.run.dir).is_url:
        raise BadField(
            "run.dir", f"{config.run.dir!r} is neither a folder nor an s3:// or gs:// URL"
        )
    if at(config.run.scratch).is_url:
        raise BadField("run.scratch", "is a URL; name a folder on the machine's own disk")
    uri = config.tracking.uri
    if uri and not re.match(r"(https?|sqlite|postgresql|mysql|mssql)(\+\w+)?://", uri):
        raise BadField(
            "tracking.uri",
            f"{uri!r} is not an MLflow server (http://…) or database (sqlite:///…)",
        )
    remote = config.cluster.address not in ("", "local")
    if remote and (not uri or uri.startswith("sqlite")):
        raise BadField(
            "tracking.uri",
            f"a SQLite file cannot serve a remote cluster ({config.cluster.address}); "
            "set it to your MLflow server, for example http://mlflow:5000",
        )
    if not re.fullmatch(r"\w[\w .-]{0,199}", config.export.name):
        raise BadField("export.name", "a registered model's name has no '/', ':' or other signs")
    if re.fullmatch(r"v?\d+|latest", config.export.alias, re.IGNORECASE):
        raise BadField("export.alias", "names like v9 and latest are reserved by MLflow")
    if not re.fullmatch(r"\w[\w-]{0,99}", config.export.alias):
        raise BadField("export.alias", "an alias has letters, digits, '-' and '_'")


_URL = re.compile(r"([a-z][a-z0-9+]*)://")


def _check_corpus(config: RunConfig) -> None:
    """Sources, held-out sets and where the corpus goes."""
    corpus = config.corpus
    if not corpus.sources:
        raise BadField("corpus.sources", "is empty; name the files, folders or globs to read")
    for source in corpus.sources:
        if not source.path:
            raise BadField("corpus.sources", "a source needs a path")
        if not 0 <= source.weight <= 100:
            raise BadField("corpus.sources", f"{source.path}: a weight is from 0 to 100")
    paths = [
        ("corpus.dir", corpus.dir),
        *(("corpus.sources", source.path) for source in corpus.sources),
        *(("corpus.decontaminate", path) for path in corpus.decontaminate),
    ]
    share = 0.0
    for name, entry in corpus.heldout.items():
        key = f"corpus.heldout.{name}"
        if name == "train" or not re.fullmatch(r"[a-z0-9_]+", name):
            raise BadField(key, "a held-out name has small letters, digits and '_' only")
        if isinstance(entry, float):
            share += entry
            if not 0 <= entry < 1 or share >= 1:
                raise BadField(key, "shares are from 0 up to, but not including, 1, all together")
        elif not entry:
            raise BadField(key, "is empty; name the files to read")
        else:
            paths += [(key, path) for path in entry]
    for key, path in paths:
        match = _URL.match(path)
        if match and match[1] not in ("s3", "gs"):
            raise BadField(key, f"{path}: only s3:// and gs:// URLs are read; fetch it to a disk")
    if corpus.cut_documents and corpus.cut_documents < 500:
        raise BadField(
            "corpus.cut_documents",
            f"must be 0, or at least 500 characters, got {corpus.cut_documents}",
        )
    if not 0 < corpus.language_threshold <= 1:
        raise BadField("corpus.language_threshold", "must be above 0 and at most 1")
    if corpus.minhash.bands > 255:
        raise BadField("corpus.minhash.bands", "must be at most 255")
