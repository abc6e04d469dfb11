"""The work that both sides of a comparison are given: real text, and everything drawn beforehand.

A workload is one folder: `work.npz` (windows of WikiText-2 as indices into its word types, their
vocabulary ids and characters, the negatives of every step), `shape.json`, and the initial weights
in the published format. Each side reads that folder and nothing else, so vocabulary, windows,
batch, negatives and starting point are the same by construction, and so must be the first loss.
"""

import json
import lzma
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import NoReturn

import numpy as np

from elmwright.model.bilm import BiLM
from elmwright.model.chars import char_ids
from elmwright.model.config import ModelConfig
from elmwright.model.formats.bilm_format import write_options, write_weights
from elmwright.model.formats.folder import model_tensors
from elmwright.model.softmax import draw_negatives

ROOT = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("ELMWRIGHT_SHARED", ROOT.parent / "shared"))
"""Where the measurement texts lie (`data/wikitext2`)."""
PEER_PYTHON = Path(
    os.environ.get("ELMWRIGHT_PEER_PYTHON", Path.home() / ".cache/elmwright/peer/bin/python")
)
"""A Python 3.8 with `pip install allennlp==2.10.1`, then
`pip install --force-reinstall lmdb==1.3.0`."""

SPECIAL = ("<S>", "</S>", "<UNK>")


def skip(reason: str) -> NoReturn:
    print(f"skipped: {reason}")
    sys.exit(0)


def sentences(split: str) -> list[list[str]]:
    """The non-blank lines of WikiText-2, split at spaces."""
    path = SHARED / "data" / "wikitext2" / f"wiki.{split}.tokens.xz"
    if not path.is_file():
        skip(f"{path} is not there; ELMWRIGHT_SHARED names the folder that holds data/wikitext2")
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        return [words for line in lines if (words := line.split())]


def need_peer() -> None:
    if not PEER_PYTHON.is_file():
        skip(f"no AllenNLP at {PEER_PYTHON}; ELMWRIGHT_PEER_PYTHON names its interpreter")


def vocabulary(text: list[list[str]]) -> list[str]:
    """By falling frequency, ties by spelling, after the special words."""
    counts = Counter(word for sentence in text for word in sentence)
    for word in SPECIAL:
        counts.pop(word, None)
    return [*SPECIAL, *sorted(counts, key=lambda word: (-counts[word], word))]


def write_workload(config: ModelConfig, lanes: int, window: int, steps: int, n: int) -> Path:
    """Lanes start at equal distances in the training text: step k of lane i reads its k-th window
    and predicts the word after (forward) and before (backward) each word of it."""
    text = sentences("train")
    vocab = vocabulary(text)
    ids = {word: number for number, word in enumerate(vocab)}
    stream = np.array([i for line in text for i in (0, *(ids[word] for word in line), 1)])
    starts = np.linspace(0, len(stream) - window * steps - 2, lanes).astype(np.int64)
    lane = stream[starts[:, None] + np.arange(window * steps + 2)]
    windows = np.stack([lane[:, k * window : (k + 1) * window + 2] for k in range(steps)])
    negatives = [draw_negatives(0, step, n, len(vocab)) for step in range(steps)]

    folder = Path(tempfile.mkdtemp(prefix="elmwright-bench-"))
    np.savez(
        folder / "work.npz",
        windows=windows,
        chars=char_ids(vocab, config.max_chars),
        negatives=np.stack([drawn.ids.numpy() for drawn in negatives]),
        tries=np.array([drawn.tries for drawn in negatives]),
        softmax=np.random.default_rng(0)
        .normal(0, config.projection_dim**-0.5, (len(vocab), config.projection_dim))
        .astype(np.float32),
    )
    shape = {
        "dim": config.dim,
        "proj": config.projection_dim,
        "filters": config.filters,
        "highway": config.n_highway,
        "char_dim": config.char_dim,
        "lr": 0.2,
        "accumulator": 1.0,
        "clip": 10.0,
    }
    (folder / "shape.json").write_text(json.dumps(shape))
    write_options(folder / "options.json", config)
    write_weights(folder / "weights.hdf5", config, model_tensors(BiLM(config, 0)))
    return folder
