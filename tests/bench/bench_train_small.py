"""Training speed of `small.toml`'s model against AllenNLP's modules: at least 5×, hoped for 6×.

python tests/bench/bench_train_small.py [rounds]
"""

import shutil
import sys
from statistics import median

import numpy as np
import torch
from duel import report, training_duel
from gemm import print_bound, step_products
from workload import need_peer, write_workload

from elmwright.model.config import ModelConfig

CONFIG = ModelConfig(dim=1024, projection_dim=128, n_highway=1)
LANES, WINDOW, NEGATIVES, TARGET = 64, 20, 8192, 5.0


def main() -> None:
    need_peer()
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    folder = write_workload(CONFIG, LANES, WINDOW, rounds + 1, NEGATIVES)
    work = np.load(folder / "work.npz")
    types = np.unique(work["windows"][0][:, 1:-1])
    products = step_products(
        CONFIG, LANES, WINDOW, NEGATIVES, torch.from_numpy(work["chars"][types])
    )
    reached = []
    for threads in (1, 2):
        print(f"{LANES} × {WINDOW} tokens a step, {len(types)} types, {threads} thread(s)")
        ours, peer = training_duel(folder, threads, rounds, 1)
        reached.append(report(ours, peer, LANES * WINDOW, threads, TARGET))
        torch.set_num_threads(threads)
        print_bound(products, median(ours.seconds))
    shutil.rmtree(folder)
    sys.exit(0 if all(reached) else 1)


if __name__ == "__main__":
    main()
