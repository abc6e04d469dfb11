"""The ELMo layer, for task models and for computing vectors.

    elmo = Elmo.from_pretrained("runs/demo/bundle")
    vectors = elmo.embed(["Hello, world!", ["Bye"]])         # (layers + 1, words, 2·projection_dim)

    output = elmo(["Hello, world!", ["Bye"]])                # inside a task model, differentiable
    output.mixes[0], output.mask                             # γ · Σ s_j h_j, and which words exist

The argument is always a batch. In it, a string is a raw sentence, which becomes the words of the
model's corpus (`model/text/`), and a list is its words. A bare string is a batch of one.

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
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from elmwright.model.bilm import BiLM, States
from elmwright.model.formats.folder import load_folder
from elmwright.model.inference.mixes import ElmoOutput, Mixes
from elmwright.model.inference.pooling import pool_array, pool_layers
from elmwright.model.inference.reading import CarriedStates, read_rows
from elmwright.model.inference.word_types import (
    Row,
    TypeCache,
    types_of_ids,
    types_of_words,
)
from elmwright.model.text.text_input import Batch, Pool, Span, TextInput
from elmwright.pipeline.cleaning.tokeniser import Word
from elmwright.pipeline.errors import UserError

Vectors = npt.NDArray[np.float32]


class Elmo(Mixes):
    """A biLM with any number of independent scalar mixes on top."""

    def __init__(
        self,
        bilm: BiLM,
        n_mixes: int = 1,
        *,
        layer_norm: bool = False,
        dropout: float = 0.5,
        mix_weights: Sequence[float] | None = None,
        trainable_mixes: bool = True,
        trainable_bilm: bool = False,
        carry_state: bool = False,
        keep_sentence_boundaries: bool = False,
        save_bilm: bool = False,
        text: TextInput | None = None,
        pool: Pool | Literal["default"] | None = "default",
    ) -> None:
        """`layer_norm` normalises each layer over the words of a batch before it is mixed.
        `dropout` is applied to the mixes in training mode.
        `mix_weights` are the first values of every mix's w, one per layer (the shares are their
        softmax); with `trainable_mixes=False` they stay as they are, and γ is 1.
        `trainable_bilm` fine-tunes the biLM, which is otherwise frozen and run without a graph.
        Parts of it are trained wherever their `requires_grad` is set, at any time.
        `carry_state` begins each call with the states after the one before.
        `keep_sentence_boundaries` gives vectors to `<S>` and `</S>` too, as first and last word.
        `save_bilm` puts the biLM into `state_dict` also where it is frozen and unchanged.
        `text` makes words of raw sentences; `from_pretrained` takes it from the model's folder.
        `pool` ("first", "last" or "mean") says how the vectors of pieces become one for each word
        of a list, where the model reads pieces. None takes the pieces themselves in a list. By
        default it is "first" for a model that carries its tokeniser.
        """
        super().__init__(
            bilm.config.n_layers + 1,
            n_mixes,
            layer_norm=layer_norm,
            dropout=dropout,
            mix_weights=mix_weights,
            trainable_mixes=trainable_mixes,
        )
        self.bilm = bilm.requires_grad_(trainable_bilm)
        self.carry_state = carry_state
        self.keep_sentence_boundaries = keep_sentence_boundaries
        self.save_bilm = save_bilm
        self.text = text or TextInput()
        self.pool = self.text.pool_of(pool)
        self._carried = CarriedStates()
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
        options = {"text": TextInput.of_folder(Path(folder)), **options}
        return cls(load_folder(folder, device).bilm, **options).to(device)

    @property
    def width(self) -> int:
        """Width of the representations."""
        return 2 * self.bilm.config.projection_dim

    def tokenize(self, sentence: str) -> list[Word]:
        """The model's own words of a raw sentence: text, start and end (in characters)."""
        return self.text.tokenise(sentence)

    def pieces(self, words: Sequence[str]) -> tuple[list[str], list[Span]]:
        """What the model reads of a sentence in words, and for each word its first piece and the
        one after its last, which `pool` makes one vector of."""
        read = self.text.read([words], self.pool)
        return read.tokens[0], read.all_spans()[0]

    def forward(self, sentences: Batch | Tensor) -> ElmoOutput:
        """Mix the layers for a batch of sentences, or of character ids [N, T, max_chars] in the
        stored numbering with all-zero rows as padding, as from AllenNLP's `batch_to_ids`."""
        spans: list[list[Span]] | None = None
        trainable = any(p.requires_grad for p in self.bilm.parameters())
        with torch.set_grad_enabled(trainable and torch.is_grad_enabled()):
            if isinstance(sentences, Tensor):
                chars, rows = types_of_ids(sentences, self.bilm.config.max_chars)
            else:
                read = self.text.read(sentences, self.pool)
                spans = read.all_spans(self.keep_sentence_boundaries) if read.has_spans else None
                words, rows = types_of_words(read.tokens)
                chars = self.bilm.encoder.ids(words)
            layers = self._layers(self.bilm.encoder(chars.to(self._device)), rows)
            if spans is not None and self.pool is not None:
                layers = pool_layers(layers, spans, self.pool)
        frame = 2 * self.keep_sentence_boundaries
        counts = [len(row) + frame for row in rows] if spans is None else list(map(len, spans))
        lengths = torch.tensor(counts, device=self._device)
        mask = torch.arange(layers[0].size(1), device=self._device) < lengths.unsqueeze(1)
        return self.mix([layer * mask.unsqueeze(-1) for layer in layers], mask)

    def reset_states(self) -> None:
        """Forget the states that `carry_state` has kept."""
        self._carried = CarriedStates()

    def fill_cache(self, words: Sequence[str], vectors: Tensor) -> None:
        """Use these encoded word types until the weights change.

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
        frame = 2 * self.keep_sentence_boundaries
        read = self.text.read(sentences, self.pool)
        spans = read.all_spans(self.keep_sentence_boundaries) if read.has_spans else None
        vectors: list[Vectors | None] = [None] * len(read.tokens)
        for batch in self._batches(read.tokens, max_tokens, batch_size):
            words, rows = types_of_words([read.tokens[i] for i in batch])
            types, places = self._cache.encode(self.bilm, words, self._device)
            layers = self._layers(types, [places[row] for row in rows])
            stacked = torch.stack(layers, dim=1).float().cpu().numpy()
            for row, i in enumerate(batch):
                vectors[i] = stacked[row, :, : len(read.tokens[i]) + frame].copy()
                if spans is not None and self.pool is not None:
                    vectors[i] = pool_array(stacked[row], spans[i], self.pool)
        return [v for v in vectors if v is not None]

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

    def _layers(self, types: Tensor, rows: Sequence[Row]) -> list[Tensor]:
        """All layers [N, T, 2·projection_dim] of sentences given as indices into `types`."""
        states = States.zeros(self.bilm.config, len(rows), self._device)
        if not self.carry_state:
            return read_rows(self.bilm, types, rows, states, self.keep_sentence_boundaries)[0]
        states = self._carried.take(states)
        layers, states = read_rows(self.bilm, types, rows, states, self.keep_sentence_boundaries)
        self._carried.keep(states)
        return layers
