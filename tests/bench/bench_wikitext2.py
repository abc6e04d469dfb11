"""The recipe `wikitext2` as a user runs it: `elmwright train`, and the perplexity it ends with.

    python tests/bench/bench_wikitext2.py [FOLDER]

Trains from scratch in a temporary folder (or in FOLDER, which stays, and where a stopped run goes
on) and prints the curve, the final perplexities over every token of the official validation file
under the full softmax, training tokens, wall time and CPU seconds of everything that was started.
A Kneser-Ney 5-gram has 240.0 under the same protocol (bench_ngram.py); at most 150 in 60 minutes
of two cores is required. Time counts only as CPU seconds, so that others on the machine do not
matter.
"""

import json
import lzma
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from meter import Meter, keep_orphans

ROOT = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("ELMWRIGHT_SHARED", ROOT.parent / "shared"))
TEXT = SHARED / "data" / "wikitext2"
NGRAM, LIMIT, CPU_SECONDS = 240.0, 150.0, 2 * 3600


def main(folder: Path) -> None:
    for split in ("train", "valid"):
        target = folder / "wikitext-2" / f"wiki.{split}.tokens"
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():  # a later time stamp would look like another text
            packed = TEXT / f"wiki.{split}.tokens.xz"
            target.write_bytes(lzma.decompress(packed.read_bytes()))
    keep_orphans()
    meter = Meter(every=1)
    meter.start()
    began = time.monotonic()
    command = [sys.executable, "-m", "elmwright.jobs.cli", "train", "wikitext2"]
    code = subprocess.run(command, cwd=folder, check=False).returncode
    if code:
        sys.exit(code)
    minutes = (time.monotonic() - began) / 60
    report(folder / "runs" / "wikitext2", minutes, meter.seconds())


def report(run: Path, minutes: float, cpu: float) -> None:
    config = json.loads((run / "config.json").read_text())
    tokens = config["train"]["lanes"] * config["train"]["window"]
    print(
        "\n   step   train tokens   valid perplexity (forward / backward / mean; carried)   scored"
    )
    for record in evaluations(run):
        value = {name.removeprefix("valid/"): v for name, v in record["values"].items()}
        print(
            f"{record['step']:>7,} {record['step'] * tokens:>14,}   "
            f"{value['fresh_forward_perplexity']:.1f} / {value['fresh_backward_perplexity']:.1f} / "
            f"{value['fresh_perplexity']:.1f}; {value['perplexity']:.1f}   {value['tokens']:,.0f}"
        )
    result = json.loads((run / "train" / "result.json").read_text())
    score = result["evaluation"]["valid"]
    final = score["perplexity"]
    print(
        f"\n{result['step'] * tokens:,} training tokens in {minutes:.1f} min, "
        f"{cpu:,.0f} CPU seconds, corpus and start included"
    )
    holds = final <= LIMIT and cpu <= CPU_SECONDS
    print(
        f"mean perplexity {final:.1f} with {score['states']} states (Kneser-Ney 5-gram {NGRAM}; "
        f"at most {LIMIT:.0f} within {CPU_SECONDS:,} CPU seconds is asked for): "
        f"{'holds' if holds else 'FAILS'}"
    )
    if not holds:
        sys.exit(1)


def evaluations(run: Path) -> list[dict[str, Any]]:
    lines = (run / "train" / "journal.jsonl").read_text().splitlines()
    return [record for line in lines if (record := json.loads(line))["kind"] == "eval"]


if __name__ == "__main__":
    if not TEXT.is_dir():
        print(f"skipped: {TEXT} is not there; ELMWRIGHT_SHARED names the folder of data/wikitext2")
        sys.exit(0)
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]).resolve())
    else:
        with tempfile.TemporaryDirectory(prefix="elmwright-wikitext2-") as temporary:
            main(Path(temporary))
