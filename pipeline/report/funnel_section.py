"""The part of the report to tune by: what each rule dropped, examples of it, and its setting.

Rules bear the names of their settings, so the setting beside a rule is found in the manifest's
config rather than listed here once more; only rules with other names need a line in `_KNOBS`.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from elmwright.pipeline.format.manifest import FunnelStep, Manifest
from elmwright.pipeline.report import charts
from elmwright.pipeline.report.page import (
    compact,
    details,
    left_out,
    note,
    number,
    percent,
    ratio,
    shown,
    table,
)
from elmwright.pipeline.report.statistics import EXAMPLE_CHARS, EXAMPLES, Example, Statistics

MAX_RULES = 50
"""Rules that are shown; the rest is only counted."""
SETTINGS_CHARS = 20_000
"""Characters of the settings, at most."""

_KNOBS = {
    "broken": "strict",
    "dedup_near": "minhash",
    "near": "minhash",
    "dedup_line": "dedup_lines",
    "dedup_sentence": "dedup_lines",
    "dedup": "dedup",
    "heldout": "heldout",
    "decontaminat": "decontaminate_ngram",
    "language": "language_threshold",
    "weight": "sources",
}
"""Settings of the rules that are not named after their setting, by how the rule begins."""


def ends(manifest: Manifest) -> tuple[FunnelStep, FunnelStep]:
    """What was read and what was kept."""
    if manifest.funnel:
        return manifest.funnel[0], manifest.funnel[-1]
    return FunnelStep("read"), FunnelStep("kept")


def funnel(manifest: Manifest, statistics: Statistics) -> str:
    """From read to kept, rule by rule, with examples."""
    if len(manifest.funnel) < 2:
        return note("The manifest has no funnel.")
    read, kept = ends(manifest)
    steps = manifest.funnel[1:-1]
    acted = [step for step in steps if step.documents or step.sentences or step.words]
    idle = [step for step in steps if step not in acted]
    most = max((step.words for step in acted), default=0)
    parts = [
        ("kept: " + percent(ratio(kept.words, read.words)), ratio(kept.words, read.words), "keep")
    ]
    for n, step in enumerate(acted[:MAX_RULES]):
        share = ratio(step.words, read.words)
        parts.append((f"{shown(step.rule, 40)}: {percent(share)}", share, ("lose", "lose2")[n % 2]))
    whole = charts.stack(parts, f"{percent(parts[0][1])} of the words read were kept")
    rules = "".join(
        _rule(step, read, most, statistics.examples.get(step.rule, ()), manifest.config)
        for step in acted[:MAX_RULES]
    )
    return (
        note(
            "Rules act from top to bottom, so each sees only what those before it left. Look for "
            "one rule that takes most of the text, and read its examples: if they are text you "
            "want, relax the setting named beside it. The bars compare the rules with each other: "
            "the longest is the rule that dropped the most words."
        )
        + f'<div class="whole">{whole}<p><span>Of {compact(read.words)} words read:</span> '
        f'<span><span class="keep">■</span> {compact(kept.words)} kept</span> '
        f'<span><span class="lose">■</span> '
        f"{compact(read.words - kept.words)} dropped</span></p></div>"
        + (f'<ol class="rules">{rules}</ol>' if rules else "<p>No rule dropped anything.</p>")
        + left_out(len(acted) - MAX_RULES, "rules")
        + (f'<p class="idle">Dropped nothing: {_names(idle)}.</p>' if idle else "")
        + details(
            "All rules as a table",
            table(
                "Rule|Documents|Sentences|Words|Share of words read",
                [
                    (
                        shown(s.rule, 60),
                        number(s.documents),
                        number(s.sentences),
                        number(s.words),
                        percent(ratio(s.words, read.words)),
                    )
                    for s in (read, *acted[:MAX_RULES], kept)
                ],
            ),
        )
    )


def _rule(
    step: FunnelStep,
    read: FunnelStep,
    most: int,
    examples: Sequence[Example],
    config: Mapping[str, Any],
) -> str:
    share = percent(ratio(abs(step.words), read.words))
    # Sources of a weight above 1 add text.
    verb = "added" if step.words < 0 else "of all words"
    knob = _knob(step.rule, config)
    figures = "".join(_example(example) for example in examples[:EXAMPLES])
    count = min(len(examples), EXAMPLES)
    return (
        f'<li><div class="rule"><p><b>{shown(step.rule, 60)}</b>{knob}</p>'
        f"{charts.bar(ratio(step.words, most), f'{number(step.words)} words', 'lose')}"
        f"<p><b>{compact(abs(step.words))} words</b><small>{share} {verb}</small></p></div>"
        f'<p class="counts">{number(step.documents)} documents · '
        f"{number(step.sentences)} sentences · {number(step.words)} words</p>"
        + (details(f"{count} example{'s' * (count > 1)}", figures) if figures else "")
        + "</li>"
    )


def _example(example: Example) -> str:
    detail = f"<b>{shown(example.detail)}</b> · " if example.detail else ""
    text = shown(example.text, EXAMPLE_CHARS, lines=True)
    return (
        f"<figure><figcaption>{detail}{shown(example.source)} "
        f'<span class="at">at {number(example.offset)}</span></figcaption>'
        f'<pre dir="auto">{text}</pre></figure>'
    )


def _knob(rule: str, config: Mapping[str, Any]) -> str:
    """The setting behind a rule, with its value; nothing where there is none."""
    named = next((knob for begin, knob in _KNOBS.items() if rule.startswith(begin)), rule[:100])
    value: Any = config.get("corpus")
    path = ["corpus"]
    for part in re.split(r"[^a-z0-9_]+", named.replace("-", "_").lower()):
        if isinstance(value, Mapping) and part in value:
            path.append(part)
            value = value[part]
    if len(path) == 1:
        return ""
    plain = isinstance(value, bool | int | float | str)
    return f"<code>{shown('.'.join(path))}{f' = {shown(_toml(value), 40)}' if plain else ''}</code>"


def _names(steps: Iterable[FunnelStep]) -> str:
    names = [f"<span>{shown(step.rule, 60)}</span>" for step in steps]
    return ", ".join(names[:MAX_RULES]) + (" and more" if len(names) > MAX_RULES else "")


def settings(manifest: Manifest) -> str:
    """What the corpus was built with, folded."""
    lines = "\n".join(_toml_lines(manifest.config))
    return note(
        "What the corpus was built with; <code>MANIFEST.json</code> has it in full."
    ) + details("Show", f"<pre>{shown(lines, SETTINGS_CHARS, lines=True)}</pre>")


def _toml_lines(values: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Settings as TOML, tables after plain values; a sight, not meant to be read back."""
    for name, value in values.items():
        if not isinstance(value, Mapping):
            yield f"{name} = {_toml(value)}"
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield f"\n[{path}{name}]"
            yield from _toml_lines(value, f"{path}{name}.")


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name} = {_toml(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return json.dumps(value, ensure_ascii=False, default=str)
