"""Scalar mixes: what a task learns on top of the layers of a biLM.

`Mixes` holds any number of them. `elmo.py: Elmo` adds the biLM, which computes the layers of
sentences. `LayerMixes` takes layers that were computed before, and its state can be loaded into an
`Elmo` with as many mixes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from elmwright.model.inference.task_state import DIGEST
from elmwright.pipeline.errors import UserError


@dataclass(frozen=True)
class ElmoOutput:
    """One call of the ELMo layer."""

    mixes: list[Tensor]
    """Each mix's representation of every word, [sentences, words, 2·projection_dim]. Zero where
    a sentence has no word."""
    mask: Tensor
    """True where a sentence has a word, [sentences, words]."""
    words: tuple[Tensor, ...]
    """Each layer's vectors of all words, [words of all sentences, 2·projection_dim]."""
    places: Tensor
    """Where these words are in the flat mask."""

    @property
    def layers(self) -> tuple[Tensor, ...]:
        """Each layer by itself, the encoder's first, in the shape of a mix and without dropout."""
        return tuple(_spread(layer, self.mask, self.places) for layer in self.words)


class ScalarMix(nn.Module):
    """γ · Σ s_j h_j with s = softmax(w): a weighted sum of the layers, learned by a task."""

    def __init__(
        self,
        n_layers: int,
        layer_norm: bool = False,
        weights: Sequence[float] | None = None,
        trainable: bool = True,
    ) -> None:
        """`weights` are the first values of w, zeros by default. Unless `trainable`, w and γ keep
        their first values."""
        super().__init__()
        w = torch.zeros(n_layers) if weights is None else torch.tensor([*map(float, weights)])
        if len(w) != n_layers:
            raise UserError(
                "input",
                f"mix_weights has {len(w)} numbers, and there are {n_layers} layers; give one "
                "number per layer",
            )
        self.w = nn.Parameter(w, requires_grad=trainable)
        self.gamma = nn.Parameter(torch.ones(()), requires_grad=trainable)
        self.layer_norm = layer_norm

    def forward(self, layers: Sequence[Tensor], mask: Tensor) -> Tensor:
        """`layers` [N, T, width] each and `mask` [N, T], or both without N."""
        shares = self.w.softmax(0)
        mixed = torch.zeros_like(layers[0])
        for share, layer in zip(shares, layers, strict=True):
            mixed = mixed + share * (normalised(layer, mask) if self.layer_norm else layer)
        return self.gamma * mixed * mask.unsqueeze(-1)


def normalised(layer: Tensor, mask: Tensor) -> Tensor:
    """Zero mean and unit variance over all words of the batch, as in bilm-tf. The sums are at least
    in float32: those of a few sentences are infinite in float16."""
    wide = layer.to(torch.promote_types(layer.dtype, torch.float32))
    weights = mask.unsqueeze(-1).to(wide.dtype)
    count = (weights.sum() * layer.size(-1)).clamp_min(1)
    centred = wide - (wide * weights).sum() / count
    variance = (centred * weights).square().sum() / count
    return (centred / (variance + 1e-12).sqrt()).to(layer.dtype)


def _spread(words: Tensor, mask: Tensor, places: Tensor) -> Tensor:
    """[words, width] → [N, T, width], zero where there is no word."""
    flat = words.new_zeros(mask.numel(), words.size(1)).index_copy(0, places, words)
    return flat.view(*mask.shape, words.size(1))


class Mixes(nn.Module):
    """Independent scalar mixes of the same layers, with dropout."""

    def __init__(
        self,
        n_layers: int,
        n_mixes: int = 1,
        *,
        layer_norm: bool = False,
        dropout: float = 0.5,
        mix_weights: Sequence[float] | None = None,
        trainable_mixes: bool = True,
    ) -> None:
        """`n_layers` counts the encoder's layer, too. The other options are those of `Elmo`."""
        super().__init__()
        self.mixes = nn.ModuleList(
            ScalarMix(n_layers, layer_norm, mix_weights, trainable_mixes) for _ in range(n_mixes)
        )
        self.dropout = nn.Dropout(dropout)

    def mix(self, layers: Sequence[Tensor], mask: Tensor, places: Tensor) -> ElmoOutput:
        """Every mix of layers [words, width], with dropout in training mode.

        The result has the shape of `mask` [N, T]. `places` says where the words are in it.
        """
        is_word = torch.ones_like(places, dtype=torch.bool)
        mixes = [_spread(self.dropout(mix(layers, is_word)), mask, places) for mix in self.mixes]
        return ElmoOutput(mixes, mask, tuple(layers), places)

    def regularization(self, strength: float) -> Tensor:
        """λ‖w‖² over all mixes. Added to a task's loss, it pulls them towards the plain average."""
        squares = [
            w.square().sum() for name, w in self.mixes.named_parameters() if name.endswith(".w")
        ]
        return strength * torch.stack(squares).sum()


class LayerMixes(Mixes):
    """The mixes of an `Elmo` for layers that were computed before, as by `elmwright embed`.

    An `Elmo` with as many mixes can load its state, and the other way round.
    """

    def forward(self, sentences: Sequence[Tensor]) -> ElmoOutput:
        """Mix the layers of a batch: (layers, words, width) per sentence, of any lengths.

        They may be in half precision. They are mixed in the type of the weights.
        """
        w = next(self.mixes.parameters())
        _check_layers(sentences, len(w))
        lengths = torch.tensor([sentence.size(1) for sentence in sentences])
        mask = torch.arange(int(lengths.max())) < lengths.unsqueeze(1)
        layers = torch.cat([sentence.to(w) for sentence in sentences], dim=1)
        (places,) = torch.where(mask.flatten())
        return self.mix(layers.unbind(0), mask.to(w.device), places.to(w.device))

    def _load_from_state_dict(self, state: Any, prefix: str, *arguments: Any) -> None:
        state.pop(prefix + DIGEST, None)
        super()._load_from_state_dict(state, prefix, *arguments)


def _check_layers(sentences: Sequence[Tensor], n_layers: int) -> None:
    if not len(sentences):
        raise UserError("input", "the batch has no sentence; give the layers of one at least")
    for number, sentence in enumerate(sentences):
        shape = tuple(getattr(sentence, "shape", ()))
        if len(shape) != 3 or shape[0] != n_layers or shape[2] != sentences[0].shape[2]:
            raise UserError(
                "input",
                f"sentence {number} has shape {shape}; expected ({n_layers} layers, words, width)",
            )
