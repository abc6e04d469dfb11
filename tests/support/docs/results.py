"""Writes `docs/results.md` from what the benches wrote: `python -m tests.support.docs.results`.

`python tests/bench/table.py --out tests/bench/results NAME` runs a bench and keeps its record. A
test compares the committed page with what this gives.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.places import DOCS, ROOT

PAGE = DOCS / "results.md"
RECORDS = ROOT / "tests" / "bench" / "results"

INTRO = """\
# Results

What the benches measured, each with the processor, the commit and the command. Ratios are of two
sides that took turns in one run; absolute speeds mean little on another machine. Perplexities are
fresh (every sentence from zero states) with the full softmax, unless a row says otherwise. This
page is written from the records in `tests/bench/results/` by
`python -m tests.support.docs.results`.
Trials of single changes are in [experiments](experiments.md).
"""
QUOTED = """
## Figures of others

Quoted, not measured here, and each with a protocol of its own.

| what | figure | source |
|---|---|---|
| bilm-tf, WikiText-2 valid, carried, 2.05 M tokens | 309.9 | a run of its own code |
| Kneser-Ney 5-gram, WikiText-2 valid, no blank lines | 240.0 | `tests/bench/bench_ngram.py` |
| AWD-LSTM, WikiText-2 valid, 750 epochs | 68.6 | Merity and others, 2018 |
| ELMo, 1 Billion Word Benchmark, 10 epochs | 39.7 | Peters and others, 2018 |
| datatrove, MinHash, MB/s per task | 0.8–0.9 | users in its issue 298 |
"""


def page() -> str:
    """The whole page."""
    parts = [INTRO, *(section(path) for path in sorted(RECORDS.glob("*.json"))), QUOTED]
    return "".join(parts)


def section(path: Path) -> str:
    """What one bench measured."""
    record = json.loads(path.read_text(encoding="utf-8"))
    return "\n".join(["", f"## {path.stem.replace('_', ' ')}", "", *_lines(record), ""])


def _lines(record: dict[str, Any]) -> Iterator[str]:
    commit = record["commit"][:9] + (" with changes" if record["has_changes"] else "")
    flags = ", ".join(record["flags"])
    yield (
        f"`{record['command']}`, {record['date'][:10]}, commit {commit}, "
        f"{record['processor']} ({flags})."
    )
    yield ""
    yield "| what | ours | compared with | value | bar | |"
    yield "|---|---|---|---|---|---|"
    for bar in record["bars"]:
        verdict = ("holds" if bar["holds"] else "**fails**") if record["is_judged"] else ""
        cells = (bar["name"], bar["ours"], bar["peer"], _number(bar["value"]), bar["bar"], verdict)
        yield f"| {' | '.join(cells)} |"


def _number(value: float) -> str:
    return f"{value:,.1f}" if value >= 10 else f"{value:.3g}" if value >= 0.01 else f"{value:.0e}"


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE} written")


if __name__ == "__main__":
    main()
