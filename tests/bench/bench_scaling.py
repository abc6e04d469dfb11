"""Two processes of one thread against one: at least 1.8 × the tokens per second in every round.

    python tests/bench/bench_scaling.py [--rounds N] [--json FILE] [--flops F --gbits G]

`jobs/training/loop/train.py` itself, with `small.toml`'s model, the WikiText-2 vocabulary, and 64
lanes × 20 steps in each process. In each round the sides take turns, and one process with two
threads is there for comparison. Each is measured from its third step on.

It also prints the time and the size of the exchange, and what a model of the exchange
(exchange_model.py) says of 8 to 256 GPUs at the original's dimensions, each computing `--flops`
(40e12) and sending `--gbits` (100) per second. The model is arithmetic; no GPU was measured.
"""

import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from corpus import wikitext_corpus
from exchange_model import GPUS, Network, Step, dense_bytes, efficiency, rows_bytes
from verdict import Bar, conclude, print_circumstances, record_parser
from workload import SHARED, sentences, skip, vocabulary

from elmwright.jobs.config.toml_file import load_config
from elmwright.jobs.rundir import metrics
from elmwright.jobs.rundir.journal_lines import read_journal
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.training.loop.exchange import Ranks
from elmwright.jobs.training.loop.train import train
from elmwright.model.bilm import BiLM
from elmwright.model.chars import char_ids
from elmwright.model.config import ModelConfig
from elmwright.model.flops import step_flops
from elmwright.pipeline.storage.files import at

LEAST, STEPS, LANES, WINDOW = 1.8, 20, 64, 20
SIDES = ((1, 1), (2, 1), (1, 2))
"""Processes and threads of each."""
ORIGINAL_LANES, LATENCY = 128, 10e-6


@dataclass(frozen=True)
class Measured:
    """One run."""

    tokens_per_s: float
    exchange: float
    """The share of the time in which a process only waits for others."""
    dense_mb: float
    rows_mb: float


def process(rank: int, world: int, settings: list[str], port: int) -> None:
    if world > 1:
        dist.init_process_group(
            "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world
        )
    config = load_config("small", settings)
    torch.set_num_threads(config.train.threads)
    train(config, RunFolder.of(config), 1, Ranks(rank, world))
    if world > 1:
        dist.destroy_process_group()


def measure(folder: Path, world: int, threads: int) -> Measured:
    settings = [
        f"run.dir={folder / 'run'}",
        f"corpus.dir={folder / 'corpus'}",
        f"train.lanes={LANES * world}",
        f"train.processes={world}",
        f"train.threads={threads}",
        f"train.max_steps={STEPS}",
        "checkpoint.every_steps=1000000",
        "eval.every_steps=0",
        "tracking.every_steps=1",
    ]
    run = RunFolder.of(load_config("small", settings))
    at(run.attempt).write_json({"attempt": 1})
    mp.spawn(process, (world, settings, 20000 + int(torch.randint(20000, ()))), nprocs=world)
    records = [r for r, _ in read_journal(run.journal, 0) if r.kind == "metrics"][2:-1]
    seconds = (records[-1].time - records[0].time) / 1000
    shutil.rmtree(folder / "run")

    def typical(key: str) -> float:
        return median(record.values.get(key, 0.0) for record in records[1:])

    return Measured(
        (len(records) - 1) * LANES * world * WINDOW / seconds,
        typical(metrics.time_share("exchange")),
        typical(metrics.DENSE_EXCHANGED.key),
        typical(metrics.SOFTMAX_EXCHANGED.key),
    )


def main() -> int:
    parser = record_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--flops", type=float, default=40e12)
    parser.add_argument("--gbits", type=float, default=100)
    options = parser.parse_args()
    if not (SHARED / "data" / "wikitext2").is_dir():
        skip(f"{SHARED} has no data/wikitext2; ELMWRIGHT_SHARED names the folder that holds it")
    print_circumstances()
    folder = Path(tempfile.mkdtemp(prefix="elmwright-bench-"))
    wikitext_corpus(folder, 2560, folder / "corpus")
    found: dict[tuple[int, int], list[Measured]] = {side: [] for side in SIDES}
    for number in range(options.rounds):
        for side in SIDES:
            found[side].append(measure(folder, *side))
        print(f"round {number + 1}: " + ", ".join(map(described, SIDES, last(found))), flush=True)
    shutil.rmtree(folder)
    two = found[2, 1]
    print(
        f"exchange with 2 processes: {median(m.exchange for m in two):.1%} of the time; per step "
        f"{two[0].dense_mb:.1f} MB of gradients and {two[0].rows_mb:.1f} MB of softmax rows"
    )
    print_prediction(options.flops, options.gbits)

    def ratio(side: tuple[int, int], choose: Callable[[list[float]], float]) -> float:
        pairs = zip(found[side], found[1, 1], strict=True)
        return choose([many.tokens_per_s / one.tokens_per_s for many, one in pairs])

    one, both = (median(m.tokens_per_s for m in found[side]) for side in SIDES[:2])
    print(f"1 process of 2 threads against 1 of 1: {ratio((1, 2), median):.2f} × (median)")
    bar = Bar(
        f"training small, 2 processes against 1, slowest of {options.rounds} rounds",
        ratio((2, 1), min),
        LEAST,
        is_least=True,
        ours=f"{both:,.0f} tokens/s",
        peer=f"1 process {one:,.0f} tokens/s",
    )
    return conclude(options, {"median": ratio((2, 1), median)}, [bar])


def last(found: dict[tuple[int, int], list[Measured]]) -> list[Measured]:
    return [found[side][-1] for side in SIDES]


def described(side: tuple[int, int], measured: Measured) -> str:
    return f"{side[0]} × {side[1]} thread(s) {measured.tokens_per_s:,.0f} tokens/s"


def print_prediction(flops: float, gbits: float) -> None:
    """What the model says of GPUs."""
    config, text = ModelConfig(), sentences("train")
    ids = {word: number for number, word in enumerate(vocabulary(text))}
    stream = np.array([ids.get(word, 2) for line in text for word in line], dtype=np.int64)
    parameters = sum(p.numel() for p in BiLM(config, 1).parameters())
    tokens = ORIGINAL_LANES * WINDOW
    words = [word for word, _ in zip(ids, range(tokens // 2), strict=False)]
    useful = step_flops(config, tokens, 8192, torch.from_numpy(char_ids(words, config.max_chars)))
    step = Step(ORIGINAL_LANES, WINDOW, 8192, useful / flops)
    network = Network(gbits * 1e9 / 8, LATENCY)
    print(
        f"\npredicted for the original's dimensions: {ORIGINAL_LANES} × {WINDOW} tokens per GPU "
        f"and step, {useful / 1e9:,.0f} GFLOP at {flops / 1e12:,.0f} TFLOP/s = "
        f"{step.seconds:.3f} s; {gbits:,.0f} Gbit/s per GPU"
    )
    print(
        f"{'GPUs':>5} {'gradients':>10} {'rows':>8} {'no overlap':>11} {'overlap':>8} "
        f"{'tokens/s':>11}"
    )
    for gpus in GPUS:
        apart, overlapped = efficiency(config, step, parameters, gpus, stream, network)
        dense, rows = dense_bytes(parameters), rows_bytes(config, step, gpus, stream)
        print(
            f"{gpus:>5} {dense / 1e6:>7,.0f} MB {rows / 1e6:>5,.0f} MB {apart:>11.0%} "
            f"{overlapped:>8.0%} {gpus * tokens / step.seconds * overlapped:>11,.0f}"
        )


if __name__ == "__main__":
    sys.exit(main())
