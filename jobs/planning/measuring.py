"""How fast this machine trains, measured: a second or two of real steps on the config's own shapes.

One process makes the training loop's own step (`training_step.py`): its share of the lanes, the
configured threads, the real model and optimiser, words of the user's text spelled as they are.
Included is all that a step computes; not included are exchange between processes, reading blocks,
evaluation and checkpoints. Other processes are assumed to be as fast, as long as there is a core
for each thread.

A softmax of which only sampled rows are touched costs the same whatever its size, so it is measured
with at most `ROWS` words: a vocabulary of 800,000 would fill the memory for nothing.
"""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pydoc_data.topics import topics

import numpy as np
import torch

from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.training.loop.exchange import Beats, Ranks
from elmwright.jobs.training.loop.state import Trainer
from elmwright.jobs.training.loop.step_clock import Clock
from elmwright.jobs.training.loop.stream import Batch
from elmwright.jobs.training.loop.training_step import Process, make_step
from elmwright.model.bilm import BiLM, States
from elmwright.model.chars import BEGIN_SENTENCE, END_SENTENCE, char_ids
from elmwright.model.optim import Optimizer
from elmwright.model.softmax import Softmax

ROWS = 50_000
"""Words of the measured softmax, at most, where only sampled rows are touched."""
SECONDS = 1.5
"""How long to measure, after a first step that warms up; two steps at least."""


@dataclass(frozen=True)
class Measured:
    """What one process did."""

    tokens_per_s: float
    """Of this process."""
    steps: int
    """Steps that were timed."""
    seconds: float
    """How long they took."""


DOCUMENTATION = "Python's own documentation"
"""What is read where no text of the user's is at hand."""


def documentation() -> list[str]:
    """Some English sentences that are on every machine."""
    lines = [line for name in sorted(topics) for line in topics[name].split("\n")]
    return [line.strip() for line in lines if line.count(" ") > 5]


def measure(
    config: RunConfig, sentences: Sequence[str], vocabulary: int, seconds: float = SECONDS
) -> Measured:
    """Time real steps of one training process on sentences of the text (words between spaces)."""
    lanes = config.train.lanes // config.train.processes
    config = replace(config, train=replace(config.train, lanes=lanes, processes=1))
    torch.set_num_threads(config.train.threads)
    full = config.train.negatives >= vocabulary
    this = _process(config, vocabulary if full else min(vocabulary, ROWS))
    stream = _Stream(sentences, this.trainer.softmax.vocab_size, config)
    step = 0

    def one() -> None:
        nonlocal step
        batches = [stream.batch(step + n) for n in range(config.train.accumulate)]
        make_step(this, batches, wish=False)
        step += 1

    one()
    begun = time.perf_counter()
    while step < 3 or time.perf_counter() - begun < seconds:
        one()
    spent = time.perf_counter() - begun
    return Measured((step - 1) * config.train.tokens / spent, step - 1, spent)


def _process(config: RunConfig, vocabulary: int) -> Process:
    """What `train` and `state.begin` set up, for one process without a corpus."""
    ranks = Ranks()
    bilm = BiLM(config.model, 1)
    softmax = Softmax.create(vocabulary, config.model.projection_dim, 2)
    optimizer = Optimizer(dict(bilm.named_parameters()), softmax, config.optim)
    lanes = ranks.lanes(config.train.lanes)
    trainer = Trainer(bilm, softmax, optimizer, States.zeros(config.model, len(lanes)))
    per_block = max(1, config.shards.block_steps // config.train.window)
    return Process(config, trainer, bilm, ranks, lanes, per_block, Clock(), Beats(ranks))


class _Stream:
    """Windows of the text, one for each lane, begun at equal distances and read round and round."""

    def __init__(self, sentences: Sequence[str], vocabulary: int, config: RunConfig) -> None:
        words = [w for s in sentences for w in (BEGIN_SENTENCE, *s.split(), END_SENTENCE)]
        counts = Counter(words)
        types = sorted(counts, key=lambda word: (-counts[word], word))
        number = {word: n for n, word in enumerate(types)}
        self._chars = char_ids(types, config.model.max_chars)
        self._ids = np.minimum(np.arange(len(types)), vocabulary - 1)
        """By falling frequency, as in a vocabulary: the sampled softmax counts on that."""
        self._text = np.array([number[word] for word in words])
        self._lanes, self._window = config.train.lanes, config.train.window

    def batch(self, step: int) -> Batch:
        """The window of every lane at this step."""
        starts = np.linspace(0, len(self._text), self._lanes, endpoint=False).astype(np.int64)
        places = starts[:, None] + np.arange(step * self._window, (step + 1) * self._window)
        here, before, after = (
            self._text[(places + shift) % len(self._text)] for shift in (0, -1, 1)
        )
        types, index = np.unique(here, return_inverse=True)
        forward = index.reshape(here.shape)
        arrays = (
            self._chars[types].astype(np.int64),
            forward,
            forward[:, ::-1].copy(),
            self._ids[after],
            self._ids[before][:, ::-1].copy(),
            np.ones(here.shape, np.float32),
        )
        return Batch(*map(torch.from_numpy, arrays))
