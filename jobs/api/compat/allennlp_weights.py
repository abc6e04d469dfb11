"""AllenNLP's tensors of a biLM under the names and in the shapes that they have here.

A task model that was saved with AllenNLP holds its biLM, which may be fine-tuned. What differs:

    characters   AllenNLP stores the mask, a row of zeros, in front
    filters      [number, char_dim, width] there, [width, char_dim, number] here
    highways     one matrix, the transform above the gate, which has the opposite sign
    LSTMs        gates i, f, j, o there and i, j, f, o here, the forget bias of 1 added there, and
                 one module per direction
    matrices     transposed, because torch stores [out, in]
"""

from collections.abc import Mapping

import torch
from torch import Tensor

TOKENS, LSTM = "_token_embedder.", "_elmo_lstm."
DIRECTIONS = ("forward", "backward")


def translated(theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state of a `BiLM`, from the state of AllenNLP's `_ElmoBiLm`; unknown names are kept."""
    left = dict(theirs)
    ours: dict[str, Tensor] = {}

    def move(name: str, to: str) -> None:
        if name in left:
            ours[to] = left.pop(name)

    move(f"{TOKENS}_char_embedding_weights", "encoder.char_embed")
    if "encoder.char_embed" in ours:
        ours["encoder.char_embed"] = ours["encoder.char_embed"][1:]
    for name in list(left):
        part, _, rest = name.removeprefix(TOKENS).partition(".")
        number = part.rpartition("_")[2]
        if part.startswith("char_conv_") and rest == "weight":
            ours[f"encoder.conv.{number}.weight"] = left.pop(name).permute(2, 1, 0)
        elif part.startswith("char_conv_"):
            move(name, f"encoder.conv.{number}.bias")
        elif part == "_highways":
            _, number, kind = rest.split(".")
            transform, gate = left.pop(name).chunk(2)
            letter = "w" if kind == "weight" else "b"
            at = f"encoder.highway.{number}.{letter}"
            ours[f"{at}_transform"] = transform.t() if letter == "w" else transform
            ours[f"{at}_carry"] = -gate.t() if letter == "w" else -gate
        elif part == "_projection":
            tensor = left.pop(name)
            ours[f"encoder.projection.{rest}"] = tensor.t() if rest == "weight" else tensor
    layer = 0
    while f"{LSTM}forward_layer_{layer}.input_linearity.weight" in left:
        found = [_cell(left, f"{LSTM}{side}_layer_{layer}.") for side in DIRECTIONS]
        for name, *both in zip(("w", "b", "w_proj"), *found, strict=True):
            ours[f"lstm.{layer}.{name}"] = torch.stack(both)
        layer += 1
    return ours | left


def _cell(left: dict[str, Tensor], at: str) -> tuple[Tensor, Tensor, Tensor]:
    """Matrix, bias and projection of one LSTM."""

    def gates(name: str) -> Tensor:
        i, f, j, o = left.pop(f"{at}{name}").chunk(4)
        if name.endswith("bias"):
            f = f - 1
        return torch.cat([i, j, f, o])

    matrices = [gates("input_linearity.weight").t(), gates("state_linearity.weight").t()]
    bias = gates("state_linearity.bias")
    return torch.cat(matrices), bias, left.pop(f"{at}state_projection.weight").t()
