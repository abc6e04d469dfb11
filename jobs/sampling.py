"""`elmwright corpus CONFIG --sample N`: what the rules do, shown in seconds, nothing written."""

import json
from dataclasses import asdict

from elmwright.jobs.config import RunConfig
from elmwright.jobs.layout import RunFolder
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.sample import try_rules

WIDTH = 160
"""Characters of an example that are shown."""


def show_sample(config: RunConfig, documents: int, *, as_json: bool) -> None:
    """Print the funnel of a sample, with an example of what each rule dropped."""
    if documents < 1:
        raise UserError(f"--sample {documents}: give a number of documents, such as 1000")
    sample = try_rules(config.corpus, RunFolder.of(config).corpus, documents, config.run.seed)
    if as_json:
        print(json.dumps(asdict(sample), indent=1))
        return
    for rule, (whole, sentences, words) in sample.funnel.items():
        if whole or sentences or words:
            name = rule if rule in ("read", "kept") else f"  - {rule}"
            print(f"{name:<46} {whole:>8,} documents {sentences:>10,} sentences {words:>12,} words")
            for example in sample.examples.get(rule, ())[:1]:
                detail = f" ({example.detail})" if example.detail else ""
                print(f"      {_line(example.text)}{detail}")
    if sample.kept:
        print("\nKept, as sentences and words:")
    for example in sample.kept:
        for sentence in example.text.split("\n")[:2]:
            print(f"      {_line(sentence)}")
    print(
        "\nNext: change a threshold (elmwright config --explain lists them) and look again, or "
        "build the corpus: the same command without --sample."
    )


def _line(text: str) -> str:
    """The beginning of a text on one line, nothing in it that a terminal would obey."""
    plain = "".join(c if c.isprintable() else " " for c in " ".join(text.split()))
    return plain if len(plain) <= WIDTH else plain[: WIDTH - 1] + "…"
