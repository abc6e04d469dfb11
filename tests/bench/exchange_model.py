"""How long the exchange of a step takes on more processes than there are here, by arithmetic.

A step sums two buffers over all processes: the gradients of the biLM, whose size is fixed, and
those of the softmax rows that any process touches. The number of rows is that of the negatives and
of the distinct words in the windows of all processes, which is counted in real text. Before, each
process sends its targets to all others. A ring all-reduce sends and receives 2·(N−1)/N of a buffer
in each process, in 2·(N−1) messages.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elmwright.model.config import ModelConfig

GPUS = (8, 16, 32, 64, 128, 256)
OVERLAPPED = 2 / 3
"""The backward pass, in which both exchanges are under way, takes this part of a step."""


@dataclass(frozen=True)
class Network:
    """What connects the processes."""

    bytes_per_s: float
    """That one process sends, and receives as much at the same time."""
    latency_s: float
    """Of one message."""


@dataclass(frozen=True)
class Step:
    """What every process does in a step."""

    lanes: int
    window: int
    negatives: int
    seconds: float
    """Without exchange."""


def dense_bytes(parameters: int) -> float:
    """Of the gradients of the biLM."""
    return 4.0 * parameters


def rows_bytes(config: ModelConfig, step: Step, processes: int, text: NDArray[np.int64]) -> float:
    """Of the gradients of the softmax rows, when lanes read different parts of `text`, vocabulary
    ids in order of frequency."""
    tokens = processes * step.lanes * step.window
    starts = np.linspace(0, len(text) - step.window, processes * step.lanes).astype(np.int64)
    read = np.unique(text[starts[:, None] + np.arange(step.window)])
    assert tokens >= len(read)
    distinct = len(read) + step.negatives  # at most: some negatives are among the words
    return 4.0 * distinct * (config.projection_dim + 1)


def ring_seconds(size: float, processes: int, network: Network) -> float:
    """Of one all-reduce."""
    if processes == 1:
        return 0.0
    share = 2 * (processes - 1) / processes
    return size * share / network.bytes_per_s + 2 * (processes - 1) * network.latency_s


def gather_seconds(step: Step, processes: int, network: Network) -> float:
    """Of the exchange of targets, before the forward pass: nothing overlaps it."""
    sent = 8.0 * 2 * step.lanes * step.window * (processes - 1)
    return sent / network.bytes_per_s + (processes - 1) * network.latency_s


def efficiency(
    config: ModelConfig,
    step: Step,
    parameters: int,
    processes: int,
    text: NDArray[np.int64],
    network: Network,
) -> tuple[float, float]:
    """The share of the speed of as many single processes, if nothing overlaps with the backward
    pass, and if as much as possible does."""
    exchange = ring_seconds(dense_bytes(parameters), processes, network)
    exchange += ring_seconds(rows_bytes(config, step, processes, text), processes, network)
    before = gather_seconds(step, processes, network)
    hidden = min(exchange, OVERLAPPED * step.seconds)
    alone = step.seconds + before + exchange
    return step.seconds / alone, step.seconds / (alone - hidden)
