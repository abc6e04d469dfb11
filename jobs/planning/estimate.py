"""How long a run takes and how much disk it needs: rules of thumb for `check` and `init`.

The time of training is its useful arithmetic (as in `model/flops.py`, but for a typical batch
instead of a real one) at a rate of `GFLOPS` per core. Whole runs on two cores of 2021 servers
reached this rate. It is meant to be too low rather than too high: `check --measure` found two to
three times as much per core on a server of 2023. The time of a corpus is its size at a rate of
`CORPUS_BYTES` per core.
"""

from collections.abc import Sequence

from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.planning.plan_record import Speed, Time
from elmwright.model.config import ModelConfig

GFLOPS = 16.0
"""Useful arithmetic of each core that training keeps busy, in 10⁹ operations per second."""
CORPUS_BYTES = 2_000_000
"""Bytes of text that a core makes into a corpus per second."""
HARVEST_BYTES, HARVEST_TOKENS, HARVEST_SECONDS = 33_000_000, 5_000_000, 60.0
"""The source "embedded:docstrings" in a typical environment: bytes of text, tokens, and the
processor time of reading it."""
START_SECONDS = 25.0
"""How long Ray, the training processes and MLflow take to start, all together."""
LARGE_VOCABULARY, LARGE_LIMIT = 100_000, 1_000_000
"""From this many words on, only this many tokens are scored by default, as in evaluate.py."""
TYPES_PER_TOKEN = 0.5
"""Distinct words in a batch, which the character network encodes, per token."""
POSITIONS = 8
"""Places of a word at which a convolution starts, on average."""


def flops_per_token(config: RunConfig, vocabulary: int) -> float:
    """Useful arithmetic of training on one token, both directions."""
    rows = min(config.train.negatives, vocabulary)
    model = config.model
    return 3 * (_encoder(model) + _lstm(model) + _softmax(model, rows))


def evaluation_flops_per_token(config: RunConfig, vocabulary: int) -> float:
    """Useful arithmetic of scoring one token with the full softmax, both directions: with fresh
    states and with states carried over."""
    model = config.model
    return _encoder(model) + 2 * (_lstm(model) + _softmax(model, vocabulary))


def _encoder(model: ModelConfig) -> float:
    """A forward pass over a token; the words of both directions are spelled once."""
    filters = model.n_filters
    spelling = sum(width * model.char_dim * number for width, number in model.filters) * POSITIONS
    dense = model.n_highway * 2 * filters * filters + filters * model.projection_dim
    return 2.0 * TYPES_PER_TOKEN * (spelling + dense)


def _lstm(model: ModelConfig) -> float:
    """A forward pass over a token, both directions."""
    dim, proj = model.dim, model.projection_dim
    return 2.0 * 2 * model.n_layers * (2 * proj * 4 * dim + dim * proj)


def _softmax(model: ModelConfig, rows: int) -> float:
    return 2.0 * 2 * rows * model.projection_dim


def rule_of_thumb(config: RunConfig, vocabulary: int, cores: int) -> float:
    """Tokens per second of all processes together."""
    busy_cores = max(1, min(cores, config.train.processes * config.train.threads))
    return busy_cores * GFLOPS * 1e9 / flops_per_token(config, vocabulary)


def duration(
    config: RunConfig,
    speed: Speed,
    *,
    cores: int,
    vocabulary: int,
    text_bytes: int,
    heldout_tokens: Sequence[int],
    steps_left: int,
    harvest_seconds: float = 0.0,
) -> Time:
    """How long the rest of a run takes; evaluation computes as fast as training.

    `heldout_tokens` has the number of tokens in each held-out set, which is scored up to a limit.
    """
    flops_per_s = speed.tokens_per_s * flops_per_token(config, vocabulary)
    every = config.eval.every_steps
    scored_each_time = sum(min(config.eval.max_tokens, tokens) for tokens in heldout_tokens)
    scored = (steps_left // every if every else 0) * scored_each_time
    if steps_left:
        limit = final_tokens(config, vocabulary)
        scored += sum(tokens if limit is None else min(limit, tokens) for tokens in heldout_tokens)
    corpus = text_bytes / (CORPUS_BYTES * cores) + harvest_seconds / cores
    train = steps_left * config.train.tokens / speed.tokens_per_s
    evaluate = scored * evaluation_flops_per_token(config, vocabulary) / flops_per_s
    start = START_SECONDS if steps_left or text_bytes else 0.0
    return Time(
        corpus=corpus,
        train=train,
        evaluate=evaluate,
        start=start,
        total=corpus + train + evaluate + start,
        steps_left=steps_left,
        gflops_per_core=GFLOPS,
        **vars(speed),
    )


def final_tokens(config: RunConfig, vocabulary: int) -> int | None:
    """Tokens of a held-out set that the last evaluation scores, or None for all.

    The same as `evaluate.final_limit`, whose module imports torch.
    """
    if config.eval.final_tokens:
        return config.eval.final_tokens
    return None if vocabulary < LARGE_VOCABULARY else LARGE_LIMIT


def checkpoint_bytes(config: RunConfig, vocabulary: int) -> int:
    """Size of a checkpoint: weights, their average, optimiser state, LSTM states."""
    model = config.model
    weights = sum(model.parameter_counts().values()) + vocabulary * (model.projection_dim + 1)
    moments = 2 if config.optim.name == "adamw" else 1
    averages = 1 if config.train.average_steps else 0
    states = 2 * model.n_layers * config.train.lanes * (model.dim + model.projection_dim)
    return 4 * (weights * (1 + averages + moments) + states)


def training_bytes(config: RunConfig, vocabulary: int) -> int:
    """Disk that training and export need: the checkpoints that are kept, the best, one being
    written, the bundle with the biLM twice, and MLflow's copy of it."""
    model = config.model
    checkpoints = config.checkpoint.keep_last + 2
    if config.checkpoint.keep_every_steps:
        checkpoints += config.train.max_steps // config.checkpoint.keep_every_steps
    softmax = vocabulary * (model.projection_dim + 1)
    bundle = 4 * (2 * sum(model.parameter_counts().values()) + softmax)
    return checkpoints * checkpoint_bytes(config, vocabulary) + 2 * bundle


def in_words(seconds: float) -> str:
    """A duration to about two figures: 5 s, 67 min, 1 h 40 min, 7 days."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    hours, minutes = divmod(round(seconds / 600) * 10, 60)
    if hours < 10:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    if hours < 48:
        return f"{round(seconds / 3600)} h"
    return f"{seconds / 86_400:,.0f} days"
