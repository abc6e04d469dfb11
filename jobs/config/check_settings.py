"""Refuses values out of bounds, and combinations of settings that cannot work.

These checks need nothing but the config. The stages check what depends on the corpus, the cluster
or the disk.
"""

import re
from dataclasses import is_dataclass
from typing import Any, get_type_hints

from elmwright.jobs.config.sections import RunConfig
from elmwright.pipeline.records import BadField
from elmwright.pipeline.storage.files import at

_URL = re.compile(r"([a-z][a-z0-9+]*)://")


def check_settings(config: RunConfig) -> None:
    """Refuse values out of bounds, and combinations of settings that cannot work."""
    _check_bounds(config)
    corpus, model, train = config.corpus, config.model, config.train
    _check_corpus(config)
    if corpus.max_words < corpus.min_words:
        raise BadField("corpus.max_words", "is smaller than corpus.min_words")
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
    own = config.optim.softmax_betas
    if own and (len(own) != 2 or not all(0 <= beta < 1 for beta in own)):
        raise BadField(
            "optim.softmax_betas",
            f"{list(own)}: give none, or two from 0 up to, but not including, 1",
        )
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
    if train.average_steps > train.max_steps:
        raise BadField(
            "train.average_steps",
            f"is {train.average_steps:,}, more than train.max_steps = {train.max_steps:,}, so the "
            "average would never be used; take fewer, or 0 for no average",
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
    if _URL.match(config.run.dir) and not at(config.run.dir).is_url:
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


def _check_bounds(section: Any, prefix: str = "") -> None:
    for name, hint in get_type_hints(type(section), include_extras=True).items():
        value = getattr(section, name)
        if is_dataclass(value):
            _check_bounds(value, f"{prefix}{name}.")
        for bound in getattr(hint, "__metadata__", ()):
            if not bound.allows(value):
                raise BadField(f"{prefix}{name}", f"must be {bound.text}, got {value}")


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
