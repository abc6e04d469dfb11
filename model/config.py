"""The shape of a model and how its weights are updated: `[model]` and `[optim]` of a run config.

Every model folder records the shape.

The string under each field is its documentation, which `elmwright config --explain` prints.
"""

import json
from dataclasses import dataclass
from typing import Annotated, Literal

from elmwright.pipeline.bounds import Bound, Count, Natural, NotNegative, Positive

LARGEST, LARGEST_FLOAT = 2**63 - 1, 3.4e38
"""The largest size of a tensor, and the largest float32."""
MOST_CHARS = 1000
"""More than the longest word of any language. Words are encoded together, each at the cost of the
longest, so without a limit one endless word would use up the memory."""
MaxChars = Annotated[int, Bound(f"from 3 to {MOST_CHARS}", lambda value: 3 <= value <= MOST_CHARS)]
Precision = Literal["fp32", "tf32", "bf16", "bf16-encoder"]
"""What products of matrices read (precision.py)."""
PUBLISHED_FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))


@dataclass(frozen=True)
class ModelConfig:
    """The residual biLM. The defaults are the published original ELMo."""

    dim: Count = 4096
    """LSTM cells in each layer and direction."""
    projection_dim: Count = 512
    """Width of the word representation and of each layer's output, one direction."""
    n_layers: Count = 2
    """LSTM layers in each direction."""
    char_dim: Count = 16
    """Width of a character (byte) embedding."""
    filters: tuple[tuple[int, int], ...] = PUBLISHED_FILTERS
    """Character convolutions as [width, number] pairs."""
    n_highway: Natural = 2
    """Highway layers after the convolutions."""
    max_chars: MaxChars = 50
    """Bytes of a word that are read, begin and end marks included; at most 1000."""
    activation: Literal["relu", "tanh"] = "relu"
    """What follows the convolutions."""
    cell_clip: NotNegative = 3.0
    """LSTM cell values are clipped to ± this; 0 never clips."""
    proj_clip: NotNegative = 3.0
    """Projected LSTM outputs are clipped to ± this; 0 never clips."""
    residual: bool = True
    """Add each LSTM layer's input to its output, from the second layer up."""

    @property
    def n_filters(self) -> int:
        return sum(number for _, number in self.filters)

    @property
    def has_projection(self) -> bool:
        """Whether the encoder ends with a linear layer: not if the widths agree without it."""
        return self.n_filters != self.projection_dim

    def problem(self) -> str:
        """The first value, from a file that may have any, that is not allowed; empty if none."""
        least = {"dim": 1, "projection_dim": 1, "n_layers": 1, "char_dim": 1, "n_highway": 0}
        if type(self.max_chars) is not int or not 3 <= self.max_chars <= MOST_CHARS:
            return f"max_chars is {self.max_chars!r:.50}, not a whole number from 3 to {MOST_CHARS}"
        for name, limit in least.items():
            value = getattr(self, name)
            if type(value) is not int or not limit <= value <= LARGEST:
                return f"{name} is {value!r:.50}, not a whole number from {limit}"
        for name in ("cell_clip", "proj_clip"):
            value = getattr(self, name)
            if type(value) not in (int, float) or not 0 <= value <= LARGEST_FLOAT:
                return f"{name} is {value!r:.50}, not a number from 0 to {LARGEST_FLOAT:g}"
        for width, number in self.filters:
            if not all(type(n) is int and 1 <= n <= LARGEST for n in (width, number)):
                return f"filters has [{width!r:.50}, {number!r:.50}], not two whole numbers from 1"
            if width > self.max_chars:
                return f"filters has a width of {width}, and max_chars is {self.max_chars}"
        if not self.filters:
            return "filters is empty"
        if self.activation not in ("relu", "tanh"):
            return f"activation is {self.activation!r:.50}, not relu or tanh"
        if type(self.residual) is not bool:
            return f"residual is {self.residual!r:.50}, not true or false"
        return ""

    def parameter_counts(self) -> dict[str, int]:
        """Parameters by part, without the softmax (which also depends on the vocabulary)."""
        n, p, d = self.n_filters, self.projection_dim, self.dim
        encoder = 261 * self.char_dim
        encoder += sum(width * self.char_dim * number + number for width, number in self.filters)
        encoder += self.n_highway * 2 * (n * n + n)
        encoder += n * p + p if self.has_projection else 0
        lstm = 2 * self.n_layers * (2 * p * 4 * d + 4 * d + d * p)
        return {"encoder": encoder, "lstm": lstm}


@dataclass(frozen=True)
class OptimConfig:
    """How weights are updated. The defaults are the original ELMo's."""

    name: Literal["adagrad", "adamw"] = "adagrad"
    """Adagrad as in the original, or AdamW."""
    lr: Positive = 0.2
    """Learning rate."""
    initial_accumulator: Positive = 1.0
    """Adagrad's accumulator before the first step."""
    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW's decay rates."""
    softmax_lr: Positive = 1.0
    """Factor on the learning rate for the rows of the softmax."""
    softmax_betas: tuple[float, ...] = ()
    """AdamW's decay rates for the rows of the softmax, such as [0.0, 0.99]; empty for those of
    optim.betas."""
    eps: Positive = 1e-8
    """AdamW's epsilon."""
    weight_decay: NotNegative = 0.0
    """AdamW's weight decay."""
    clip_norm: NotNegative = 10.0
    """The gradient's global norm is clipped to this; 0 never clips."""
    scale_by_window: bool = True
    """Multiply the loss by train.window, as the original did."""
    schedule: Literal["constant", "cosine", "linear", "inverse-sqrt"] = "constant"
    """What the learning rate does after the warm-up. "cosine" and "linear" reach 0 at
    train.max_steps."""
    warmup_steps: Natural = 0
    """Steps over which the learning rate rises to lr, from the first step and again after
    train.hold_steps."""


def shape_problem(ours: ModelConfig, theirs: ModelConfig) -> str:
    """A sentence about every setting in which a model to start from differs; empty if none."""
    differing = [
        (f"model.{key}", value, getattr(theirs, key))
        for key, value in vars(ours).items()
        if value != getattr(theirs, key)
    ]
    if not differing:
        return ""
    sentence = "; ".join(
        f"{key} is {json.dumps(value)}, but the model in train.init_from has {json.dumps(other)}"
        for key, value, other in differing
    )
    return f"{sentence}; set {'it' if len(differing) == 1 else 'them'} to that"
