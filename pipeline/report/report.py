"""`report.html`: one page that shows what became of the text, and which setting to change next.

Cleaning is a dozen thresholds, and the only way to set them well is to look at what they drop. So
the page leads with the funnel and real examples under each rule, and every chart says what to look
for and names its setting. It is made from the manifest and the statistics alone: equal corpora give
equal pages, except for the times. Lists are cut, so the page stays below a megabyte whatever the
corpus.

The setting beside a rule is the one with the rule's name in the manifest's config, unless
`SETTINGS_BY_RULE` names another.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elmwright.pipeline.format.manifest import FunnelStep, Manifest
from elmwright.pipeline.report.charts import Axis, Column, Curve, Histogram, thin
from elmwright.pipeline.report.numbers import compact, number, percent, ratio
from elmwright.pipeline.report.page import render_page, visible_text
from elmwright.pipeline.report.statistics import (
    EXAMPLE_CHARS,
    EXAMPLES,
    LONGEST_SENTENCE,
    Statistics,
)

LIMITS = {
    "max_sources": 200,
    "max_rules": 50,
    "max_rows": 40,
    "max_examples": EXAMPLES,
    "example_chars": EXAMPLE_CHARS,
    "settings_chars": 20_000,
}
"""How much the page shows of each list and text. Further entries are only counted."""
SETTINGS_BY_RULE = {
    "broken": "strict",
    "dedup_near": "minhash",
    "dedup_line": "dedup_lines",
    "dedup_sentence": "dedup_lines",
    "dedup": "dedup",
    "heldout": "heldout",
    "decontaminat": "decontaminate_ngram",
    "language": "language_threshold",
    "weight": "sources",
}
"""The setting to show for a rule, by the beginning of the rule's name, if it has another name. The
first match counts."""


def render(manifest: Manifest, statistics: Statistics, *, title: str) -> str:
    """The page, from its arguments alone."""
    funnel = manifest.funnel or (FunnelStep("read"), FunnelStep("kept"))
    read, kept = funnel[0], funnel[-1]
    steps = manifest.funnel[1:-1]
    acted = [step for step in steps if step.documents or step.sentences or step.words]
    return render_page(
        Path(__file__).with_name("report.html"),
        **LIMITS,
        title=title,
        manifest=manifest,
        statistics=statistics,
        read=read,
        kept=kept,
        acted=acted,
        idle=[step for step in steps if step not in acted],
        shares=_shares(read, kept, acted[: LIMITS["max_rules"]]),
        most_words=max((step.words for step in acted), default=0),
        rule_settings={step.rule: _rule_setting(step.rule, manifest.config) for step in acted},
        document_lengths=_document_lengths(statistics),
        sentence_lengths=_sentence_lengths(statistics),
        group_sizes=_group_sizes(statistics),
        zipf=_zipf(statistics),
        coverage=_coverage(statistics, manifest.vocab.size),
        config="\n".join(_toml_lines(manifest.config)),
    )


def _shares(
    read: FunnelStep, kept: FunnelStep, acted: list[FunnelStep]
) -> Iterator[tuple[str, float, str]]:
    """Kept words, then what each rule dropped: (label, share of the words read, kind of bar)."""
    share = ratio(kept.words, read.words)
    yield f"kept: {percent(share)}", share, "keep"
    for n, step in enumerate(acted):
        share = ratio(step.words, read.words)
        yield f"{visible_text(step.rule, 40)}: {percent(share)}", share, ("lose", "lose2")[n % 2]


def _rule_setting(rule: str, config: Mapping[str, Any]) -> str:
    """The setting behind a rule, with its value; empty where there is none."""
    names = (name for begin, name in SETTINGS_BY_RULE.items() if rule.startswith(begin))
    value: Any = config.get("corpus")
    path = ["corpus"]
    for part in re.split(r"[^a-z0-9_]+", next(names, rule[:100]).replace("-", "_").lower()):
        if isinstance(value, Mapping) and part in value:
            path.append(part)
            value = value[part]
    if len(path) == 1:
        return ""
    setting = visible_text(".".join(path))
    is_scalar = isinstance(value, bool | int | float | str)
    return f"{setting} = {visible_text(_toml(value), 40)}" if is_scalar else setting


def _toml_lines(values: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Settings as TOML, tables after plain values. They are to be looked at, not read back."""
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


def _document_lengths(statistics: Statistics) -> Histogram | None:
    """Documents by their number of words: a column for each power of two, up to the next one."""
    counts = {n: c for n, c in statistics.document_words.items() if 0 <= n < 63 and c > 0}
    if not counts:
        return None
    columns = [
        Column(compact(2**n), f"{number(2**n)} to {number(2 ** (n + 1) - 1)}", counts.get(n, 0))
        for n in range(min(counts), max(counts) + 1)
    ]
    return Histogram(columns, "documents", range(0, len(columns), math.ceil(len(columns) / 8)))


def _sentence_lengths(statistics: Statistics) -> Histogram | None:
    counts = statistics.sentence_words
    lengths = range(1, LONGEST_SENTENCE + 1)
    if not any(n in counts for n in lengths):
        return None
    names = [*map(str, lengths[:-1]), f"{LONGEST_SENTENCE}+"]
    columns = [Column(name, name, counts.get(n, 0)) for n, name in zip(lengths, names, strict=True)]
    return Histogram(columns, "sentences", range(9, LONGEST_SENTENCE, 10))


@dataclass(frozen=True)
class GroupSize:
    """Groups of near-duplicates of about the same size."""

    smallest: int
    """Documents in the smallest group, a power of two."""
    groups: int
    copies: int
    """Documents that were dropped, which is all but one of each group."""


def _group_sizes(statistics: Statistics) -> list[GroupSize]:
    sizes: dict[int, GroupSize] = {}
    for documents, groups in sorted(statistics.clusters.items()):
        if documents > 1:
            smallest = 1 << (documents.bit_length() - 1)
            size = sizes.get(smallest, GroupSize(smallest, 0, 0))
            copies = size.copies + (documents - 1) * groups
            sizes[smallest] = GroupSize(smallest, size.groups + groups, copies)
    return list(sizes.values())


def _zipf(statistics: Statistics) -> Curve | None:
    counts = [(rank, count) for rank, count in statistics.zipf if rank >= 1 and count >= 1]
    if len(counts) < 2:
        return None
    x = Axis(1, max(rank for rank, _ in counts), "rank of a word by frequency", log=True)
    y = Axis(1, max(count for _, count in counts), "occurrences in train", log=True)
    top = counts[0][0] * counts[0][1]
    ideal = [(1, min(top, y.high)), (min(x.high, top), max(1, top / x.high))]
    return Curve(thin(counts), x, y, ideal=ideal, ideal_name="1/rank")


def _coverage(statistics: Statistics, vocab_size: int) -> Curve | None:
    covered = [(n, share) for n, share in statistics.coverage if n >= 1 and 0 <= share <= 1]
    if len(covered) < 2:
        return None
    x = Axis(1, max(n for n, _ in covered), "most frequent words in the vocabulary", log=True)
    y = Axis(0, 1, "share of train covered", share=True)
    return Curve(thin(covered), x, y, mark=vocab_size, mark_name=f"yours: {compact(vocab_size)}")
