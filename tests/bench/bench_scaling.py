"""Two processes of one thread against one: at least 1.6× the tokens a second.

`jobs/training/loop/train.py` itself, `small.toml`'s model with the WikiText-2 vocabulary, 64 lanes
× 20 steps in each process; runs in turn, each measured from its third step on, best of several.

python tests/bench/bench_scaling.py [rounds] [steps]
"""

import shutil
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from corpus import wikitext_corpus
from workload import SHARED, skip

from elmwright.jobs.config.toml_file import load_config
from elmwright.jobs.rundir.journal_lines import read_journal
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.training.loop.exchange import Ranks
from elmwright.jobs.training.loop.train import train
from elmwright.pipeline.storage.files import at

TARGET = 1.6


def process(rank: int, world: int, settings: list[str], port: int) -> None:
    if world > 1:
        dist.init_process_group(
            "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world
        )
    config = load_config("small", settings)
    train(config, RunFolder.of(config), 1, Ranks(rank, world))
    if world > 1:
        dist.destroy_process_group()


def speed(folder: Path, world: int, steps: int) -> tuple[float, float]:
    """Tokens a second, and megabytes exchanged a step."""
    settings = [
        f"run.dir={folder / 'run'}",
        f"corpus.dir={folder / 'corpus'}",
        f"train.lanes={64 * world}",
        f"train.processes={world}",
        "train.threads=1",
        f"train.max_steps={steps}",
        "checkpoint.every_steps=1000000",
        "eval.every_steps=0",
        "tracking.every_steps=1",
    ]
    run = RunFolder.of(load_config("small", settings))
    at(run.attempt).write_json({"attempt": 1})
    mp.spawn(process, (world, settings, 20000 + int(torch.randint(20000, ()))), nprocs=world)
    records = [r for r, _ in read_journal(run.journal, 0) if r.kind == "metrics"][2:-1]
    seconds = (records[-1].time - records[0].time) / 1000
    values = records[-1].values
    exchanged = values["train/softmax_mb_exchanged"] + values["train/dense_mb_exchanged"]
    shutil.rmtree(folder / "run")
    return (len(records) - 1) * 64 * world * 20 / seconds, exchanged


def main() -> int:
    if not (SHARED / "data" / "wikitext2").is_dir():
        skip(f"{SHARED} has no data/wikitext2; ELMWRIGHT_SHARED names the folder that holds it")
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 14
    folder = Path(tempfile.mkdtemp(prefix="elmwright-bench-"))
    wikitext_corpus(folder, 2560, folder / "corpus")
    best = {1: 0.0, 2: 0.0}
    for number in range(rounds):
        for world in (1, 2):
            found, exchanged = speed(folder, world, steps)
            best[world] = max(best[world], found)
            print(
                f"round {number + 1}: {world} process(es) {found:,.0f} tokens/s, "
                f"{exchanged:.1f} MB exchanged a step",
                flush=True,
            )
    shutil.rmtree(folder)
    ratio = best[2] / best[1]
    print(
        f"2 processes {best[2]:,.0f} tokens/s, 1 process {best[1]:,.0f}: {ratio:.2f}×, at least "
        f"{TARGET}×: {'holds' if ratio >= TARGET else 'does not hold'}"
    )
    return 0 if ratio >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
