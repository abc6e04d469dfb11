"""Our side of the embedding benchmarks: `python side_embed_ours.py FOLDER THREADS [forward]`.

Every line on standard input is one pass over all sentences with a fresh, empty cache; what is kept
for the comparison is the plain average of the layers. With `forward`, batches of 32
are mixed in the order given, and nothing is kept.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
import torch

from elmwright.model.formats.folder import load_folder
from elmwright.model.inference.elmo import Elmo

BATCH = 32


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(int(sys.argv[2]))
    sentences = json.loads((folder / "sentences.json").read_text())
    bilm = load_folder(folder).bilm
    print("ready", flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        elmo = Elmo(bilm, dropout=0.0)
        if "forward" in sys.argv:
            with torch.no_grad():
                for first in range(0, len(sentences), BATCH):
                    elmo(sentences[first : first + BATCH])
            seconds = time.perf_counter() - start
            print(json.dumps({"seconds": seconds, "loss": 0.0}), flush=True)
            continue
        vectors = elmo.embed(sentences)
        seconds = time.perf_counter() - start
        np.save(folder / "ours.npy", np.concatenate([layers.mean(axis=0) for layers in vectors]))
        print(json.dumps({"seconds": seconds, "loss": 0.0}), flush=True)


if __name__ == "__main__":
    main()
