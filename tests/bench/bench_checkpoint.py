"""What a checkpoint every minute costs: under 1 % of the loop's time, under 2 % more CPU seconds.

`jobs/training/loop/train.py` itself, one process, `small.toml`'s model with the WikiText-2
vocabulary, 64 lanes × 20 steps. Pairs of runs of about a minute, one with a checkpoint in its
middle and one without (the one that every run ends with is in both); the order changes from pair to
pair. Printed: the share of the time that the loop spent on checkpoints by its own timer, the CPU
seconds of the thread that writes one, and the median over the pairs of the CPU seconds of the whole
process. The last differ by more than a checkpoint costs where a machine changes its speed from
minute to minute.

python tests/bench/bench_checkpoint.py [pairs] [threads]
"""

import shutil
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median

from corpus import wikitext_corpus
from workload import SHARED, skip

from elmwright.jobs.checkpoints.checkpoint import begin_attempt, list_checkpoints
from elmwright.jobs.checkpoints.writer import CheckpointWriter, Snapshot
from elmwright.jobs.config.toml_file import load_config
from elmwright.jobs.rundir.journal_lines import read_journal
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.training.loop import recorder
from elmwright.jobs.training.loop.exchange import Ranks
from elmwright.jobs.training.loop.train import train

BLOCKED, EXTRA, PERIOD = 0.01, 0.02, 60.0


class Timed(CheckpointWriter):
    """Adds up the CPU seconds of the threads that write."""

    seconds: list[float]

    def _run(self, snapshot: Snapshot) -> None:
        before = time.thread_time()
        super()._run(snapshot)
        Timed.seconds.append(time.thread_time() - before)


def run(folder: Path, name: str, steps: int, every: int, threads: int) -> tuple[float, float]:
    """CPU seconds of a run, and the share of its time spent on checkpoints in the loop."""
    config = load_config(
        "small",
        [
            f"run.dir={folder / name}",
            f"corpus.dir={folder / 'corpus'}",
            "train.processes=1",
            f"train.threads={threads}",
            "train.lanes=64",
            f"train.max_steps={steps}",
            f"checkpoint.every_steps={every}",
            "checkpoint.keep_last=1",
            "eval.every_steps=0",
            "tracking.every_steps=1",
        ],
    )
    place = RunFolder.of(config)
    start = time.process_time()
    train(config, place, begin_attempt(place.attempt), Ranks())
    cpu = time.process_time() - start
    size = list_checkpoints(place.checkpoints)[-1].bytes
    records = [r for r, _ in read_journal(place.journal, 0) if r.kind == "metrics"]
    shares = [record.values.get("time/checkpoint_share", 0.0) for record in records]
    seconds = [(b.time - a.time) / 1000 for a, b in pairwise(records)]
    blocked = sum(s * t for s, t in zip(shares[1:-1], seconds[:-1], strict=True))
    shutil.rmtree(folder / name)
    run.size = size  # type: ignore[attr-defined]
    return cpu, blocked / sum(seconds)


def main() -> int:
    if not (SHARED / "data" / "wikitext2").is_dir():
        skip(f"{SHARED} has no data/wikitext2; ELMWRIGHT_SHARED names the folder that holds it")
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    threads = int(sys.argv[2]) if len(sys.argv) > 2 else 2
    folder = Path(tempfile.mkdtemp(prefix="elmwright-bench-"))
    wikitext_corpus(folder, 2560, folder / "corpus")
    start = time.monotonic()
    run(folder, "trial", 6, 1000, threads)
    start = time.monotonic()
    run(folder, "trial", 10, 1000, threads)
    steps = max(4, round(PERIOD / ((time.monotonic() - start) / 10)))
    extras, shares, own = [], [], []
    recorder.CheckpointWriter = Timed  # type: ignore[misc]
    for pair in range(pairs):
        found = {}
        for every in [steps // 2, 10**6] if pair % 2 else [10**6, steps // 2]:
            Timed.seconds = []
            found[every] = run(folder, f"run-{pair}-{every}", steps, every, threads)
            own += Timed.seconds
        with_it, without = found[steps // 2], found[10**6]
        extras.append(with_it[0] / without[0] - 1)
        shares.append(with_it[1])
        print(
            f"pair {pair + 1}: {with_it[0]:.1f} CPU s with, {without[0]:.1f} without "
            f"({100 * extras[-1]:+.2f} %), loop blocked {100 * shares[-1]:.2f} %",
            flush=True,
        )
    shutil.rmtree(folder)
    size = run.size / 1e6  # type: ignore[attr-defined]
    good = median(extras) <= EXTRA and median(shares) <= BLOCKED
    print(
        f"a checkpoint of {size:.0f} MB every {steps} steps: {100 * median(extras):+.2f} % CPU "
        f"seconds (at most {100 * EXTRA:.0f} %), loop blocked {100 * median(shares):.2f} % (at "
        f"most {100 * BLOCKED:.0f} %), median of {pairs} pairs: "
        f"{'holds' if good else 'does not hold'}; writing one takes its thread "
        f"{median(own):.2f} CPU s"
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
