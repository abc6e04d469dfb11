"""Writes `docs/configuration.md` from the code: `python -m tests.support.docs.configuration`.

The docstring under each field is the only place where a setting is explained. `test_pages.py`
compares the committed page with what this gives, so the page cannot be out of date.
"""

import dataclasses
import json
import typing
from collections.abc import Iterator
from typing import Any

from elmwright.jobs.config.explain_settings import Setting, explain, field_docs
from elmwright.jobs.config.sections import RESUMABLE, TRAINING_SECTIONS, RunConfig
from elmwright.jobs.runbook.target import Target
from elmwright.pipeline.config import Source
from tests.support.places import DOCS

PAGE = DOCS / "configuration.md"
FIXED = {"run", "corpus", "vocab", "shards", *TRAINING_SECTIONS}
"""Sections whose settings may not change when a run is resumed, except those in `MAY_CHANGE`."""
MAY_CHANGE = RESUMABLE | {"run.scratch"}

INTRO = """\
# Configuration

A run is one TOML file with the sections below. A setting that is left out has its default. An
unknown name or a value of the wrong kind is refused, with the nearest valid name.

- `elmwright init` writes a file for your own text.
- `elmwright config --recipe NAME` prints a recipe, to be saved and changed.
- `elmwright check CONFIG --full` prints every setting as a run would use it.
- `--set SECTION.KEY=VALUE` changes a setting for one command.
- A check mark means that the setting may be changed when a run is resumed.

This page is written from the code by `python -m tests.support.docs.configuration`.
"""


def page() -> str:
    """The whole page."""
    return "\n".join([INTRO.rstrip(), *_sections(), *_sources(), *_targets()]) + "\n"


def _sections() -> Iterator[str]:
    classes = {field.name: typing.cast(type, field.type) for field in _fields(RunConfig)}
    tables: dict[str, list[Setting]] = {}
    for setting in explain():
        tables.setdefault(setting.key.rpartition(".")[0], []).append(setting)
    for prefix, settings in tables.items():
        section, _, table = prefix.partition(".")
        cls = classes[section]
        if table:
            cls = typing.get_type_hints(cls)[table]
        yield ""
        yield f"{'###' if table else '##'} {prefix}"
        yield ""
        yield _first(cls)
        yield ""
        yield "| setting | default | kind | on resume | meaning |"
        yield "|---|---|---|---|---|"
        for setting in settings:
            change = "✓" if section not in FIXED or setting.key in MAY_CHANGE else ""
            yield _row(
                f"`{setting.key}`", f"`{setting.default}`", setting.type, change, setting.meaning
            )


def _sources() -> Iterator[str]:
    yield from _heading(
        "Sources", "An entry of `corpus.sources` is a path, or a table with these keys:"
    )
    yield from _options(Source)


def _targets() -> Iterator[str]:
    yield from _heading(
        "Targets",
        "A table of `~/.config/elmwright/targets.toml` names a place to send runs to; its name is "
        "what `--to` takes. The kinds for which an option has a meaning come first.",
    )
    yield from _options(Target, leave_out={"name"})


def _heading(title: str, text: str) -> list[str]:
    return ["", f"## {title}", "", text, ""]


def _options(cls: type, leave_out: frozenset[str] | set[str] = frozenset()) -> Iterator[str]:
    documents = field_docs(cls)
    yield "| key | default | meaning |"
    yield "|---|---|---|"
    for field in _fields(cls):
        if field.name not in leave_out:
            required = field.default is dataclasses.MISSING
            default = "" if required else f"`{json.dumps(field.default)}`"
            yield _row(f"`{field.name}`", default, documents[field.name])


def _fields(cls: Any) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(cls)


def _first(cls: type) -> str:
    """The first paragraph of a class's docstring, on one line."""
    return " ".join((cls.__doc__ or "").split("\n\n")[0].split())


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
