"""The distinct words of a batch, and their encoded vectors, which are kept.

The encoder sees a word without its context, so a word type is encoded once until the encoder
changes.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from elmwright.model.bilm import BiLM
from elmwright.model.chars import BEGIN_SENTENCE, END_SENTENCE, char_ids
from elmwright.pipeline.errors import UserError

Sentence = Sequence[str]
Row = npt.NDArray[np.int64]
"""A sentence as indices into a list or a table of word types."""

TYPES_AT_ONCE = 1024
"""Word types that are encoded together."""
CACHE_BYTES = 1 << 28
"""Size of the cache of encoded types. When it would need more, it starts afresh."""


def types_of_words(
    sentences: Sequence[Sentence],
) -> tuple[list[str], list[Row]]:
    """The distinct words, `<S>` and `</S>` first, and each sentence as indices into them."""
    place = {BEGIN_SENTENCE: 0, END_SENTENCE: 1}
    rows = []
    for sentence in sentences:
        indices = [place.setdefault(word, len(place)) for word in sentence]
        rows.append(np.array(indices, dtype=np.int64))
    return list(place), rows


def types_of_ids(ids: Tensor, max_chars: int) -> tuple[Tensor, list[Row]]:
    """The distinct words as character ids, `<S>` and `</S>` first, and each sentence as indices."""
    if ids.dim() != 3 or ids.size(2) != max_chars:
        raise UserError(
            "input",
            f"character ids have shape {tuple(ids.shape)}; "
            f"expected (sentences, words, {max_chars})",
        )
    ids = ids.cpu()
    marks = torch.from_numpy(char_ids([BEGIN_SENTENCE, END_SENTENCE], max_chars)).to(ids.dtype)
    distinct, place = torch.unique(ids.flatten(0, 1), dim=0, return_inverse=True)
    is_word = (ids != 0).any(dim=2)
    place = place.view(is_word.shape) + 2
    rows = [place[n][is_word[n]].numpy() for n in range(len(ids))]
    return torch.cat([marks, distinct]), rows


class TypeCache:
    """Encoded word types, kept from batch to batch until the encoder changes."""

    def __init__(self) -> None:
        self.place: dict[str, int] = {}
        self.vectors: Tensor | None = None
        self.encoder: object = None

    def fill(self, bilm: BiLM, words: Sequence[str], vectors: Tensor) -> None:
        """Replace the content by types that are encoded already."""
        if tuple(words[:2]) != (BEGIN_SENTENCE, END_SENTENCE) or len(set(words)) != len(words):
            raise ValueError("the first two words must be <S> and </S>, and none may be repeated")
        if vectors.shape != (len(words), bilm.config.projection_dim):
            raise ValueError(f"vectors {tuple(vectors.shape)} do not fit {len(words)} words")
        self.place = {word: number for number, word in enumerate(words)}
        self.vectors, self.encoder = vectors, _identity(bilm)

    def encode(
        self, bilm: BiLM, words: list[str], device: torch.device
    ) -> tuple[Tensor, npt.NDArray[np.int64]]:
        """A table of encoded types and the row of each word in it; `<S>` and `</S>` are 0 and 1."""
        width = bilm.config.projection_dim
        encoder = _identity(bilm)
        new = [word for word in words if word not in self.place]
        is_full = 4 * width * (len(self.place) + len(new)) > CACHE_BYTES
        if encoder != self.encoder or is_full:
            self.place, self.vectors, new = {}, None, words
            self.encoder = encoder
        encoded = [] if self.vectors is None else [self.vectors]
        for start in range(0, len(new), TYPES_AT_ONCE):
            chars = bilm.encoder.ids(new[start : start + TYPES_AT_ONCE])
            encoded.append(bilm.encoder(chars.to(device)))
        for word in new:
            self.place[word] = len(self.place)
        self.vectors = encoded[0] if len(encoded) == 1 else torch.cat(encoded)
        return self.vectors, np.array([self.place[word] for word in words], dtype=np.int64)


def _identity(bilm: BiLM) -> list[tuple[int, int, int]]:
    """A value that changes with the encoder: in-place updates (by an optimiser, load_state_dict)
    raise a parameter's version."""
    return [(id(p), p.data_ptr(), p._version) for p in bilm.encoder.parameters()]


def batch_to_ids(sentences: Sequence[Sentence], max_chars: int = 50) -> Tensor:
    """Character ids [sentences, words, max_chars] with all-zero padding, as from AllenNLP's
    function of this name."""
    longest = max((len(sentence) for sentence in sentences), default=0)
    ids = torch.zeros(len(sentences), longest, max_chars, dtype=torch.int64)
    for n, sentence in enumerate(sentences):
        ids[n, : len(sentence)] = torch.from_numpy(char_ids(sentence, max_chars).astype(np.int64))
    return ids
