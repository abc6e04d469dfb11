"""The distinct words of a batch, and their encoded vectors, which are kept.

The encoder sees a word without its context, so a word type is encoded once until the encoder
changes. The vector of a word has the same bits whatever it is encoded with, and whatever was
encoded before. A matrix product of another shape may round in another way, so all products here
have one shape (in torch, those of the convolutions have one per class of word lengths).
"""

import threading
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from elmwright.model.bilm import BiLM
from elmwright.model.chars import BEGIN_SENTENCE, END_SENTENCE, N_CHARS, CharIds, char_ids
from elmwright.model.encoder import GROUP_LIMITS, TokenEncoder, varying_positions
from elmwright.pipeline.errors import UserError

Sentence = Sequence[str]
Key = str | bytes
"""A word type: the word, or its character ids as int16."""
Row = npt.NDArray[np.int64]
"""A sentence as indices into a list or a table of word types."""


class Sentences:
    """A batch of sentences for a model in torch.compile.

    torch.compile looks into lists, and compiles again where one has another length. It does not
    look into this.
    """

    def __init__(self, batch: Any) -> None:
        self.batch = batch


LIMITS = (*GROUP_LIMITS, 50, 100, 200, 400, 800)
"""Classes of word lengths."""
CONVOLVED, ENCODED = 16, 64
"""Words in a product of the convolutions, and of the layers above. Fewer leave the processor idle.
More are in vain in a batch with few new words, whose products are filled up with zeros."""
AT_A_TIME = 1024
"""Words that a call of the kernels in C gets, whose characters are in memory meanwhile."""
CACHE_BYTES = 1 << 28
"""Size of the cache of encoded types. When it would need more, it starts afresh."""


def types_of_words(sentences: Iterable[Sentence]) -> tuple[list[Key], list[Row]]:
    """The distinct words, `<S>` and `</S>` first, and each sentence as indices into them."""
    place: dict[Key, int] = {BEGIN_SENTENCE: 0, END_SENTENCE: 1}
    rows = [
        np.array([place.setdefault(word, len(place)) for word in sentence], dtype=np.int64)
        for sentence in sentences
    ]
    return list(place), rows


def types_of_ids(ids: Tensor, max_chars: int) -> tuple[list[Key], list[Row]]:
    """The distinct words of character ids, `<S>` and `</S>` first, and each sentence as indices."""
    if ids.dim() != 3 or ids.size(2) != max_chars:
        raise UserError(
            "input",
            f"character ids have shape {tuple(ids.shape)}; "
            f"expected (sentences, words, {max_chars})",
        )
    numbers = ids.detach().cpu().numpy()
    in_range = numbers.size == 0 or (numbers.min() >= 0 and numbers.max() < N_CHARS)
    if not np.issubdtype(numbers.dtype, np.integer) or not in_range:
        raise UserError(
            "input",
            f"character ids are integers from 0 to {N_CHARS - 1}, and these are {ids.dtype} "
            "with other values; make them with batch_to_ids",
        )
    marks = char_ids([BEGIN_SENTENCE, END_SENTENCE], max_chars)
    place: dict[Key, int] = {mark.tobytes(): n for n, mark in enumerate(marks)}
    rows = []
    for sentence in np.ascontiguousarray(numbers.astype(np.int16)):
        words = sentence[(sentence != 0).any(axis=1)]
        keys = [word.tobytes() for word in words]
        rows.append(np.array([place.setdefault(key, len(place)) for key in keys], np.int64))
    return list(place), rows


def ids_of(keys: Sequence[Key], max_chars: int) -> CharIds:
    """The character ids of word types, [types, max_chars]; all are words, or all are ids."""
    words = [key for key in keys if isinstance(key, str)]
    if words:
        return char_ids(words, max_chars)
    given = b"".join(key for key in keys if isinstance(key, bytes))
    return np.frombuffer(given, np.int16).reshape(-1, max_chars)


@torch.no_grad()
def encode_types(
    bilm: BiLM, ids: CharIds, device: torch.device, operands: torch.dtype | None = None
) -> Tensor:
    """The vectors of word types [types, max_chars], each with bits that depend on it alone. With
    `operands`, products read that type."""
    encoder = bilm.encoder
    if not len(ids):
        return encoder.char_embed.new_zeros(0, bilm.config.projection_dim)
    chars = torch.from_numpy(ids.astype(np.int32)).to(device)
    if encoder.kernels() is None:
        convolved = _convolved(encoder, chars, operands)
    else:
        portions = torch.split(chars, AT_A_TIME)
        convolved = torch.cat([encoder.maxima(portion, operands) for portion in portions])
    vectors = [
        encoder.above(_filled(part, ENCODED), operands)[: len(part)]
        for part in torch.split(convolved, ENCODED)
    ]
    return torch.cat(vectors)


def _convolved(encoder: TokenEncoder, chars: Tensor, operands: torch.dtype | None) -> Tensor:
    """The maxima of every filter, [types, filters], in products of one shape per class of lengths.

    The kernels in C give a word the same bits without such care.
    """
    varying = varying_positions(chars)
    convolved = encoder.char_embed.new_empty(0)
    previous, longest = -1, chars.size(1)
    for limit in (*(n for n in LIMITS if n < longest), longest):
        (members,) = torch.where((varying > previous) & (varying <= limit))
        previous = limit
        for part in torch.split(members, CONVOLVED) if len(members) else ():
            filled = _filled(chars.index_select(0, part), CONVOLVED)
            values = encoder.convolve(filled, limit, operands)
            if not len(convolved):
                convolved = values.new_empty(len(chars), values.size(1))
            convolved[part] = values[: len(part)]
    return convolved


def _filled(rows: Tensor, count: int) -> Tensor:
    """`rows` with zeros below, `count` in all."""
    missing = count - len(rows)
    return torch.cat([rows, rows.new_zeros(missing, rows.size(1))]) if missing else rows


class TypeCache:
    """Encoded word types, kept from batch to batch until the encoder changes.

    Several threads may use one. A copy of it begins empty.
    """

    def __init__(self) -> None:
        self.place: dict[Key, int] = {}
        self.vectors: Tensor | None = None
        """A row per type, and spare rows below."""
        self.encoder: object = None
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return TypeCache, ()

    def fill(
        self,
        bilm: BiLM,
        words: Sequence[str],
        vectors: Tensor,
        operands: torch.dtype | None = None,
    ) -> None:
        """Replace the content by types that are encoded already."""
        if tuple(words[:2]) != (BEGIN_SENTENCE, END_SENTENCE) or len(set(words)) != len(words):
            raise ValueError("the first two words must be <S> and </S>, and none may be repeated")
        if vectors.shape != (len(words), bilm.config.projection_dim):
            raise ValueError(f"vectors {tuple(vectors.shape)} do not fit {len(words)} words")
        with self._lock:
            self.place = {word: number for number, word in enumerate(words)}
            self.vectors, self.encoder = vectors, _identity(bilm, operands)

    @torch.no_grad()
    def encode(
        self,
        bilm: BiLM,
        keys: Sequence[Key],
        device: torch.device,
        operands: torch.dtype | None = None,
    ) -> tuple[Tensor, npt.NDArray[np.int64]]:
        """A table of encoded types, and the row of each of these distinct types in it."""
        width = bilm.config.projection_dim
        encoder = _identity(bilm, operands)
        # A table made in inference mode could not be extended outside of it.
        with self._lock, torch.inference_mode(False), torch.no_grad():
            new = [key for key in keys if key not in self.place]
            is_full = 4 * width * (len(self.place) + len(new)) > CACHE_BYTES
            if encoder != self.encoder or is_full:
                self.place, self.vectors, new = {}, None, list(keys)
                self.encoder = encoder
            if new or self.vectors is None:
                ids = ids_of(new, bilm.config.max_chars)
                self._append(encode_types(bilm, ids, device, operands))
                for key in new:
                    self.place[key] = len(self.place)
            places = np.array([self.place[key] for key in keys], dtype=np.int64)
            assert self.vectors is not None  # noqa: S101 - for the type checker
            return self.vectors, places

    def _append(self, vectors: Tensor) -> None:
        known, total = len(self.place), len(self.place) + len(vectors)
        if self.vectors is None:
            self.vectors = vectors
            return
        if total > len(self.vectors):
            most = max(total, CACHE_BYTES // (4 * vectors.size(1)))
            table = vectors.new_zeros(min(2 * total, most), vectors.size(1))
            table[:known] = self.vectors[:known]
            self.vectors = table
        self.vectors[known:total] = vectors


def _identity(bilm: BiLM, operands: torch.dtype | None) -> list[object]:
    """A value that changes with the encoder's result: in-place updates (by an optimiser,
    load_state_dict) raise a parameter's version, and autocast changes the type of the result."""
    kind = bilm.encoder.char_embed.device.type
    autocast = torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind)
    parameters = [
        (id(p), p.data_ptr(), p.dtype, 0 if p.is_inference() else p._version)
        for p in bilm.encoder.parameters()
    ]
    return [autocast, operands, *parameters]


def batch_to_ids(sentences: Sequence[Sentence], max_chars: int = 50) -> Tensor:
    """Character ids [sentences, words, max_chars] with all-zero padding, as from AllenNLP's
    function of this name."""
    longest = max((len(sentence) for sentence in sentences), default=0)
    ids = torch.zeros(len(sentences), longest, max_chars, dtype=torch.int64)
    for n, sentence in enumerate(sentences):
        ids[n, : len(sentence)] = torch.from_numpy(char_ids(sentence, max_chars).astype(np.int64))
    return ids
