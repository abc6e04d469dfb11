"""What waiting threads cost: nothing much on a quiet machine, and everything on a busy one.

`elmwright eval`, `elmwright export` and training on all cores, as they are (threads sleep at
barriers, `jobs/environment/machine_use.py`) and as OpenMP has them by default (threads spin), in
turn:

quiet   ours takes at most 5 % longer than spinning, by the medians of alternating runs
busy    beside two busy processes eval and export take at most 2.5 × their quiet time

The first part means something only if nothing else runs on the machine; the load is printed.

python tests/bench/bench_busy.py [RUN] [rounds]    RUN: a finished run, such as runs/demo; without
one a short demo is trained first. ELMWRIGHT_BENCH=quiet or busy does one part only.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

LOSS, SLOWER = 1.05, 2.5
SPINNING = {"GOMP_SPINCOUNT": "300000"}
"""What libgomp does where nothing is set."""
TRAIN = """
import json, sys, time
from pathlib import Path
from elmwright.jobs.environment.machine_use import cores, share_machine
share_machine()
from elmwright.jobs.checkpoints.checkpoint import begin_attempt
from elmwright.jobs.config.toml_file import config_from
from elmwright.jobs.training.loop.exchange import Ranks
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.training.loop.train import train
run, folder = sys.argv[1:]
data = json.loads(Path(run, "config.json").read_text())
data["run"] |= {"dir": folder, "scratch": folder + "/scratch"}
data["corpus"]["dir"] = str(Path(run, "corpus").absolute())
data["train"] |= {"processes": 1, "threads": cores(), "max_steps": 40, "init_from": ""}
data["eval"] |= {"every_steps": 0, "final_tokens": 1}
data["checkpoint"]["every_steps"] = 1000
config = config_from(data, "the bench")
where = RunFolder.of(config)
Path(where.train).mkdir(parents=True)
begin_attempt(where.attempt)
train(config, where, 1, Ranks())
"""


def spent(command: list[str], environment: dict[str, str]) -> float:
    """Seconds that a command takes."""
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
    clean = {name: value for name, value in os.environ.items() if name not in names}
    begun = time.monotonic()
    done = subprocess.run(
        command, env={**clean, **environment}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    return time.monotonic() - begun


class Work:
    """The commands that are measured, on one finished run."""

    def __init__(self, run: Path, folder: Path) -> None:
        self.run, self.folder = run, folder
        self.program = [sys.executable, "-m", "elmwright.jobs.cli"]

    def seconds(self, what: str, environment: dict[str, str]) -> float:
        target = self.folder / what
        shutil.rmtree(target, ignore_errors=True)
        commands = {
            "eval": [*self.program, "eval", f"{self.run}/bundle", "--corpus", f"{self.run}"],
            "export": [*self.program, "export", f"{self.run}", "-o", f"{target}"],
            "train": [sys.executable, "-c", TRAIN, f"{self.run}", f"{target}"],
        }
        return spent(commands[what], environment)


@contextmanager
def busy(count: int = 2) -> Iterator[None]:
    """Processes that do nothing but compute."""
    command = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def short_demo(folder: Path) -> Path:
    """A finished run of the demo's shape, trained for some steps."""
    print("training a short demo first", flush=True)
    settings = [f"run.dir={folder / 'run'}", "train.max_steps=20", "optim.warmup_steps=5"]
    flags = [word for setting in settings for word in ("--set", setting)]
    spent(
        [
            sys.executable,
            "-m",
            "elmwright.jobs.cli",
            "run",
            "demo",
            "--until",
            "export",
            *flags,
        ],
        {},
    )
    return folder / "run"


def compare_quiet(work: Work, rounds: int) -> tuple[bool, dict[str, float]]:
    """Ours and spinning, in turn; whether all is well, and our medians."""
    good, usual = True, {}
    for what in ("eval", "export", "train"):
        times: dict[str, list[float]] = {"ours": [], "spinning": []}
        for number in range(rounds):
            kinds = [("ours", {}), ("spinning", SPINNING)]
            for kind, environment in kinds if number % 2 else kinds[::-1]:
                times[kind].append(work.seconds(what, environment))
        usual[what], other = median(times["ours"]), median(times["spinning"])
        ratio = usual[what] / other
        good &= ratio <= LOSS
        verdict = "holds" if ratio <= LOSS else "does not hold"
        print(
            f"quiet {what:<7} ours {usual[what]:6.2f} s, spinning {other:6.2f} s: "
            f"{ratio:.3f} ×, at most {LOSS} ×: {verdict}",
            flush=True,
        )
    return good, usual


def compare_busy(work: Work, usual: dict[str, float], rounds: int) -> bool:
    good = True
    for what in ("eval", "export"):
        quiet = usual.get(what) or median(work.seconds(what, {}) for _ in range(rounds))
        with busy():
            found = median(work.seconds(what, {}) for _ in range(rounds))
        ratio = found / quiet
        good &= ratio <= SLOWER
        verdict = "holds" if ratio <= SLOWER else "does not hold"
        print(
            f"busy  {what:<7} quiet {quiet:6.2f} s, beside two busy processes {found:6.2f} s: "
            f"{ratio:.2f} ×, at most {SLOWER} ×: {verdict}",
            flush=True,
        )
    return good


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    flags = next((line for line in lines if line.startswith("flags")), "").split()
    wide = [flag for flag in ("avx2", "avx512f", "avx512_bf16") if flag in flags]
    return f"{len(names)} × {names[0] if names else 'unknown'} ({', '.join(wide)})"


def main() -> int:
    arguments = sys.argv[1:]
    rounds = int(arguments.pop()) if arguments and arguments[-1].isdecimal() else 10
    part = os.environ.get("ELMWRIGHT_BENCH", "")
    with tempfile.TemporaryDirectory(prefix="elmwright-bench-") as name:
        folder = Path(name)
        run = Path(arguments[0]) if arguments else short_demo(folder)
        if not (run / "bundle" / "config.json").is_file():
            sys.exit(f"{run} is not a finished run (it has no bundle)")
        step = json.loads((run / "bundle" / "config.json").read_text())["step"]
        print(
            f"{processor()}; load {os.getloadavg()[0]:.1f}; {run}, step {step}; {rounds} rounds",
            flush=True,
        )
        work, good, usual = Work(run, folder), True, {}
        if part != "busy":
            good, usual = compare_quiet(work, rounds)
        if part != "quiet":
            good &= compare_busy(work, usual, max(1, rounds // 3))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
