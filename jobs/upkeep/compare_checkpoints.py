"""Compares the tensors of two checkpoints, bit by bit.

Files with the same digest have the same tensors. Files with another digest are compared tensor by
tensor, because another version of safetensors may arrange the same tensors differently. Tensors are
read one at a time and compared in pieces: the softmax of the paper's model alone has 1.6 GB.
"""

import math
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import safe_open

from elmwright.jobs.checkpoints.checkpoint import read_manifest

if TYPE_CHECKING:
    from torch import Tensor

FIRST = ("model.safetensors", "softmax.safetensors", "optimizer.safetensors")
"""The files that are compared first, because a reader knows what they are."""
PIECE = 1 << 24
"""Numbers of a tensor that are compared at a time."""


@dataclass(frozen=True)
class TensorDifference:
    """A tensor that is not the same in two checkpoints."""

    file: str
    tensor: str
    largest: float | None
    """The largest difference between two of its numbers; None if one checkpoint lacks the tensor,
    has it in another shape or type, or has a number that is not finite."""


@dataclass(frozen=True)
class Comparison:
    """The result of comparing two checkpoints."""

    tensors: int
    """Tensors in both together, each counted once."""
    differing: tuple[TensorDifference, ...]
    """Those that are not the same, the weights of the model first."""


def compare_checkpoints(one: str | Path, other: str | Path) -> Comparison:
    """Compare every tensor of two checkpoints on this machine."""
    digests = [
        {name: entry.sha256 for name, entry in read_manifest(path).files.items()}
        for path in (one, other)
    ]
    files = sorted(
        (name for name in digests[0].keys() | digests[1].keys() if name.endswith(".safetensors")),
        key=lambda name: (FIRST.index(name) if name in FIRST else len(FIRST), name),
    )
    tensors, differing = 0, []
    for name in files:
        paths = [Path(path, name) for path in (one, other)]
        if digests[0].get(name) == digests[1].get(name):
            tensors += len(_names(paths[0]))
            continue
        for tensor, largest in _differences(*paths):
            tensors += 1
            if largest is not None:
                finite = largest if math.isfinite(largest) else None
                differing.append(TensorDifference(name, tensor, finite))
    return Comparison(tensors, tuple(differing))


def _names(path: Path) -> list[str]:
    if not path.is_file():
        return []
    with safe_open(path, framework="pt") as file:
        return list(file.keys())


def _differences(one: Path, other: Path) -> Iterator[tuple[str, float | None]]:
    """The name of each tensor of two files, with its largest difference; None if it is the same."""
    names = [set(_names(path)) for path in (one, other)]
    with ExitStack() as stack:
        files = [
            stack.enter_context(safe_open(path, framework="pt"))
            for path in (one, other)
            if path.is_file()
        ]
        for name in sorted(names[0] | names[1]):
            if name in names[0] and name in names[1]:
                yield name, _largest_difference(*(file.get_tensor(name) for file in files))
            else:
                yield name, math.inf


def _largest_difference(one: "Tensor", other: "Tensor") -> float | None:
    """The largest difference between two numbers of two tensors, infinite if they cannot be
    compared; None if all bits are the same."""
    import torch

    if one.shape != other.shape or one.dtype != other.dtype:
        return math.inf
    largest = None
    flat = one.reshape(-1), other.reshape(-1)
    for begin in range(0, one.numel(), PIECE):
        a, b = (tensor[begin : begin + PIECE] for tensor in flat)
        if not torch.equal(a.view(torch.uint8), b.view(torch.uint8)):
            difference = float((a.double() - b.double()).abs().max())
            difference = difference if math.isfinite(difference) else math.inf
            largest = max(largest or 0.0, difference)
    return largest
