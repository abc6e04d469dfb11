"""Every setting with its type, default and meaning: what `elmwright config --explain` prints.

The meaning is the string under each field of the config's dataclasses, so that a setting and its
documentation cannot drift apart. docs/configuration.md is made from the same rows.
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
        yield f"{prefix}.{entry.name}", type_name(hint), shown, documents[entry.name]


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
