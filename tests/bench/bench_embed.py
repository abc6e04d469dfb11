"""Embedding text against AllenNLP's `Elmo`, same weights and sentences: same vectors, at least 4×.

    python tests/bench/bench_embed.py [sentences] [rounds]

The peer is fed twice: in the order of the text (what its users do, and what the ratio is about),
and sorted by length, where it has no padding to compute; ours sorts by itself.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path
from statistics import median

import numpy as np
from duel import Side
from workload import PEER_PYTHON, need_peer, sentences

from elmwright.model.bilm import BiLM
from elmwright.model.config import ModelConfig
from elmwright.model.formats.bilm_format import write_options, write_weights
from elmwright.model.formats.folder import model_tensors

CONFIG = ModelConfig(dim=1024, projection_dim=128, n_highway=1)
TARGET, TOLERANCE = 4.0, 1e-5


def real_sentences(count: int) -> list[list[str]]:
    """WikiText-2's paragraphs, cut after full stops."""
    cut: list[list[str]] = []
    for paragraph in sentences("valid"):
        cut.append([])
        for word in paragraph:
            cut[-1].append(word)
            if word == ".":
                cut.append([])
        cut = [words for words in cut if words]
        if len(cut) >= count:
            break
    return cut[:count]


def write_folder(text: list[list[str]], config: ModelConfig = CONFIG) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="elmwright-bench-"))
    write_options(folder / "options.json", config)
    write_weights(folder / "weights.hdf5", config, model_tensors(BiLM(config, 0)))
    (folder / "sentences.json").write_text(json.dumps(text))
    return folder


def main() -> None:
    need_peer()
    count, rounds = (*map(int, sys.argv[1:]), *(400, 3)[len(sys.argv) - 1 :])
    text = real_sentences(count)
    words = sum(map(len, text))
    reached = []
    for order, given in (("text", text), ("length", sorted(text, key=len))):
        folder = write_folder(given)
        for threads in (1, 2):
            arguments = str(folder), str(threads)
            ours = Side(
                "elmwright", sys.executable, "side_embed_ours.py", *arguments, threads=threads
            )
            peer = Side(
                "allennlp", str(PEER_PYTHON), "side_embed_allennlp.py", *arguments, threads=threads
            )
            for _ in range(rounds):
                ours.run(1)
                peer.run(1)
            ours.close()
            peer.close()
            gap = float(np.abs(np.load(folder / "ours.npy") - np.load(folder / "peer.npy")).max())
            ratio = median(peer.seconds) / median(ours.seconds)
            print(
                f"{len(text)} sentences by {order}, {threads} thread(s): "
                f"elmwright {words / median(ours.seconds):.0f} words/s, "
                f"allennlp {words / median(peer.seconds):.0f} words/s, ratio {ratio:.2f}; "
                f"largest difference {gap:.1e}",
                flush=True,
            )
            assert gap <= TOLERANCE, "the vectors differ"
            reached.append(ratio >= TARGET or order == "length")
        shutil.rmtree(folder)
    sys.exit(0 if all(reached) else 1)


if __name__ == "__main__":
    main()
