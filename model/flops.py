"""The useful arithmetic of a training step: what its speed is measured by.

3 × the forward pass (forward, gradient of the input, gradient of the weight) of the LSTMs, the
sampled softmax, and the encoder over distinct words, each at its own trimmed length. What a step
computes besides (padding, recomputation, pointwise work) does not count.
"""

import torch

from elmwright.model.config import ModelConfig
from elmwright.model.encoder import varying_positions


def useful_flops(
    config: ModelConfig, tokens: int, negatives: int, chars: torch.Tensor
) -> dict[str, float]:
    """By part: `tokens` positions a direction, `negatives` softmax rows, the distinct words."""
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
