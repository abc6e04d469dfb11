"""The peer's side of the embedding benchmark: AllenNLP's `Elmo` on the same files.

Runs in AllenNLP's environment: `python side_embed_allennlp.py FOLDER THREADS`. Batches of 32 in the
order given, states reset before each batch (it carries them otherwise). A line "1" on standard
input is one pass. Untrained, its mix is the plain average of the layers.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from allennlp.modules.elmo import Elmo, batch_to_ids

BATCH = 32


def embed(elmo, sentences):
    vectors = []
    for start in range(0, len(sentences), BATCH):
        elmo._elmo_lstm._elmo_lstm.reset_states()
        out = elmo(batch_to_ids(sentences[start : start + BATCH]))
        mixed, mask = out["elmo_representations"][0], out["mask"]
        vectors += [row[there].numpy() for row, there in zip(mixed, mask)]  # noqa: B905 - 3.8
    return vectors


def main():
    folder = Path(sys.argv[1])
    torch.set_num_threads(int(sys.argv[2]))
    sentences = json.loads((folder / "sentences.json").read_text())
    files = str(folder / "options.json"), str(folder / "weights.hdf5")
    elmo = Elmo(*files, num_output_representations=1, dropout=0.0).eval()
    print("ready", flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        with torch.no_grad():
            vectors = embed(elmo, sentences)
        seconds = time.perf_counter() - start
        np.save(folder / "peer.npy", np.concatenate(vectors))
        print(json.dumps({"seconds": seconds, "loss": 0.0}), flush=True)


if __name__ == "__main__":
    main()
