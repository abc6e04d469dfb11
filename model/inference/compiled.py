"""The part of an `Elmo` that torch.compile leaves alone: from words to layers.

Words are strings, and steps differ from batch to batch, so a graph of them would be compiled again
for every batch. The mixes and the task model around them are compiled. This module is imported
where torch compiles, because importing its compiler takes as long as importing torch.
"""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from elmwright.model.inference.elmo import Elmo


@torch.compiler.disable
def read_outside_graph(elmo: "Elmo", sentences: Any) -> tuple[list[Tensor], Tensor, Tensor]:
    """`Elmo.read`, as a break in the graph."""
    return elmo.read(sentences)
