"""Training speed at the original dims against AllenNLP's modules: at least 4×, and at least 70 %
of the machine's own GEMM rate on the useful arithmetic.

    python tests/bench/bench_train_original.py [rounds] [threads ...]

A step of the peer takes about a minute, so there are few: allow five minutes. The rate of a large
GEMM is taken with the same threads right before and after each of our steps, and each step is
compared with the mean of its two: what else the machine does then weighs on both. The best GEMM of
the whole run is printed too; on a quiet machine the two agree.
"""

import shutil
import sys
from statistics import median

import numpy as np
import torch
from duel import report, training_duel
from gemm import large_rate
from workload import need_peer, write_workload

from elmwright.model.config import ModelConfig
from elmwright.model.flops import useful_flops

CONFIG = ModelConfig()
LANES, WINDOW, NEGATIVES, TARGET, SHARE = 128, 20, 8192, 4.0, 0.7


def main() -> None:
    need_peer()
    rounds, *chosen = [int(argument) for argument in sys.argv[1:]] or [2]
    folder = write_workload(CONFIG, LANES, WINDOW, rounds + 1, NEGATIVES)
    work = np.load(folder / "work.npz")
    tokens, reached = LANES * WINDOW, []
    flops = [
        useful_flops(CONFIG, tokens, NEGATIVES, torch.from_numpy(work["chars"][np.unique(read)]))
        for read in work["windows"][1:, :, 1:-1]
    ]
    useful = [sum(parts.values()) for parts in flops]
    for threads in chosen or [2]:
        print(f"{LANES} × {WINDOW} tokens a step, {threads} thread(s)", flush=True)
        torch.set_num_threads(threads)
        gemms: list[float] = []
        ours, peer = training_duel(
            folder, threads, rounds, 1, lambda gemms=gemms: gemms.append(large_rate())
        )
        reached.append(report(ours, peer, tokens, threads, TARGET))
        rates = [flop / seconds for flop, seconds in zip(useful, ours.seconds, strict=True)]
        beside = [(one + other) / 2 for one, other in zip(gemms[::2], gemms[1::2], strict=True)]
        share = median(rate / gemm for rate, gemm in zip(rates, beside, strict=True))
        parts = ", ".join(f"{part} {count / 1e9:.0f}" for part, count in flops[0].items())
        print(f"  useful arithmetic a step: {useful[0] / 1e9:.0f} GFLOP ({parts})")
        print(
            f"  achieved {median(rates) / 1e9:.1f} GFLOP/s, a large GEMM beside it "
            f"{median(beside) / 1e9:.1f} GFLOP/s: {share:.0%}; target {SHARE:.0%} "
            f"(best step {max(rates) / 1e9:.1f}, best GEMM {max(gemms) / 1e9:.1f})",
            flush=True,
        )
        reached.append(share >= SHARE)
    shutil.rmtree(folder)
    sys.exit(0 if all(reached) else 1)


if __name__ == "__main__":
    main()
