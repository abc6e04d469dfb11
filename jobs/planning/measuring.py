"""How fast this machine trains: a second or two of real steps with the config's own shapes.

One process runs the training loop's own step (`training_step.py`) with its share of the lanes, the
configured threads, the real model and optimiser, and words of the user's text. This includes all
that a step computes, but not the exchange between processes, reading blocks, evaluation and
checkpoints. Other processes are assumed to be as fast, as long as there is a core for each thread.

A sampled softmax takes the same time for any vocabulary, so it is measured with at most `ROWS`
words: a vocabulary of 800,000 would fill the memory for nothing.
"""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pydoc_data.topics import topics

import numpy as np
import torch

from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.environment.machine_facts import bf16_instructions
from elmwright.jobs.planning.plan_record import Processor, Speed
from elmwright.jobs.training.loop.exchange import CPU, Positions, Ranks
from elmwright.jobs.training.loop.input.step_input import StepInput, step_input
from elmwright.jobs.training.loop.input.stream import Batch
from elmwright.jobs.training.loop.measurements import Clock, matrix_rate
from elmwright.jobs.training.loop.state import Trainer, average_of
from elmwright.jobs.training.loop.training_step import Process, make_step
from elmwright.model.bilm import BiLM, States
from elmwright.model.chars import BEGIN_SENTENCE, END_SENTENCE, char_ids
from elmwright.model.kernels.native import kernel_name, why_not_native
from elmwright.model.optim import Optimizer
from elmwright.model.softmax import Softmax

ROWS = 50_000
"""Largest vocabulary with which a sampled softmax is measured."""
SECONDS = 1.5
"""How long to measure, after a first step that warms up; two steps at least."""


DOCUMENTATION = "Python's own documentation"
"""How a plan names the text of `documentation`, which is used if the user has none."""


def documentation() -> list[str]:
    """Some English sentences that are on every machine."""
    lines = [line for name in sorted(topics) for line in topics[name].split("\n")]
    return [line.strip() for line in lines if line.count(" ") > 5]


def measure(
    config: RunConfig, sentences: Sequence[str], vocabulary: int, seconds: float = SECONDS
) -> Speed:
    """The speed of one of the training processes, by real steps on tokenised sentences."""
    lanes = config.train.lanes // config.train.processes
    config = replace(config, train=replace(config.train, lanes=lanes, processes=1))
    torch.set_num_threads(config.train.threads)
    rehearsal = Rehearsal(config, sentences, vocabulary)
    times: list[float] = []
    # The first step warms up.
    while len(times) < 3 or times[-1] - times[0] < seconds:
        make_step(rehearsal.process, rehearsal.input(len(times)), wants_stop=False)
        times.append(time.perf_counter())
    steps, spent = len(times) - 1, times[-1] - times[0]
    return Speed(steps * config.train.tokens / spent, measured=True, steps=steps, seconds=spent)


class Rehearsal:
    """One training process without a corpus: its trainer, and inputs for steps from a few words."""

    def __init__(
        self,
        config: RunConfig,
        sentences: Sequence[str],
        vocabulary: int,
        device: torch.device = CPU,
    ) -> None:
        """With a sampled softmax, `vocabulary` is limited to `ROWS`."""
        self.config = config
        if config.train.negatives < vocabulary:
            vocabulary = min(vocabulary, ROWS)
        self.process = _process(config, vocabulary, device)
        self._stream = _Stream(sentences, vocabulary, config)

    def input(self, step: int) -> StepInput:
        windows = range(
            step * self.config.train.accumulate, (step + 1) * self.config.train.accumulate
        )
        batches = [self._stream.batch(window) for window in windows]
        size = self.process.trainer.softmax.vocab_size
        return step_input(self.config, step, batches, size, self.process.ranks.device)


def processor(config: RunConfig) -> Processor:
    """The kernels of this machine, and how fast it multiplies rounded matrices."""
    torch.set_num_threads(config.train.threads)
    has_bf16, gain = bf16_instructions(), 0.0
    if has_bf16:
        gain = matrix_rate(CPU, torch.bfloat16) / matrix_rate(CPU)
    return Processor(kernel_name(), why_not_native(), bool(has_bf16), gain)


def _process(config: RunConfig, vocabulary: int, device: torch.device) -> Process:
    """What `train` and `starting.begin` set up, for one process without a corpus."""
    ranks = Ranks(device=device)
    bilm = BiLM(config.model, 1).to(device)
    softmax = Softmax.create(vocabulary, config.model.projection_dim, 2, device)
    optimizer = Optimizer(dict(bilm.named_parameters()), softmax, config.optim)
    lanes = ranks.lanes(config.train.lanes)
    states = States.zeros(config.model, len(lanes), device)
    average = average_of(bilm, softmax, config)
    trainer = Trainer(bilm, softmax, optimizer, states, average=average)
    return Process(config, trainer, bilm, ranks, Clock(), Positions(ranks))


class _Stream:
    """Windows of the text, one per lane, which start at equal distances and wrap around."""

    def __init__(self, sentences: Sequence[str], vocabulary: int, config: RunConfig) -> None:
        words = [w for s in sentences for w in (BEGIN_SENTENCE, *s.split(), END_SENTENCE)]
        counts = Counter(words)
        types = sorted(counts, key=lambda word: (-counts[word], word))
        number = {word: n for n, word in enumerate(types)}
        self._chars = char_ids(types, config.model.max_chars)
        self._ids = np.minimum(np.arange(len(types)), vocabulary - 1)
        """Ids in order of falling frequency, on which the sampled softmax relies."""
        self._text = np.array([number[word] for word in words])
        self._begin = number[BEGIN_SENTENCE]
        self._resets = config.train.reset_states == "sentence"
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
            here == self._begin,
        )
        batch = Batch(*map(torch.from_numpy, arrays))
        return replace(batch, resets=batch.starts) if self._resets else batch
