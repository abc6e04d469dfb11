"""The peer's side of interop_allennlp.py, in AllenNLP's environment: every layer as it sees it.

A mix with all its weight on one layer is that layer; each sentence is read from fresh states.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from allennlp.modules.elmo import Elmo, batch_to_ids


def main():
    folder = Path(sys.argv[1])
    sentences = json.loads((folder / "sentences.json").read_text())
    options, weights = str(folder / "options.json"), str(folder / "weights.hdf5")
    layers = json.loads(Path(options).read_text())["lstm"]["n_layers"] + 1
    found = []
    for layer in range(layers):
        shares = [0.0 if number == layer else -1e9 for number in range(layers)]
        elmo = Elmo(options, weights, 1, dropout=0.0, scalar_mix_parameters=shares).eval()
        vectors = []
        for start in range(0, len(sentences), 32):
            elmo._elmo_lstm._elmo_lstm.reset_states()
            with torch.no_grad():
                out = elmo(batch_to_ids(sentences[start : start + 32]))
            mixed, mask = out["elmo_representations"][0], out["mask"]
            vectors += [row[there].numpy() for row, there in zip(mixed, mask)]  # noqa: B905 - 3.8
        found.append(np.concatenate(vectors))
    np.save(folder / "peer.npy", np.stack(found))


if __name__ == "__main__":
    main()
