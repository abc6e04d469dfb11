"""Reads a TOML file into a `RunConfig`.

An error names the file, the key, the reason and, for a misspelled key, the nearest valid name.
`check_settings.py` checks the values, and `explain_settings.py` has the meaning of each key.
"""

import dataclasses
import difflib
import hashlib
import json
import re
import tomllib
from pathlib import Path
from typing import Any

from elmwright.jobs.config.check_settings import check_settings
from elmwright.jobs.config.explain_settings import explain
from elmwright.jobs.config.resume_settings import as_meant
from elmwright.jobs.config.sections import CONFIG_VERSION, RunConfig
from elmwright.jobs.secrets.hiding import shown_word
from elmwright.jobs.secrets.in_configs import advise, refuse_secrets
from elmwright.jobs.terminal.wording import did_you_mean
from elmwright.pipeline.config import as_settings
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.records import BadField, UnknownField, from_data, to_data
from elmwright.pipeline.storage.files import at
from elmwright.pipeline.storage.untrusted import read_small

RECIPES = Path(__file__).parent / "recipes"


def recipe_names() -> list[str]:
    """The names of the shipped recipes."""
    return sorted(path.stem for path in RECIPES.glob("*.toml"))


def find_config(name: str) -> Path:
    """The file itself, or the shipped recipe of that name."""
    path = Path(name)
    if path.is_file():
        return path
    recipe = RECIPES / f"{name}.toml"
    if re.fullmatch(r"[\w-]+", name) and recipe.is_file():
        return recipe
    recipes = recipe_names()
    near = did_you_mean(name, [*recipes, *map(str, sorted(path.parent.glob("*.toml")))])
    raise UserError(
        "file-missing",
        f"there is no config file {name!r} and no recipe of that name ({', '.join(recipes)}){near}",
    )


REPLACED = {"train.bf16": 'train.precision = "bf16" or "fp32" has taken its place'}
"""Settings of earlier versions."""
CONFIG_BYTES, NESTED = 1 << 20, 100
"""The largest config file, and the most parts of a dotted key: parsing takes quadratic time."""
_PART = rb"""(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')[ \t]*+"""
_LONG_KEY = re.compile(rb"(?m)(?:^|[\[{,])[ \t]*+(?:%b\.[ \t]*+){%d}" % (_PART, NESTED))
"""A longer key, at the beginning of a line or inside brackets, but not in comments and strings."""


def load_config(name: str, overrides: list[str] | None = None) -> RunConfig:
    """The config of a file or recipe, overridden, checked and resolved."""
    path = find_config(name)
    text = read_small(path, CONFIG_BYTES)
    if _LONG_KEY.search(text):
        raise UserError(
            "setting", f"{path} has a key of more than {NESTED} parts; it is not a config"
        )
    try:
        data = tomllib.loads(text.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UserError("file-unreadable", f"{path} cannot be read: {error}") from error
    except (ValueError, RecursionError) as error:  # also numbers of thousands of digits
        raise UserError("file-unreadable", f"{path} is not valid TOML: {error}") from error
    for override in overrides or []:
        _override(data, override)
    with_overrides = f" with {' '.join(map(shown_word, overrides))}" if overrides else ""
    return config_from(data, f"{path}{with_overrides}")


def config_from(data: dict[str, Any], where: str, *, saved: bool = False) -> RunConfig:
    """A resolved config from parsed TOML, or from one that was `saved` with a run by an earlier
    version and may contain a password, which is refused in new configs."""
    data = as_meant(data) if saved else dict(data)
    if saved:
        advise(data, where)
    else:
        refuse_secrets(data, where)
    version = data.pop("version", CONFIG_VERSION)
    if version != CONFIG_VERSION:
        raise UserError(
            "format",
            f"{where}: version = {version!r:.50}, but this elmwright reads config version "
            f"{CONFIG_VERSION}; use the elmwright the file was written for, or run "
            "'elmwright init' and carry your settings over",
        )
    try:
        config = _resolve(from_data(RunConfig, data))
        check_settings(config)
    except BadField as problem:
        hint = _hint(problem) if isinstance(problem, UnknownField) else ""
        raise UserError("setting", f"{where}: {problem}{hint}") from None
    return config


def to_dict(config: RunConfig) -> dict[str, Any]:
    """The resolved config as plain data, as it is saved with every output."""
    return {"version": CONFIG_VERSION, **to_data(config)}


def config_hash(config: RunConfig) -> str:
    settings = {**to_dict(config), "corpus": as_settings(config.corpus)}
    text = json.dumps(settings, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _override(data: dict[str, Any], override: str) -> None:
    """Apply `--set section.key=value`; the value is TOML, or a bare word treated as a string."""
    key, equals, text = override.partition("=")
    parts = key.strip().split(".")
    if not equals or len(parts) < 2 or not all(parts):
        raise UserError(
            "argument", f"--set {shown_word(override)!r}: write it as section.key=value"
        )
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    table = data
    for part in parts[:-1]:
        table[part] = dict(table[part]) if isinstance(table.get(part), dict) else {}
        table = table[part]
    table[parts[-1]] = value


def _hint(problem: UnknownField) -> str:
    """The name that was probably meant, or all valid ones."""
    if problem.key in REPLACED:
        return f"; {REPLACED[problem.key]}"
    prefix, _, key = problem.key.rpartition(".")
    names = difflib.get_close_matches(key, problem.valid, n=1, cutoff=0.5)
    nearest = [f"{prefix}.{name}" if prefix else name for name in names]
    candidates = nearest or [s.key for s in explain() if s.key.split(".")[-1] == key]
    if candidates:
        return f"; did you mean {candidates[0]}?"
    return f"; valid here: {', '.join(problem.valid)}"


def _resolve(config: RunConfig) -> RunConfig:
    """Replace {name} and {dir}."""
    run = config.run
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", run.name):
        raise BadField("run.name", f"{run.name!r}: use letters, digits, '.', '-' and '_'")
    folder = run.dir.replace("{name}", run.name)
    scratch = run.scratch.replace("{name}", run.name).replace("{dir}", folder)
    if not scratch:
        scratch = f"~/.cache/elmwright/{run.name}" if at(folder).is_url else f"{folder}/scratch"
    model = config.export.name.replace("{name}", run.name)
    return dataclasses.replace(
        config,
        run=dataclasses.replace(run, dir=folder, scratch=scratch),
        export=dataclasses.replace(config.export, name=model),
    )
