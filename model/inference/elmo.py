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

A word type is encoded once, until the weights change. A frozen biLM reads sentences without padding
(`packed.py`), a trained one with it. Both read in portions that pass on their states, so a sentence
of any length needs the memory of its output and one portion.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from elmwright.model.bilm import BiLM, States
from elmwright.model.config import Precision
from elmwright.model.formats.folder import load_folder
from elmwright.model.inference.mixes import ElmoOutput, Mixes
from elmwright.model.inference.pooling import pooled
from elmwright.model.inference.reading import CarriedStates, Reading, read
from elmwright.model.inference.task_state import (
    digest_of,
    forgive_left_out,
    leave_out,
    left_out,
    versions,
)
from elmwright.model.inference.word_types import (
    Key,
    Row,
    Sentences,
    TypeCache,
    ids_of,
    types_of_ids,
    types_of_words,
)
from elmwright.model.precision import Operands
from elmwright.model.text.text_input import Batch, Pool, Read, Span, TextInput
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
        precision: Precision = "fp32",
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
        `precision` "bf16" rounds the operands of products, as `train.precision` does in training.
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
        self.operands = Operands.of(precision)
        self._carried = CarriedStates()
        self._cache = TypeCache()
        self._was_trained = False
        self._versions, self._digest, self._left_out = versions(bilm), digest_of(bilm), ""
        self.register_load_state_dict_post_hook(forgive_left_out)  # type: ignore[no-untyped-call]

    @classmethod
    def from_pretrained(
        cls, folder: Path | str, *, device: torch.device | str = "cpu", **options: Any
    ) -> "Elmo":
        """The model in any kind of model folder; `options` are those of `Elmo`.

        It is in evaluation mode, without dropout, unless `dropout` or `trainable_bilm` says that it
        is to be trained. The mode of a module around it replaces that.
        """
        if str(folder).startswith("models:/"):
            raise UserError(
                "input",
                f"{folder} is a registry URI; open it with "
                f"elmwright.Elmo.from_pretrained({str(folder)!r})",
            )
        options = {"text": TextInput.of_folder(Path(folder)), **options}
        layer = cls(load_folder(folder, device).bilm, **options).to(device)
        return layer.train("dropout" in options or bool(options.get("trainable_bilm")))

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
        given = self.text.read([words], self.pool)
        return given.tokens[0], given.spans_at([0])[0]

    def forward(self, sentences: Batch | Sentences | Tensor) -> ElmoOutput:
        """Mix the layers for a batch of sentences, or of character ids [N, T, max_chars] in the
        stored numbering with all-zero rows as padding, as from AllenNLP's `batch_to_ids`."""
        if torch.compiler.is_compiling():
            from elmwright.model.inference.compiled import read_outside_graph

            return self.mix(*read_outside_graph(self, sentences))
        return self.mix(*self.read(sentences))

    def read(self, sentences: Batch | Sentences | Tensor) -> tuple[list[Tensor], Tensor, Tensor]:
        """Every layer [words, width] without padding, the mask [N, T] of the words, and where they
        are in it when it is flat.

        What is trained of the biLM has a graph, if gradients are enabled.
        """
        given: Read | None = None
        if isinstance(sentences, Sentences):
            sentences = sentences.batch
        if isinstance(sentences, Tensor):
            keys, rows = types_of_ids(sentences, self.bilm.config.max_chars)
        else:
            given = self.text.read(sentences, self.pool)
            keys, rows = types_of_words(given.tokens)
        is_trained = torch.is_grad_enabled() and any(
            p.requires_grad for p in self.bilm.parameters()
        )
        self._was_trained |= is_trained
        with torch.set_grad_enabled(is_trained):
            reading = self._read(keys, rows)
            if given is not None:
                reading = self._pooled(reading, given, range(len(rows)))
        return reading.layers, *reading.positions()

    def reset_states(self) -> None:
        """Forget the states that `carry_state` has kept."""
        self._carried = CarriedStates()

    def fill_cache(self, words: Sequence[str], vectors: Tensor) -> None:
        """Use these encoded word types until the weights change.

        They must come from this encoder, `<S>` and `</S>` first.
        """
        vectors = vectors.to(self.bilm.encoder.char_embed)
        self._cache.fill(self.bilm, words, vectors, self.operands.encoder)

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
        given = self.text.read(sentences, self.pool)
        vectors: list[Vectors | None] = [None] * len(given.tokens)
        for batch in self._batches(given.tokens, max_tokens, batch_size):
            reading = self._read(*types_of_words([given.tokens[i] for i in batch]))
            reading = self._pooled(reading, given, batch)
            layers = torch.stack(reading.layers).float().cpu().numpy()
            ends = reading.counts.cumsum()
            for i, end, count in zip(batch, ends, reading.counts, strict=True):
                vectors[i] = layers[:, end - count : end].copy()
        return [v for v in vectors if v is not None]

    def _pooled(self, reading: Reading, given: Read, batch: Sequence[int]) -> Reading:
        """The vectors of words where sentences were given in words and read in pieces."""
        if self.pool is None or not given.has_spans:
            return reading
        return pooled(
            reading, given.spans_at(batch, boundaries=self.keep_sentence_boundaries), self.pool
        )

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

    def _read(self, keys: Sequence[Key], rows: Sequence[Row]) -> Reading:
        """Read sentences that are given as indices into word types."""
        encoder = self.bilm.encoder
        if torch.is_grad_enabled() and any(p.requires_grad for p in encoder.parameters()):
            ids = ids_of(keys, self.bilm.config.max_chars)
            chars = torch.from_numpy(ids.astype(np.int32)).to(self._device)
            types = encoder(chars, self.operands.encoder)
        else:
            operands = self.operands.encoder
            types, places = self._cache.encode(self.bilm, keys, self._device, operands)
            rows = [places[row] for row in rows]
        dtype = encoder.char_embed.dtype
        states = States.zeros(self.bilm.config, len(rows), self._device, dtype)
        how = self.keep_sentence_boundaries, self.operands
        if not self.carry_state:
            return read(self.bilm, types, rows, states, *how)[0]
        states = self._carried.take(states)
        reading, states = read(self.bilm, types, rows, states, *how)
        self._carried.keep(states)
        return reading

    def state_dict(self, *arguments: Any, **options: Any) -> Any:
        """Without the biLM where it is as it was loaded: a task's file is small, and loads into any
        `Elmo` of the same biLM. With `save_bilm`, or where it was trained, it has the biLM."""
        state = super().state_dict(*arguments, **options)
        has_own = self._was_trained or self._versions != versions(self.bilm)
        if not (self.save_bilm or has_own or any(p.requires_grad for p in self.bilm.parameters())):
            leave_out(state, options.get("prefix", ""), self._digest)
        return state

    def _load_from_state_dict(self, state: Any, prefix: str, *arguments: Any) -> None:
        self._left_out = left_out(state, prefix, self._digest)
        super()._load_from_state_dict(state, prefix, *arguments)
