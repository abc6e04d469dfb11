"""Options and conclusions of the benches that train: arguments, bars, and a record as JSON."""

import argparse
import json
import shlex
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from elmwright.jobs.environment.checkout import Commit
from elmwright.jobs.environment.machine_facts import machine, own_git

FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
"""Instructions of a processor that decide how fast products are."""


def record_parser(page: str) -> argparse.ArgumentParser:
    """The option that all of these benches have; `page` is the docstring of one."""
    parser = argparse.ArgumentParser(
        description=page, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers to a file")
    return parser


def options_parser(page: str) -> argparse.ArgumentParser:
    """The options of the benches that train models until they are good."""
    parser = record_parser(page)
    parser.add_argument("--steps", type=int, help="fewer steps, to try it; nothing is judged")
    parser.add_argument("--processes", type=int, help="training processes (the recipe's number)")
    parser.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help="a setting of every training, to try it; nothing is judged",
    )
    parser.add_argument(
        "--work",
        type=Path,
        metavar="FOLDER",
        help="keep corpora and runs here; a corpus that is there is not built again",
    )
    return parser


def common_settings(options: argparse.Namespace) -> list[str]:
    """What the options ask of every training."""
    processes = [f"train.processes={options.processes}"] if options.processes else []
    return [*processes, *options.settings]


@contextmanager
def work_folder(given: Path | None) -> Iterator[Path]:
    """The folder for corpora and runs: a given one, which stays, or a temporary one."""
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        yield given.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="elmwright-bench-") as name:
        yield Path(name)


@dataclass(frozen=True)
class Bar:
    """A measured number, and the most or the least that it may be."""

    name: str
    value: float
    limit: float
    is_least: bool = False
    """Whether the limit is the least."""
    is_strict: bool = False
    """Whether the number may not be the limit itself."""
    hoped: float | None = None
    """A limit that is not required."""
    ours: str = ""
    """What the number compares, if it is a ratio, with its unit."""
    peer: str = ""
    """With what, and what that is."""

    @property
    def holds(self) -> bool:
        return self._meets(self.limit) and not (self.is_strict and self.value == self.limit)

    def _meets(self, limit: float) -> bool:
        return self.value >= limit if self.is_least else self.value <= limit

    @property
    def bound(self) -> str:
        """The limit in words."""
        words = {
            (False, False): "at most",
            (False, True): "below",
            (True, False): "at least",
            (True, True): "above",
        }
        return f"{words[self.is_least, self.is_strict]} {shown(self.limit)}"

    def __str__(self) -> str:
        hoped = ""
        if self.hoped is not None:
            is_reached = self._meets(self.hoped)
            hoped = f" (hoped for {shown(self.hoped)}: {'' if is_reached else 'not '}reached)"
        return f"{self.name} {shown(self.value)}, {self.bound}{hoped}"


def shown(value: float) -> str:
    if value >= 10:
        return f"{value:,.1f}"
    return f"{value:.2f}" if value >= 0.01 or not value else f"{value:.0e}"


def conclude(
    options: argparse.Namespace,
    numbers: dict[str, object],
    bars: list[Bar],
    *,
    is_as_meant: bool = True,
) -> int:
    """Print every bar, write the record if `--json` asks for one, and return the exit code: 1 if a
    bar fails. Nothing is judged if options make the run another one than the bars are for."""
    is_tried = getattr(options, "steps", None) or getattr(options, "settings", None)
    judged = is_as_meant and not is_tried
    print()
    for bar in bars:
        verdict = ("holds" if bar.holds else "FAILS") if judged else "not judged"
        print(f"{bar}: {verdict}")
    if options.json:
        options.json.write_text(json.dumps(record(numbers, bars, judged=judged), indent=1) + "\n")
    return 1 if judged and not all(bar.holds for bar in bars) else 0


def record(numbers: dict[str, object], bars: list[Bar], *, judged: bool) -> dict[str, object]:
    """The numbers with what they depend on."""
    commit = code()
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": _command(),
        "commit": commit.commit if commit else "",
        "has_changes": bool(commit and commit.dirty),
        "processor": machine(),
        "flags": processor_flags(),
        "numbers": numbers,
        "bars": [
            {
                "name": bar.name,
                "ours": bar.ours,
                "peer": bar.peer,
                "value": bar.value,
                "bar": bar.bound,
                "holds": bar.holds,
            }
            for bar in bars
        ],
        "is_judged": judged,
    }


def _command() -> str:
    """The command as anybody can type it: without the folders of this machine."""
    words = ["python", f"tests/bench/{Path(sys.argv[0]).name}"]
    given = iter(sys.argv[1:])
    for word in given:
        if word in ("--json", "--work", "--old"):
            next(given, None)
        elif not word.startswith(("--json=", "--work=", "--old=")):
            words.append(word)
    return shlex.join(words)


def processor_flags() -> list[str]:
    """Those of `FLAGS` that this processor has."""
    info = Path("/proc/cpuinfo")
    present = set(info.read_text().split()) if info.is_file() else set()
    return [flag for flag in FLAGS if flag in present]


@cache
def code() -> Commit | None:
    """The commit when this was first called: others may follow while a bench runs."""
    return own_git()


def print_circumstances() -> None:
    """Print what the numbers depend on; a bench does that first."""
    commit = code()
    state = f"{commit.commit[:9]}{' with changes' if commit.dirty else ''}" if commit else "unknown"
    print(f"{machine()} ({', '.join(processor_flags())}), commit {state}", flush=True)
