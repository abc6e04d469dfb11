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
        start, cpu = time.perf_counter(), time.process_time()
        elmo = Elmo(bilm, dropout=0.0)
        if "forward" in sys.argv:
            with torch.no_grad():
                for first in range(0, len(sentences), BATCH):
                    elmo(sentences[first : first + BATCH])
        else:
            vectors = elmo.embed(sentences)
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        if "forward" not in sys.argv:
            mean = [layers.mean(axis=0) for layers in vectors]
            np.save(folder / "ours.npy", np.concatenate(mean))
        print(json.dumps({"seconds": seconds, "cpu": cpu, "loss": 0.0}), flush=True)


if __name__ == "__main__":
    main()
