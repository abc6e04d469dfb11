"""The ELMo layer, for task models and for computing vectors.

    elmo = Elmo.from_pretrained("runs/demo/bundle")
    vectors = elmo.embed(["Hello, world!", ["Bye"]])         # (layers + 1, words, 2·projection_dim)

    output = elmo(["Hello, world!", ["Bye"]])                # inside a task model, differentiable
    output.mixes[0], output.mask                             # γ · Σ s_j h_j, and which words exist

The argument is always a batch. In it, a string is a raw sentence, which becomes the words of the
model's corpus (`text_input.py`), and a list is its words. A bare string is a batch of one.

Each sentence is read as `<S> w1 … wn </S>`, backwards in reverse, and the frame is removed again.
Layer 0 is the encoder's output twice, [x; x]; layer j is [forward; backward] of LSTM layer j.

**States are reset for every call**, so a sentence has one representation whatever came before. With
`carry_state=True` row i of a call starts with the state in which row i of the call before ended, as
the reference implementations always do.

A word type is encoded once (in `embed`, once for all batches, until the weights change). Time is
cut into windows that pass on their states, so a sentence of any length needs the memory of its
output and one window.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from elmwright.model.bilm import BiLM, States
from elmwright.model.chars import BEGIN_SENTENCE, END_SENTENCE, char_ids
from elmwright.model.formats.folder import load_folder
from elmwright.model.inference.pooling import pool_array, pool_layers
from elmwright.model.inference.text_input import POOLS, Pool, Span, TextInput
from elmwright.pipeline.cleaning.tokeniser import Word
from elmwright.pipeline.errors import UserError

Vectors = npt.NDArray[np.float32]
Batch = str | Sequence[str | Sequence[str]]
"""Sentences: a string is raw text, a list is its words. A bare string is a batch of one."""

WINDOW = 128
"""Steps of the biLM that are in memory at a time."""
TYPES_AT_ONCE = 1024
"""Word types that are encoded together."""
CACHE_BYTES = 1 << 28
"""Size of the cache of encoded types. When it would need more, it starts afresh."""


@dataclass(frozen=True)
class ElmoOutput:
    """One call of the ELMo layer."""

    mixes: list[Tensor]
    """Each mix's representation of every word, [sentences, words, 2·projection_dim]. Zero where
    a sentence has no word."""
    mask: Tensor
    """True where a sentence has a word, [sentences, words]."""


class ScalarMix(nn.Module):
    """γ · Σ s_j h_j with s = softmax(w): a weighted sum of the layers, learned by a task."""

    def __init__(self, n_layers: int, layer_norm: bool = False) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(n_layers))
        self.gamma = nn.Parameter(torch.ones(()))
        self.layer_norm = layer_norm

    def forward(self, layers: Sequence[Tensor], mask: Tensor) -> Tensor:
        """`layers` [N, T, width] each; `mask` [N, T]."""
        shares = self.w.softmax(0)
        mixed = torch.zeros_like(layers[0])
        for share, layer in zip(shares, layers, strict=True):
            mixed = mixed + share * (_normalised(layer, mask) if self.layer_norm else layer)
        return self.gamma * mixed * mask.unsqueeze(-1)


def _normalised(layer: Tensor, mask: Tensor) -> Tensor:
    """Zero mean and unit variance over all words of the batch, as in bilm-tf."""
    weights = mask.unsqueeze(-1).to(layer.dtype)
    count = (weights.sum() * layer.size(-1)).clamp_min(1)
    centred = layer - (layer * weights).sum() / count
    variance = (centred * weights).square().sum() / count
    return centred / (variance + 1e-12).sqrt()


class Elmo(nn.Module):
    """A biLM with any number of independent scalar mixes on top."""

    def __init__(
        self,
        bilm: BiLM,
        n_mixes: int = 1,
        *,
        layer_norm: bool = False,
        dropout: float = 0.5,
        trainable_bilm: bool = False,
        carry_state: bool = False,
        text: TextInput | None = None,
        pool: Pool | Literal["default"] | None = "default",
    ) -> None:
        """`dropout` is applied to the mixes in training mode. `trainable_bilm` fine-tunes the biLM,
        which is otherwise frozen and run without a graph.

        `text` makes words of raw sentences. If the model's own words are pieces of words, `pool`
        ("first", "last" or "mean") says how the vectors of pieces become one for each word of a
        list. With None a list has pieces, as the model's corpus has them. By default it is "first"
        for models that carry their tokeniser.
        """
        super().__init__()
        self.bilm = bilm.requires_grad_(trainable_bilm)
        self.mixes = nn.ModuleList(
            ScalarMix(bilm.config.n_layers + 1, layer_norm) for _ in range(n_mixes)
        )
        self.dropout = nn.Dropout(dropout)
        self.trainable_bilm = trainable_bilm
        self.carry_state = carry_state
        self.text = text or TextInput()
        self.pool = _pool(pool, self.text)
        self._states: States | None = None
        self._cache = TypeCache()

    @classmethod
    def from_pretrained(
        cls, folder: Path | str, *, device: torch.device | str = "cpu", **options: Any
    ) -> "Elmo":
        """The model in any kind of model folder; `options` are those of `Elmo`."""
        if str(folder).startswith("models:/"):
            raise UserError(
                "input",
                f"{folder} is a registry URI; open it with "
                f"elmwright.Elmo.from_pretrained({str(folder)!r})",
            )
        text = TextInput.of_folder(Path(folder))
        return cls(load_folder(folder, device).bilm, text=text, **options).to(device)

    @property
    def width(self) -> int:
        """Width of the representations."""
        return 2 * self.bilm.config.projection_dim

    def tokenize(self, sentence: str) -> list[Word]:
        """The model's own words of a raw sentence: text, start and end (in characters)."""
        return self.text.tokenise(sentence)

    def pieces(self, words: Sequence[str]) -> tuple[list[str], list[Span]]:
        """The pieces of a sentence in words, and for each word the first of its pieces and the one
        after the last, which `pool` makes one vector of."""
        read = self.text.read([words], self.pool)
        return read.tokens[0], read.all_spans()[0]

    def forward(self, sentences: Batch | Tensor) -> ElmoOutput:
        """Mix the layers for a batch of sentences, or of character ids [N, T, max_chars] in the
        stored numbering with all-zero rows as padding, as from AllenNLP's `batch_to_ids`."""
        spans: list[list[Span]] | None = None
        with torch.set_grad_enabled(self.trainable_bilm and torch.is_grad_enabled()):
            if isinstance(sentences, Tensor):
                chars, rows = _types_of_ids(sentences, self.bilm.config.max_chars)
            else:
                read = self.text.read(sentences, self.pool)
                spans = read.all_spans() if read.has_spans else None
                words, rows = _types_of_words(read.tokens)
                chars = self.bilm.encoder.ids(words)
            layers = self._layers(self.bilm.encoder(chars.to(self._device)), rows)
            if spans is not None and self.pool is not None:
                layers = pool_layers(layers, spans, self.pool)
        lengths = torch.tensor([len(row) for row in spans or rows], device=self._device)
        mask = torch.arange(layers[0].size(1), device=self._device) < lengths.unsqueeze(1)
        return ElmoOutput([self.dropout(mix(layers, mask)) for mix in self.mixes], mask)

    def regularization(self, strength: float) -> Tensor:
        """λ‖w‖² over all mixes. Added to a task's loss, it pulls them towards the plain average."""
        weights = torch.cat([w for name, w in self.mixes.named_parameters() if name.endswith(".w")])
        return strength * weights.square().sum()

    def reset_states(self) -> None:
        """Forget the states that `carry_state` has kept."""
        self._states = None

    def fill_cache(self, words: Sequence[str], vectors: Tensor) -> None:
        """Let `embed` use these encoded word types until the weights change.

        They must come from this encoder, `<S>` and `</S>` first.
        """
        self._cache.fill(self.bilm, words, vectors.to(self._device))

    @torch.no_grad()
    def embed(
        self,
        sentences: Batch,
        *,
        max_tokens: int = 2048,
        batch_size: int | None = None,
    ) -> list[Vectors]:
        """All layers of each sentence, (layers + 1, words, 2·projection_dim), in the given order.

        Sentences of similar length are run together, at most `max_tokens` positions (or
        `batch_size` sentences) at a time. With `carry_state` their order is kept, in batches of
        `batch_size` (1 by default): sentence n belongs to row n mod batch_size.
        """
        read = self.text.read(sentences, self.pool)
        vectors: list[Vectors | None] = [None] * len(read.tokens)
        for batch in self._batches(read.tokens, max_tokens, batch_size):
            words, rows = _types_of_words([read.tokens[i] for i in batch])
            types, places = self._cache.encode(self.bilm, words, self._device)
            layers = self._layers(types, [places[row] for row in rows])
            stacked = torch.stack(layers, dim=1).float().cpu().numpy()
            for row, i in enumerate(batch):
                vectors[i] = self._pooled(stacked[row, :, : len(read.tokens[i])], read.spans[i])
        return [v for v in vectors if v is not None]

    def _pooled(self, vectors: Vectors, spans: list[Span] | None) -> Vectors:
        if spans is None or self.pool is None:
            return vectors.copy()
        return pool_array(vectors, spans, self.pool)

    def _batches(
        self, sentences: Sequence[Sequence[str]], max_tokens: int, batch_size: int | None
    ) -> list[list[int]]:
        numbers = list(range(len(sentences)))
        if self.carry_state:
            size = batch_size or 1
            return [numbers[start : start + size] for start in range(0, len(numbers), size)]
        batches: list[list[int]] = []
        for i in sorted(numbers, key=lambda i: len(sentences[i])):
            steps = len(sentences[i]) + 2  # the longest so far
            is_full = not batches or (len(batches[-1]) + 1) * steps > max_tokens
            if is_full or len(batches[-1]) == batch_size:
                batches.append([])
            batches[-1].append(i)
        return batches

    @property
    def _device(self) -> torch.device:
        return self.bilm.encoder.char_embed.device

    def _layers(self, types: Tensor, rows: Sequence[npt.NDArray[np.int64]]) -> list[Tensor]:
        """All layers [N, T, 2·projection_dim] of sentences given as indices into `types`, whose
        rows 0 and 1 are `<S>` and `</S>`."""
        counts = np.array([len(row) for row in rows], dtype=np.int64)
        longest = int(counts.max(initial=0))
        index = np.zeros((2, len(rows), longest + 2), dtype=np.int64)
        for n, row in enumerate(rows):
            index[0, n, : len(row) + 2] = [0, *row, 1]
            index[1, n, : len(row) + 2] = [1, *row[::-1], 0]
        read = torch.from_numpy(index).to(self._device)
        lengths = torch.from_numpy(counts + 2).to(self._device)
        read_layers, states = self._run(types, read, lengths)
        if self.carry_state:
            self._keep(states.detach())

        # Word t is step t + 1 of the forward model and step count − t of the backward one.
        word = torch.arange(longest, device=self._device)
        step = ((lengths - 2).unsqueeze(1) - word).clamp_min(0).unsqueeze(-1)
        layers = []
        for layer in read_layers:
            back = layer[1].gather(1, step.expand(-1, -1, layer.size(-1)))
            layers.append(torch.cat([layer[0, :, 1 : longest + 1], back], dim=-1))
        return layers

    def _run(self, types: Tensor, read: Tensor, lengths: Tensor) -> tuple[list[Tensor], States]:
        """The biLM over [2, N, T] in windows; each layer as [2, N, T, projection_dim]."""
        states = self._initial(read.size(1))
        parts: list[tuple[Tensor, ...]] = []
        for start in range(0, read.size(2), WINDOW):
            window = read[:, :, start : start + WINDOW]
            rest = (lengths - start).clamp(0, window.size(2))
            output = self.bilm.run(
                types, window[0], window[1], states, lengths=rest, all_layers=True
            )
            states = output.states
            parts.append(output.layers)
        return [torch.cat(layer, dim=2) for layer in zip(*parts, strict=True)], states

    def _initial(self, rows: int) -> States:
        """The states that earlier calls have kept, and zeros for the other rows."""
        states = States.zeros(self.bilm.config, rows, self._device)
        if self.carry_state and self._states is not None:
            known = min(rows, self._states.c.size(2))
            states.c[:, :, :known] = self._states.c[:, :, :known]
            states.m[:, :, :known] = self._states.m[:, :, :known]
        return states

    def _keep(self, states: States) -> None:
        """Keep the states for the next call; further rows of earlier calls stay as they were."""
        if self._states is not None and self._states.c.size(2) > states.c.size(2):
            rest = self._states.rows(slice(states.c.size(2), None))
            states = States(torch.cat([states.c, rest.c], 2), torch.cat([states.m, rest.m], 2))
        self._states = states


def _pool(pool: str | None, text: TextInput) -> Pool | None:
    """The setting of this name."""
    if pool == "default":
        return text.default_pool
    if pool is not None and pool not in POOLS:
        raise UserError("input", f"pool is {pool!r}; it may be {', '.join(POOLS)} or None")
    return cast("Pool | None", pool)


def _types_of_words(
    sentences: Sequence[Sequence[str]],
) -> tuple[list[str], list[npt.NDArray[np.int64]]]:
    """The distinct words, `<S>` and `</S>` first, and each sentence as indices into them."""
    place = {BEGIN_SENTENCE: 0, END_SENTENCE: 1}
    rows = []
    for sentence in sentences:
        indices = [place.setdefault(word, len(place)) for word in sentence]
        rows.append(np.array(indices, dtype=np.int64))
    return list(place), rows


def _types_of_ids(ids: Tensor, max_chars: int) -> tuple[Tensor, list[npt.NDArray[np.int64]]]:
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


def batch_to_ids(sentences: Sequence[Sequence[str]], max_chars: int = 50) -> Tensor:
    """Character ids [sentences, words, max_chars] with all-zero padding, as from AllenNLP's
    function of this name."""
    longest = max((len(sentence) for sentence in sentences), default=0)
    ids = torch.zeros(len(sentences), longest, max_chars, dtype=torch.int64)
    for n, sentence in enumerate(sentences):
        ids[n, : len(sentence)] = torch.from_numpy(char_ids(sentence, max_chars).astype(np.int64))
    return ids
