"""Embedding text against AllenNLP's `Elmo`: same weights, same sentences, same vectors.

    python tests/bench/bench_embed.py [--sentences N] [--rounds N] [--json FILE]

The peer is fed twice: in the order of the text, as its users do (at least 12 ×), and sorted by
length, where it has no padding to compute (at least 8 ×). Ours sorts by itself. Two threads must
reach 1.8 × the speed of one. Every pass begins with an empty cache.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
from duel import Side
from verdict import Bar, conclude, print_circumstances, record_parser
from workload import PEER_PYTHON, need_peer, sentences

from elmwright.model.bilm import BiLM
from elmwright.model.config import ModelConfig
from elmwright.model.formats.bilm_format import write_options, write_weights
from elmwright.model.formats.folder import model_tensors

CONFIG = ModelConfig(dim=1024, projection_dim=128, n_highway=1)
LEAST = {"text": 12.0, "length": 8.0}
THREADS_LEAST, TOLERANCE = 1.8, 1e-5


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


def main() -> int:
    parser = record_parser(__doc__)
    parser.add_argument("--sentences", type=int, default=800)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    need_peer()
    print_circumstances()
    text = real_sentences(options.sentences)
    words, bars = sum(map(len, text)), []
    for order, given in (("text", text), ("length", sorted(text, key=len))):
        folder, speed = write_folder(given), {}
        for threads in (1, 2):
            ours, peer, gap = duel(folder, threads, options.rounds)
            speed[threads] = words / ours.median
            print(
                f"{len(text)} sentences by {order}, {threads} thread(s): elmwright "
                f"{speed[threads]:,.0f} words/s ({ours.spread}), allennlp "
                f"{words / peer.median:,.0f} words/s ({peer.spread}); largest difference {gap:.1e}",
                flush=True,
            )
            name = f"embedding by {order}, {threads} thread(s)"
            bars += [
                Bar(
                    f"{name}, against AllenNLP",
                    peer.median / ours.median,
                    LEAST[order],
                    is_least=True,
                    ours=f"{speed[threads]:,.0f} words/s",
                    peer=f"AllenNLP {words / peer.median:,.0f} words/s",
                ),
                Bar(f"{name}: largest difference of a vector", gap, TOLERANCE),
            ]
        shutil.rmtree(folder)
        bars.append(
            Bar(
                f"embedding by {order}, 2 threads against 1",
                speed[2] / speed[1],
                THREADS_LEAST,
                is_least=True,
                ours=f"{speed[2]:,.0f} words/s",
                peer=f"1 thread {speed[1]:,.0f} words/s",
            )
        )
    return conclude(options, {}, bars)


def duel(folder: Path, threads: int, rounds: int) -> tuple[Side, Side, float]:
    """Both sides, and the largest difference between their vectors."""
    where = str(folder), str(threads)
    ours = Side("elmwright", sys.executable, "side_embed_ours.py", *where, threads=threads)
    peer = Side("allennlp", str(PEER_PYTHON), "side_embed_allennlp.py", *where, threads=threads)
    for side in (ours, peer):
        side.warm_up(1)
    for _ in range(rounds):
        ours.run(1)
        peer.run(1)
    for side in (ours, peer):
        side.close()
    gap = float(np.abs(np.load(folder / "ours.npy") - np.load(folder / "peer.npy")).max())
    return ours, peer, gap


if __name__ == "__main__":
    sys.exit(main())
