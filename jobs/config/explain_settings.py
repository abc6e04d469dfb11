"""Every setting with its type, default and meaning, for `elmwright config --explain`.

The meaning is the string under each field of the config's dataclasses. docs/configuration.md is
generated from the same records.
"""

import ast
import dataclasses
import inspect
import json
import typing
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from elmwright.jobs.config.sections import RunConfig
from elmwright.pipeline.records import type_name


@dataclasses.dataclass(frozen=True)
class Setting:
    """One setting, as a user reads about it."""

    key: str
    """section.name."""
    type: str
    default: str
    """As JSON."""
    meaning: str


def explain(cls: Any = RunConfig, prefix: str = "") -> Iterator[Setting]:
    """Every setting of a config dataclass, with the docstring under it as its meaning."""
    meanings = field_docs(cls)
    default = cls()
    for name, hint in typing.get_type_hints(cls).items():
        if dataclasses.is_dataclass(hint):
            yield from explain(hint, f"{prefix}{name}.")
        else:
            value = json.dumps(getattr(default, name), ensure_ascii=False)
            yield Setting(f"{prefix}{name}", type_name(hint), value, meanings[name])


def field_docs(cls: type) -> dict[str, str]:
    """Field name → the string under it in the source of a config dataclass."""
    body = typing.cast(ast.ClassDef, ast.parse(inspect.getsource(cls)).body[0]).body
    docs = {}
    for node, following in pairwise(body):
        match node, following:
            case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                docs[name] = " ".join(text.split())
    return docs
