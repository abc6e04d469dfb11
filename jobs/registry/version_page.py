"""What a person reads of a published version in MLflow: its model card and a few facts.

The card is the version's description, and each fact is a tag of its own, so that MLflow's pages can
show and search them. All of it comes from the bundle; what an older bundle does not say is left
out. The program's own record of a version is another tag (mlflow_registry.py).
"""

import re
from pathlib import Path

from elmwright.jobs.registry.contract import About
from elmwright.jobs.tracking.metric_names import said
from elmwright.pipeline.storage.untrusted import read_object

LONGEST = 5000
"""Characters of a description that MLflow's database takes."""
REST = "\n\nThe whole card is `data/README.md` among the files of this model."


def facts(bundle: Path, about: About) -> dict[str, str]:
    """Tags: perplexity, step, tokens, vocabulary, words of the corpus, licence."""
    config = read_object(bundle / "config.json")
    origin = read_object(bundle / "provenance.json")
    settings = origin.get("config") or {}
    train = settings.get("train") or {}
    tags = {f"{split}_perplexity": said(value) for split, value in about.perplexity.items()}
    first = next(iter(about.perplexity.values()), None)
    if first is not None:
        tags["perplexity"] = said(first)
    tags["step"] = str(about.step)
    if {"lanes", "window"} <= train.keys():
        size = train["lanes"] * train["window"] * train.get("accumulate", 1)
        tags["tokens"] = str(about.step * size)
    tags["vocabulary"] = str(config["vocab"]["size"])
    if "corpus_words" in origin:
        tags["corpus_words"] = str(origin["corpus_words"])
    licence = (settings.get("export") or {}).get("licence")
    if licence:
        tags["licence"] = str(licence)
    return tags


def description(bundle: Path) -> str:
    """The model card, without its header and pictures; whole sections, if it is too long."""
    card = (bundle / "README.md").read_text(encoding="utf-8")
    card = re.sub(r"\A---\n.*?\n---\n", "", card, flags=re.DOTALL)
    card = re.sub(r"^!\[[^\]]*\]\([^)]*\)\n?", "", card, flags=re.MULTILINE).strip()
    if len(card) <= LONGEST:
        return card
    kept = ""
    for section in re.split(r"(?m)^(?=## )", card):
        if len(kept) + len(section) + len(REST) > LONGEST:
            break
        kept += section
    return (kept.rstrip() or card[: LONGEST - len(REST)]) + REST
