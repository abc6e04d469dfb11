"""Reads a TOML file into a `RunConfig`, and says exactly what is wrong when it cannot.

One error names the file, the key, the reason and, for a misspelled key, the nearest valid name.
Checks that need only the config are here; those that need the corpus, the cluster or the disk
are made by the stage that knows them.
"""

import ast
import dataclasses
import difflib
import hashlib
import inspect
import json
import math
import re
import tomllib
import types
import typing
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from elmwright.jobs.config.sections import CONFIG_VERSION, RunConfig
from elmwright.jobs.secrets.hiding import shown_word
from elmwright.jobs.secrets.in_configs import advise, refuse_secrets
from elmwright.jobs.terminal.wording import did_you_mean
from elmwright.model.config import MOST_CHARS
from elmwright.pipeline.config import Source, as_settings
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.format.block import MOST_STEPS
from elmwright.pipeline.storage.files import is_url
from elmwright.pipeline.storage.untrusted import read_small

RECIPES = Path(__file__).parent / "recipes"


def find_config(name: str) -> Path:
    """The file itself, or the shipped recipe of that name."""
    path = Path(name)
    if path.is_file():
        return path
    recipe = RECIPES / f"{name}.toml"
    if re.fullmatch(r"[\w-]+", name) and recipe.is_file():
        return recipe
    recipes = sorted(p.stem for p in RECIPES.glob("*.toml"))
    near = did_you_mean(name, [*recipes, *map(str, sorted(path.parent.glob("*.toml")))])
    raise UserError(
        f"there is no config file {name!r} and no recipe of that name ({', '.join(recipes)}){near}"
    )


CONFIG_BYTES, NESTED = 1 << 20, 100
"""The largest config file, and the longest dotted key, which the parser takes ever longer for."""
_PART = rb"""(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')[ \t]*+"""
_LONG_KEY = re.compile(rb"(?m)(?:^|[\[{,])[ \t]*+(?:%b\.[ \t]*+){%d}" % (_PART, NESTED))
"""A longer one, at the beginning of a line or inside brackets. Dots in comments and texts are not
counted."""


def load_config(name: str, overrides: list[str] | None = None) -> RunConfig:
    """Read, override, check and resolve the config that `name` stands for."""
    path = find_config(name)
    text = read_small(path, CONFIG_BYTES)
    if _LONG_KEY.search(text):
        raise UserError(f"{path} has a key of more than {NESTED} parts; it is no config")
    try:
        data = tomllib.loads(text.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    except (ValueError, RecursionError) as error:  # also numbers of thousands of digits
        raise UserError(f"{path} is not valid TOML: {error}") from error
    for override in overrides or []:
        _override(data, override)
    said = f" with {' '.join(map(shown_word, overrides))}" if overrides else ""
    return config_from(data, f"{path}{said}")


def config_from(data: dict[str, Any], where: str, *, saved: bool = False) -> RunConfig:
    """Build a resolved config from parsed TOML, or from one that was `saved` with a run: that may
    hold a password, which nobody may write into a config today."""
    data = dict(data)
    if saved:
        advise(data, where)
    else:
        refuse_secrets(data, where)
    version = data.pop("version", CONFIG_VERSION)
    if version != CONFIG_VERSION:
        raise UserError(
            f"{where}: version = {version!r:.50}, but this elmwright reads config version "
            f"{CONFIG_VERSION}; use the elmwright the file was written for, or run "
            "'elmwright init' and carry your settings over"
        )
    try:
        config: RunConfig = _build(RunConfig, data, "")
        config = _resolve(config)
        _check(config)
    except _BadKey as problem:
        raise UserError(f"{where}: {problem.key}: {problem.reason}") from None
    return config


def to_dict(config: RunConfig) -> dict[str, Any]:
    """The resolved config as plain data (what is saved with every output)."""
    data: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(config)))
    return {"version": CONFIG_VERSION, **data}


def config_hash(config: RunConfig) -> str:
    settings = {**to_dict(config), "corpus": as_settings(config.corpus)}
    text = json.dumps(settings, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


class _BadKey(Exception):  # noqa: N818 - never leaves this file
    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"{key}: {reason}")
        self.key, self.reason = key, reason


def _override(data: dict[str, Any], override: str) -> None:
    """Apply `--set section.key=value`; the value is TOML, or a bare word taken as text."""
    key, equals, text = override.partition("=")
    parts = key.strip().split(".")
    if not equals or len(parts) < 2 or not all(parts):
        raise UserError(f"--set {shown_word(override)!r}: write it as section.key=value")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    table = data
    for part in parts[:-1]:
        table[part] = dict(table[part]) if isinstance(table.get(part), dict) else {}
        table = table[part]
    table[parts[-1]] = value


def _build(cls: type, data: dict[str, Any], prefix: str) -> Any:
    hints = typing.get_type_hints(cls)
    for key in data:
        if key not in hints:
            close = difflib.get_close_matches(key, hints, n=1, cutoff=0.5)
            elsewhere = [full for full in _all_keys() if full.split(".")[-1] == key]
            hint = f"; did you mean {prefix}{close[0]}?" if close else ""
            if not close and elsewhere:
                hint = f"; did you mean {elsewhere[0]}?"
            if not hint:
                hint = f"; valid here: {', '.join(hints)}"
            raise _BadKey(prefix + key, f"unknown key{hint}")
    values = {key: _convert(value, hints[key], prefix + key) for key, value in data.items()}
    return cls(**values)


def _convert(value: Any, hint: Any, key: str) -> Any:
    """Turn a TOML value into the field's type, or say what was expected."""
    if type(value) is int and abs(value) >= 1 << 63:  # as TOML itself says
        raise _BadKey(key, "expected a number of at most 18 digits")
    if hint is Source and isinstance(value, str):
        return Source(path=value)
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, dict):
            raise _BadKey(key, f"expected {_name(hint)}, got {value!r}")
        return _build(typing.cast(type, hint), value, key + ".")
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType:
        is_list = isinstance(value, list | tuple)
        chosen = next(a for a in arguments if (typing.get_origin(a) is tuple) == is_list)
        return _convert(value, chosen, key)
    if origin is Literal:
        if value not in arguments:
            close = difflib.get_close_matches(str(value), arguments, n=1, cutoff=0.4)
            nearest = f"; did you mean {close[0]!r}?" if close else ""
            choices = ", ".join(repr(a) for a in arguments)
            raise _BadKey(key, f"expected one of {choices}, got {value!r}{nearest}")
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise _BadKey(key, f"expected {_name(hint)}, got {value!r}")
        if arguments[-1] is Ellipsis:
            return tuple(_convert(item, arguments[0], key) for item in value)
        if len(value) != len(arguments):
            raise _BadKey(key, f"expected {_name(hint)}, got {value!r}")
        return tuple(_convert(item, a, key) for item, a in zip(value, arguments, strict=True))
    if origin is dict:
        if not isinstance(value, dict):
            raise _BadKey(key, f"expected {_name(hint)}, got {value!r}")
        return {str(k): _convert(v, arguments[1], f"{key}.{k}") for k, v in value.items()}
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint is float and isinstance(value, float) and not math.isfinite(value):
        raise _BadKey(key, f"expected a number, got {value!r}")
    if type(value) is not hint:
        raise _BadKey(key, f"expected {_name(hint)}, got {value!r}")
    return value


_NAMES = {
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    str: ("a string", "strings"),
    bool: ("true or false", "true or false"),
}


def _name(hint: Any, *, many: bool = False) -> str:
    """A type as a user would say it."""
    if hint is Source:
        return "paths or tables with a path" if many else "a path or a table with a path"
    if dataclasses.is_dataclass(hint):
        return "tables" if many else "a table"
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is types.UnionType:
        return " or ".join(_name(argument, many=many) for argument in arguments)
    if typing.get_origin(hint) is Literal:
        return " | ".join(str(argument) for argument in arguments)
    if not isinstance(hint, types.GenericAlias):
        return _NAMES[hint][many]
    if typing.get_origin(hint) is dict:
        return f"a table of {_name(arguments[1], many=True)}"
    kind = "list" if arguments[-1] is Ellipsis else "pair"
    start = f"{kind}s" if many else f"a {kind}"
    return f"{start} of {_name(arguments[0], many=True)}"


def _resolve(config: RunConfig) -> RunConfig:
    """Fill {name} and {dir} in."""
    run = config.run
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", run.name):
        raise _BadKey("run.name", f"{run.name!r}: use letters, digits, '.', '-' and '_'")
    folder = run.dir.replace("{name}", run.name)
    scratch = run.scratch.replace("{name}", run.name).replace("{dir}", folder)
    if not scratch:
        scratch = f"~/.cache/elmwright/{run.name}" if is_url(folder) else f"{folder}/scratch"
    model = config.export.name.replace("{name}", run.name)
    return dataclasses.replace(
        config,
        run=dataclasses.replace(run, dir=folder, scratch=scratch),
        export=dataclasses.replace(config.export, name=model),
    )


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


def _check(config: RunConfig) -> None:
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
                raise _BadKey(key, f"must be {words}, got {value(key)}")
    for key in _ABOVE_ZERO:
        if not value(key) > 0:
            raise _BadKey(key, f"must be above 0, got {value(key)}")

    corpus, model, train = config.corpus, config.model, config.train
    _check_corpus(config)
    if corpus.max_words < corpus.min_words:
        raise _BadKey("corpus.max_words", "is smaller than corpus.min_words")
    if not 0 <= corpus.min_letter_share <= 1:
        raise _BadKey("corpus.min_letter_share", "must be from 0 to 1")
    if config.vocab.max_size < 4:
        raise _BadKey("vocab.max_size", "must be at least 4: <S>, </S>, <UNK> and a word")
    if model.max_chars < 3:
        raise _BadKey("model.max_chars", "must be at least 3: two marks and a character")
    if model.max_chars > MOST_CHARS:
        raise _BadKey("model.max_chars", f"must be at most {MOST_CHARS}: no word is longer")
    if not model.filters:
        raise _BadKey("model.filters", "is empty; give [width, number] pairs")
    for width, number in model.filters:
        if width < 1 or number < 1 or width > model.max_chars:
            raise _BadKey(
                "model.filters",
                f"[{width}, {number}]: a width is from 1 to model.max_chars, a number at least 1",
            )
    if not all(0 <= beta < 1 for beta in config.optim.betas):
        raise _BadKey("optim.betas", "must both be from 0 up to, but not including, 1")
    if not 0 <= train.dropout < 1:
        raise _BadKey("train.dropout", "must be from 0 up to, but not including, 1")
    if train.processes > train.lanes:
        raise _BadKey(
            "train.processes", f"is {train.processes}, more than train.lanes = {train.lanes}"
        )
    if train.lanes % train.processes:
        raise _BadKey(
            "train.lanes",
            f"{train.lanes} lanes cannot be shared evenly by {train.processes} processes; "
            f"take {train.lanes // train.processes * train.processes or train.processes}",
        )
    if config.shards.block_steps > MOST_STEPS:
        raise _BadKey("shards.block_steps", f"must be at most {MOST_STEPS:,}: blocks are in memory")
    if config.shards.block_steps % train.window:
        raise _BadKey(
            "shards.block_steps",
            f"{config.shards.block_steps} is not a multiple of train.window = {train.window}",
        )
    if config.eval.lanes % train.processes:
        raise _BadKey(
            "eval.lanes",
            f"{config.eval.lanes} lanes cannot be shared evenly by {train.processes} processes",
        )
    if re.match(r"[a-z][a-z0-9+]*://", config.run.dir) and not is_url(config.run.dir):
        raise _BadKey(
            "run.dir", f"{config.run.dir!r} is neither a folder nor an s3:// or gs:// URL"
        )
    if is_url(config.run.scratch):
        raise _BadKey("run.scratch", "is a URL; name a folder on the machine's own disk")
    uri = config.tracking.uri
    if uri and not re.match(r"(https?|sqlite|postgresql|mysql|mssql)(\+\w+)?://", uri):
        raise _BadKey(
            "tracking.uri",
            f"{uri!r} is not an MLflow server (http://…) or database (sqlite:///…)",
        )
    remote = config.cluster.address not in ("", "local")
    if remote and (not uri or uri.startswith("sqlite")):
        raise _BadKey(
            "tracking.uri",
            f"a SQLite file cannot serve a remote cluster ({config.cluster.address}); "
            "set it to your MLflow server, for example http://mlflow:5000",
        )
    if not re.fullmatch(r"\w[\w .-]{0,199}", config.export.name):
        raise _BadKey("export.name", "a registered model's name has no '/', ':' or other signs")
    if re.fullmatch(r"v?\d+|latest", config.export.alias, re.IGNORECASE):
        raise _BadKey("export.alias", "names like v9 and latest are reserved by MLflow")
    if not re.fullmatch(r"\w[\w-]{0,99}", config.export.alias):
        raise _BadKey("export.alias", "an alias has letters, digits, '-' and '_'")


_URL = re.compile(r"([a-z][a-z0-9+]*)://")


def _check_corpus(config: RunConfig) -> None:
    """Sources, held-out sets and where the corpus goes."""
    corpus = config.corpus
    if not corpus.sources:
        raise _BadKey("corpus.sources", "is empty; name the files, folders or globs to read")
    for source in corpus.sources:
        if not source.path:
            raise _BadKey("corpus.sources", "a source needs a path")
        if not 0 <= source.weight <= 100:
            raise _BadKey("corpus.sources", f"{source.path}: a weight is from 0 to 100")
    paths = [
        ("corpus.dir", corpus.dir),
        *(("corpus.sources", source.path) for source in corpus.sources),
        *(("corpus.decontaminate", path) for path in corpus.decontaminate),
    ]
    share = 0.0
    for name, entry in corpus.heldout.items():
        key = f"corpus.heldout.{name}"
        if name == "train" or not re.fullmatch(r"[a-z0-9_]+", name):
            raise _BadKey(key, "a held-out name has small letters, digits and '_' only")
        if isinstance(entry, float):
            share += entry
            if not 0 <= entry < 1 or share >= 1:
                raise _BadKey(key, "shares are from 0 up to, but not including, 1, all together")
        elif not entry:
            raise _BadKey(key, "is empty; name the files to read")
        else:
            paths += [(key, path) for path in entry]
    for key, path in paths:
        match = _URL.match(path)
        if match and match[1] not in ("s3", "gs"):
            raise _BadKey(key, f"{path}: only s3:// and gs:// URLs are read; fetch it to a disk")
    if corpus.cut_documents and corpus.cut_documents < 500:
        raise _BadKey(
            "corpus.cut_documents",
            f"must be 0, or at least 500 characters, got {corpus.cut_documents}",
        )
    if not 0 < corpus.language_threshold <= 1:
        raise _BadKey("corpus.language_threshold", "must be above 0 and at most 1")
    if corpus.minhash.bands > 255:
        raise _BadKey("corpus.minhash.bands", "must be at most 255")


def _all_keys() -> Iterator[str]:
    yield from (key for key, _, _, _ in explain())


def explain() -> Iterator[tuple[str, str, str, str]]:
    """(key, type, default, what it means) of every setting, from the docstrings under them."""
    for section in dataclasses.fields(RunConfig):
        yield from _explain(typing.cast(Any, section.type), section.name)


def _explain(cls: Any, prefix: str) -> Iterator[tuple[str, str, str, str]]:
    documents = field_docs(cls)
    hints = typing.get_type_hints(cls)
    default = cls()
    for entry in dataclasses.fields(cls):
        hint = hints[entry.name]
        if dataclasses.is_dataclass(hint):
            yield from _explain(hint, f"{prefix}.{entry.name}")
            continue
        shown = json.dumps(getattr(default, entry.name), ensure_ascii=False)
        yield f"{prefix}.{entry.name}", _name(hint), shown, documents[entry.name]


def field_docs(cls: type) -> dict[str, str]:
    """Field name → the string under it in the source of a config dataclass."""
    body = typing.cast(ast.ClassDef, ast.parse(inspect.getsource(cls)).body[0]).body
    found = {}
    for node, following in pairwise(body):
        if (
            isinstance(node, ast.AnnAssign)
            and isinstance(node.target, ast.Name)
            and isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
        ):
            found[node.target.id] = " ".join(str(following.value.value).split())
    return found
