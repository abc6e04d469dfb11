"""Types, not tokens: how much the character CNN saves by reading each distinct word once.

Both sides encode the same batch of a finished corpus (64 lanes × 20 steps; both directions read the
same tokens) with the `small` recipe's encoder, forward and backward: every token, or every distinct
word once. Alternating, best of several; only the ratio means anything.

    python tests/bench/bench_encoder.py [CORPUS]      (default: runs/demo/corpus)
"""

import sys
import time
from pathlib import Path

import torch

from elmwright.jobs.config.toml_file import load_config
from elmwright.jobs.training.loop.input.blocks import Blocks
from elmwright.jobs.training.loop.input.stream import Reading, training_batch
from elmwright.model.encoder import TokenEncoder
from elmwright.pipeline.format.manifest import Manifest

ROUNDS, LANES, WINDOW = 5, 64, 20


def main() -> int:
    corpus = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/demo/corpus")
    if not (corpus / "MANIFEST.json").is_file():
        print(f"skipped: there is no corpus {corpus}; 'make run' makes one")
        return 0
    torch.set_num_threads(1)
    config = load_config("small").model
    blocks = Blocks(corpus, Manifest.load(corpus), "train", config.max_chars, keep=LANES)
    batch = training_batch(blocks, Reading(1, LANES, WINDOW), 0, range(LANES))
    encoder = TokenEncoder(config)
    encoder.initialize(torch.Generator().manual_seed(1))
    types = batch.chars
    index = batch.forward_index.reshape(-1)
    tokens = types.index_select(0, index)
    sides = {"tokens": tokens, "types": types}
    best = dict.fromkeys(sides, float("inf"))
    for _ in range(ROUNDS):
        for name, chars in sides.items():
            start = time.perf_counter()
            encoder(chars).sum().backward()
            best[name] = min(best[name], time.perf_counter() - start)
    ratio = best["tokens"] / best["types"]
    print(
        f"encoder, {len(tokens):,} tokens: {best['tokens']:.3f} s; "
        f"{len(types):,} distinct words: {best['types']:.3f} s; ratio {ratio:.2f}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
