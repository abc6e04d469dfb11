"""The useful arithmetic of a training step, by which its speed is measured.

3 × the forward pass (forward, gradient of the input, gradient of the weight) of the LSTMs, the
sampled softmax, and the encoder over distinct words, each at its own trimmed length. Other work
of a step (padding, recomputation, pointwise operations) does not count.
"""

import torch

from elmwright.model.config import ModelConfig
from elmwright.model.encoder import varying_positions


def useful_flops(
    config: ModelConfig, tokens: int, negatives: int, chars: torch.Tensor
) -> dict[str, float]:
    """By part, for `tokens` positions per direction and `negatives` softmax rows."""
    dim, proj, filters = config.dim, config.projection_dim, config.n_filters
    lstm = 2 * config.n_layers * tokens * (2 * proj * 4 * dim + dim * proj)
    softmax = 2 * tokens * negatives * proj
    starts = varying_positions(chars.int()) + 1
    convolutions = sum(
        int(starts.clamp_max(config.max_chars - width + 1).sum()) * width * config.char_dim * number
        for width, number in config.filters
    )
    dense = len(chars) * (config.n_highway * 2 * filters * filters + filters * proj)
    macs = {"lstm": lstm, "softmax": softmax, "encoder": convolutions + dense}
    return {part: 3 * 2.0 * count for part, count in macs.items()}


def step_flops(config: ModelConfig, tokens: int, negatives: int, chars: torch.Tensor) -> float:
    """All parts together."""
    return sum(useful_flops(config, tokens, negatives, chars).values())
