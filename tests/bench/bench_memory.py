"""Peak memory of training at `original.toml`'s dims with 793,471 words: at most 1.2× arithmetic.

    python tests/bench/bench_memory.py [steps]

The arithmetic counts parameters, the optimiser's sums, and what has to exist at one time in a step:
gradients of the dense parameters, what the LSTMs keep for their backward pass (four gates, cell and
its tanh, input and output, for each token, layer and direction), the encoder's layers for each
distinct word, and the touched rows of the softmax with their gradient. The peak is that of the
whole process, with the interpreter and torch itself.
"""

import multiprocessing
import resource
import shutil
import sys
from pathlib import Path

import numpy as np
from side_ours import Trainer
from workload import write_workload

from elmwright.model.config import ModelConfig
from elmwright.model.softmax import draw_negatives

CONFIG = ModelConfig()
LANES, WINDOW, NEGATIVES, WORDS, LIMIT = 128, 20, 8192, 793_471, 1.2


def arithmetic(types: int, rows: int) -> dict[str, float]:
    """Bytes that a step cannot do without, in float32."""
    dim, proj, tokens = CONFIG.dim, CONFIG.projection_dim, LANES * WINDOW
    dense = sum(CONFIG.parameter_counts().values())
    softmax = WORDS * (proj + 1)
    lstm = 2 * CONFIG.n_layers * tokens * (6 * dim + 2 * proj)
    encoder = types * (CONFIG.n_filters * (1 + 3 * CONFIG.n_highway) + proj)
    numbers = {
        "parameters": dense + softmax,
        "optimiser": dense + softmax,
        "gradients": dense,
        "activations": lstm + encoder,
        "softmax rows": 2 * rows * (proj + 1),
    }
    return {part: 4.0 * count for part, count in numbers.items()}


def peak() -> float:
    scale = 1 if sys.platform == "darwin" else 1024
    return float(scale * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def trainer(folder: Path, steps: int) -> Trainer:
    """The workload with a vocabulary of the full size, and negatives from all of it."""
    drawn = [draw_negatives(0, step, NEGATIVES, WORDS) for step in range(steps)]
    made = Trainer(folder, words=WORDS)
    made.work["negatives"] = np.stack([negatives.ids.numpy() for negatives in drawn])
    made.work["tries"] = np.array([negatives.tries for negatives in drawn])
    return made


def main() -> None:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    # In a process of its own: the words of the whole text are not part of a training step.
    with multiprocessing.get_context("spawn").Pool(1) as other:
        folder = other.apply(write_workload, (CONFIG, LANES, WINDOW, steps, NEGATIVES))
    windows = np.load(folder / "work.npz")["windows"]
    before = peak()
    training = trainer(folder, steps)
    held = peak()
    for _ in range(steps):
        training.step()
    shutil.rmtree(folder)
    types = max(len(np.unique(read[:, 1:-1])) for read in windows)
    parts = arithmetic(types, NEGATIVES + types)
    total = sum(parts.values())
    print(", ".join(f"{part} {size / 1e6:.0f} MB" for part, size in parts.items()))
    named = sum(parts[part] for part in ("parameters", "optimiser", "activations"))
    print(f"by parameters, optimiser and activations alone: {peak() / named:.2f}×")
    print(
        f"peak {peak() / 1e6:.0f} MB ({before / 1e6:.0f} before the model was built, "
        f"{held / 1e6:.0f} before the first step), arithmetic {total / 1e6:.0f} MB: "
        f"{peak() / total:.2f}×; limit {LIMIT}×"
    )
    sys.exit(0 if peak() <= LIMIT * total else 1)


if __name__ == "__main__":
    main()
