"""What MLflow's pages show of a published version: its model card and a few facts.

The card is the version's description, and each fact is a tag that MLflow can show and search. All
of it comes from the bundle; facts that an early bundle does not state are left out. The program's
own record of a version is another tag (mlflow_registry.py).
"""

import re
from pathlib import Path

from elmwright.jobs.bundles.bundle_json import read_bundle_config, read_origin
from elmwright.jobs.registry.contract import About
from elmwright.jobs.rundir.metrics import CARRIED_PERPLEXITY, PERPLEXITY
from elmwright.jobs.tracking.metric_names import readable

LONGEST = 5000
"""Characters of a description that MLflow's database accepts."""
REST = "\n\nThe whole card is `data/README.md` among the files of this model."


def facts(bundle: Path, about: About) -> dict[str, str]:
    """Tags: perplexities, step, tokens, vocabulary, words of the corpus, licence."""
    origin = read_origin(bundle)
    train = origin.config.get("train") or {}
    licence = (origin.config.get("export") or {}).get("licence")
    tags: dict[str, str] = {}
    for metric, scores in (
        (PERPLEXITY, about.fresh_perplexity),
        (CARRIED_PERPLEXITY, about.perplexity),
    ):
        for split, value in scores.items():
            tags[f"{split}_{metric.key}"] = readable(value)
            tags.setdefault(metric.key, readable(value))
    tags["step"] = str(about.step)
    if {"lanes", "window"} <= train.keys():
        size = train["lanes"] * train["window"] * train.get("accumulate", 1)
        tags["tokens"] = str(about.step * size)
    tags["vocabulary"] = str(read_bundle_config(bundle).vocab.size)
    if origin.corpus_words is not None:
        tags["corpus_words"] = str(origin.corpus_words)
    if licence:
        tags["licence"] = str(licence)
    return tags


def description(bundle: Path) -> str:
    """The model card without header and pictures; only its first sections if it is too long."""
    card = (bundle / "README.md").read_text(encoding="utf-8")
    card = re.sub(r"\A---\n.*?\n---\n", "", card, flags=re.DOTALL)
    card = re.sub(r"^!\[[^\]]*\]\([^)]*\)\n?", "", card, flags=re.MULTILINE).strip()
    if len(card) <= LONGEST:
        return card
    beginning = ""
    for section in re.split(r"(?m)^(?=## )", card):
        if len(beginning) + len(section) + len(REST) > LONGEST:
            break
        beginning += section
    return (beginning.rstrip() or card[: LONGEST - len(REST)]) + REST
