"""Runs benches one after another, and prints one table of everything that they compared.

    python tests/bench/table.py [--full] [--out FOLDER] [NAME ...]

NAME is that of a bench without `bench_`; without names it runs those of speed, about half an hour
with AllenNLP there. `--full` runs all of them. A bench that judges its numbers writes them as JSON
to FOLDER (build/bench). docs/make_results.py makes docs/results.md from such files. The exit code
is 1 if a bench failed.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from verdict import shown

HERE = Path(__file__).resolve().parent
QUICK = ("train_small", "train_original", "embed", "forward", "scaling", "encoder")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = sorted(path.stem.removeprefix("bench_") for path in HERE.glob("bench_*.py"))
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(known))
    parser.add_argument("--full", action="store_true", help="run all of them")
    parser.add_argument("--out", type=Path, default=HERE.parents[1] / "build" / "bench")
    options = parser.parse_args()
    unknown = sorted(set(options.names) - set(known))
    if unknown:
        parser.error(f"there is no bench {unknown[0]}; there are {', '.join(known)}")
    options.out.mkdir(parents=True, exist_ok=True)
    names = options.names or (known if options.full else QUICK)
    codes = {name: run(name, options.out / f"{name}.json") for name in names}
    files = [options.out / f"{name}.json" for name in names]
    rows = [
        row for file in files if file.is_file() for row in rows_of(json.loads(file.read_text()))
    ]
    print_table(rows)
    failed = [name for name, code in codes.items() if code]
    if failed:
        print(f"\nfailed: {', '.join(failed)}")
    return 1 if failed else 0


def run(name: str, record: Path) -> int:
    """Run a bench; what it judges is in `record` afterwards."""
    script = HERE / f"bench_{name}.py"
    record.unlink(missing_ok=True)
    print(f"\n== {script.name}", flush=True)
    judges = "--json" in script.read_text(encoding="utf-8")
    arguments = ["--json", str(record)] if judges else []
    return subprocess.run([sys.executable, str(script), *arguments], check=False).returncode


def rows_of(record: dict[str, Any]) -> list[tuple[str, ...]]:
    """What was compared, ours, the peer's, the ratio or value, the bar, and whether it holds."""
    verdicts = {True: "holds", False: "FAILS"} if record["is_judged"] else {}
    return [
        (
            bar["name"],
            bar["ours"],
            bar["peer"],
            shown(bar["value"]),
            bar["bar"],
            verdicts.get(bar["holds"], "not judged"),
        )
        for bar in record["bars"]
    ]


def print_table(rows: list[tuple[str, ...]]) -> None:
    table = [("what", "ours", "peer", "value", "bar", ""), *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    print()
    for row in table:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())


if __name__ == "__main__":
    sys.exit(main())
