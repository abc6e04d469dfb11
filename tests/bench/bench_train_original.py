"""Training speed at the original's dimensions, 2 threads, in float32 and bfloat16.

    python tests/bench/bench_train_original.py [--rounds N] [--threads N] [--json FILE]

In float32 the useful arithmetic must reach 80 % of the rate of a large product, and 4 × AllenNLP's
modules; on processors with AVX-512 85 % and 3.2 ×. In bfloat16, where the processor has it, 6 ×.
Losses must agree. A step of the peer takes half a minute: allow a quarter of an hour.
"""

import shutil
import sys

import numpy as np
import torch
from gemm import print_bound, step_products
from train_duel import STEPS, WARM_UP, has_wide_vectors, precisions, train_duel
from verdict import Bar, conclude, print_circumstances, record_parser
from workload import need_peer, write_workload

from elmwright.model.config import ModelConfig

CONFIG = ModelConfig()
LANES, WINDOW, NEGATIVES = 128, 20, 8192
LEAST, LEAST_WIDE, BF16, BF16_HOPED = 4.0, 3.2, 6.0, 8.0
SHARE, SHARE_WIDE, SHARE_HOPED = 0.80, 0.85, 0.90


def main() -> int:
    parser = record_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    need_peer()
    print_circumstances()
    folder = write_workload(CONFIG, LANES, WINDOW, WARM_UP + STEPS * options.rounds, NEGATIVES)
    work = np.load(folder / "work.npz")
    chars = torch.from_numpy(work["chars"][np.unique(work["windows"][0][:, 1:-1])])
    print(f"{LANES} × {WINDOW} tokens per step, {options.threads} thread(s)", flush=True)
    duel = train_duel(folder, CONFIG, options.threads, options.rounds, precisions())
    torch.set_num_threads(options.threads)
    print_bound(step_products(CONFIG, LANES, WINDOW, NEGATIVES, chars), duel.ours["fp32"].median)
    shutil.rmtree(folder)

    name = f"training original, {options.threads} thread(s)"
    share = SHARE_WIDE if has_wide_vectors() else SHARE
    bars = [
        duel.speed_bar(name, "fp32", LEAST_WIDE if has_wide_vectors() else LEAST, None),
        Bar(
            f"{name}, fp32, share of a large product's rate",
            duel.share("fp32"),
            share,
            is_least=True,
            hoped=SHARE_HOPED,
        ),
        duel.loss_bar(name, "fp32"),
    ]
    if "bf16" in duel.ours:
        bars.append(duel.speed_bar(name, "bf16", BF16, BF16_HOPED))
        bars.append(duel.loss_bar(name, "bf16"))
    return conclude(options, {}, bars, is_as_meant=options.threads == 2)


if __name__ == "__main__":
    sys.exit(main())
