"""AllenNLP's ELMo classes, computed by Elmwright, so that an old script changes one import.

    from elmwright.compat.allennlp import Elmo, ElmoEmbedder, batch_to_ids

Names, arguments, results and the names in a `state_dict` are those of AllenNLP: `Elmo` and
`batch_to_ids` of version 2.10, `ElmoEmbedder` of 0.9, the last that had it. A task model that was
saved with AllenNLP can be loaded.

One thing differs unless `carry_state=True`: AllenNLP begins a batch with the LSTM states in which
the batch before it ended, so the vectors of a sentence depend on what was read earlier. Here, every
batch is read from fresh states.
"""

import json
import warnings
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Any, cast

import h5py
import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor, nn

from elmwright.jobs.using.pretrained import choose_device
from elmwright.model.bilm import BiLM
from elmwright.model.chars import EOW, N_CHARS, PAD
from elmwright.model.formats.bilm_format import read_options, read_weights
from elmwright.model.formats.folder import load_tensors
from elmwright.model.inference import elmo, word_types
from elmwright.model.inference.mixes import normalised
from elmwright.pipeline.errors import UserError

from .allennlp_weights import translated
from .words import inner_space

__all__ = ["Elmo", "ElmoEmbedder", "batch_to_ids"]

Vectors = npt.NDArray[np.float32]
MAX_CHARS = 50
"""Characters of a word in AllenNLP, whatever the model."""
OUTPUTS = ("all", "top", "average")


def batch_to_ids(batch: Sequence[Sequence[str]]) -> Tensor:
    """Character ids [sentences, words, 50] of sentences in words, padded with zeros."""
    for number, sentence in enumerate(batch):
        if isinstance(sentence, str) or not all(isinstance(word, str) for word in sentence):
            raise UserError(
                "input", f"sentence {number} is not a list of words: {str(sentence)[:40]!r}"
            )
        if place := inner_space(sentence):
            warnings.warn(f"sentence {number}: {place}", stacklevel=2)
    return word_types.batch_to_ids(batch, MAX_CHARS)


class _ScalarMix(nn.Module):
    """γ · Σ s_j h_j, with the parameters that AllenNLP's mix has."""

    def __init__(self, layers: int, layer_norm: bool, weights: Sequence[float] | None) -> None:
        super().__init__()
        if weights is not None and len(weights) != layers:
            raise UserError(
                "input",
                f"scalar_mix_parameters has {len(weights)} numbers and the model {layers} layers; "
                "give one number per layer",
            )
        train = weights is None
        self.scalar_parameters = nn.ParameterList(
            nn.Parameter(torch.tensor([float(weight)]), requires_grad=train)
            for weight in (weights or [0.0] * layers)
        )
        self.gamma = nn.Parameter(torch.ones(1), requires_grad=train)
        self.layer_norm = layer_norm

    def forward(self, layers: Sequence[Tensor], mask: Tensor) -> Tensor:
        shares = torch.cat(list(self.scalar_parameters)).softmax(0)
        mixed = torch.zeros_like(layers[0])
        for share, layer in zip(shares, layers, strict=True):
            mixed = mixed + share * (normalised(layer, mask) if self.layer_norm else layer)
        return self.gamma * mixed


class _ElmoBiLm(nn.Module):
    """All layers of a batch, with `<S>` and `</S>` as words of every sentence."""

    def __init__(
        self,
        options_file: str | Path | None,
        weight_file: str | Path | None,
        requires_grad: bool = False,
        vocab_to_cache: Sequence[str] | None = None,
        *,
        carry_state: bool = False,
    ) -> None:
        super().__init__()
        self.core = elmo.Elmo(
            _load(options_file, weight_file),
            n_mixes=0,
            trainable_bilm=requires_grad,
            carry_state=carry_state,
            keep_sentence_boundaries=True,
        )
        self.num_layers = self.core.bilm.config.n_layers + 1
        self.vocab = list(vocab_to_cache or ())
        self.register_load_state_dict_pre_hook(_accept_allennlp)  # type: ignore[no-untyped-call]

    def get_output_dim(self) -> int:
        return self.core.width

    def forward(self, inputs: Tensor, word_inputs: Tensor | None = None) -> dict[str, Any]:
        """The `activations` of each layer [N, T + 2, width], and the `mask` [N, T + 2]."""
        batch: Any = None
        if self.vocab and word_inputs is not None and int(word_inputs.max()) < len(self.vocab):
            batch = [[self.vocab[i] for i in row if i] for row in word_inputs.tolist()]
            steps = word_inputs.size(1) + 2
        else:
            batch = _fitted(inputs, self.core.bilm.config.max_chars)
            steps = inputs.size(1) + 2
        output = self.core(batch)
        rest = steps - output.mask.size(1)  # columns that are padding in every sentence
        layers = [F.pad(layer, (0, 0, 0, rest)) for layer in output.layers]
        return {"activations": layers, "mask": F.pad(output.mask, (0, rest))}


class Elmo(nn.Module):
    """`allennlp.modules.elmo.Elmo`."""

    def __init__(
        self,
        options_file: str | Path | None,
        weight_file: str | Path | None,
        num_output_representations: int,
        requires_grad: bool = False,
        do_layer_norm: bool = False,
        dropout: float = 0.5,
        vocab_to_cache: Sequence[str] | None = None,
        keep_sentence_boundaries: bool = False,
        scalar_mix_parameters: Sequence[float] | None = None,
        module: nn.Module | None = None,
        *,
        carry_state: bool = False,
        **unknown: Any,
    ) -> None:
        """The arguments of AllenNLP, and `carry_state` (see above), which `module` excludes."""
        super().__init__()
        _refuse("Elmo", unknown)
        if module is not None and (options_file, weight_file, carry_state) != (None, None, False):
            raise UserError(
                "input",
                "Elmo has a module already; give None as options_file and weight_file, and no "
                "carry_state",
            )
        self._elmo_lstm: Any = module or _ElmoBiLm(
            options_file, weight_file, requires_grad, vocab_to_cache, carry_state=carry_state
        )
        self._keep_sentence_boundaries = keep_sentence_boundaries
        self._dropout = nn.Dropout(dropout)
        self._mixes = [f"scalar_mix_{k}" for k in range(num_output_representations)]
        layers = cast("int", self._elmo_lstm.num_layers)
        for name in self._mixes:
            mix = _ScalarMix(layers, do_layer_norm, scalar_mix_parameters)
            self.add_module(name, mix)

    def get_output_dim(self) -> int:
        """Width of a representation."""
        return int(self._elmo_lstm.get_output_dim())

    def forward(self, inputs: Tensor, word_inputs: Tensor | None = None) -> dict[str, Any]:
        """`elmo_representations`, one per mix, and the `mask` of a batch of character ids."""
        if not isinstance(inputs, Tensor) or inputs.dim() < 3:
            raise UserError(
                "input",
                "Elmo takes character ids (sentences, words, characters); give it "
                "batch_to_ids(sentences)",
            )
        lead = inputs.shape[:-2]
        words = None if word_inputs is None else word_inputs.reshape(-1, word_inputs.size(-1))
        output = self._elmo_lstm(inputs.reshape(-1, *inputs.shape[-2:]), words)
        mask = output["mask"]
        found = [getattr(self, name)(output["activations"], mask) for name in self._mixes]
        if not self._keep_sentence_boundaries:
            mask = mask[:, 2:]  # true at t if word t is followed by another word or </S>
            found = [mixed[:, 1:-1] * mask.unsqueeze(-1) for mixed in found]
        return {
            "elmo_representations": [
                self._dropout(mixed.reshape(*lead, *mixed.shape[1:])) for mixed in found
            ],
            "mask": mask.reshape(*lead, mask.size(1)),
        }


class ElmoEmbedder:
    """`allennlp.commands.elmo.ElmoEmbedder`: all layers as numpy arrays (layers, words, width)."""

    def __init__(
        self,
        options_file: str | Path | None = None,
        weight_file: str | Path | None = None,
        cuda_device: int = -1,
        *,
        carry_state: bool = False,
        **unknown: Any,
    ) -> None:
        """Nothing is downloaded, so both files must be given."""
        _refuse("ElmoEmbedder", unknown)
        device = choose_device(f"cuda:{cuda_device}" if cuda_device >= 0 else "cpu")
        self.cuda_device = cuda_device
        self.elmo_bilm = _ElmoBiLm(options_file, weight_file, carry_state=carry_state).to(device)
        self.elmo_bilm.eval()

    @torch.no_grad()
    def batch_to_embeddings(self, batch: Sequence[Sequence[str]]) -> tuple[Tensor, Tensor]:
        """All layers [sentences, layers, words, width], and the mask [sentences, words]."""
        ids = batch_to_ids(batch).to(next(self.elmo_bilm.parameters()).device)
        output = self.elmo_bilm(ids)
        mask = output["mask"][:, 2:]
        layers = torch.stack([layer[:, 1:-1] for layer in output["activations"]], dim=1)
        return layers * mask[:, None, :, None], mask

    def embed_batch(self, batch: Sequence[Sequence[str]]) -> list[Vectors]:
        """The vectors of each sentence of a batch."""
        if not len(batch):
            return []
        layers, mask = self.batch_to_embeddings(batch)
        lengths = mask.sum(1).tolist()
        rows = layers.cpu().numpy()
        return [row[:, :length].copy() for row, length in zip(rows, lengths, strict=True)]

    def embed_sentence(self, sentence: Sequence[str]) -> Vectors:
        """The vectors of one sentence."""
        return self.embed_batch([sentence])[0]

    def embed_sentences(
        self, sentences: Iterable[Sequence[str]], batch_size: int = 64
    ) -> Iterator[Vectors]:
        """The vectors of each sentence, in batches of `batch_size`."""
        remaining = iter(sentences)
        while batch := list(islice(remaining, batch_size)):
            yield from self.embed_batch(batch)

    def embed_file(
        self,
        input_file: IO[str],
        output_file_path: str,
        output_format: str = "all",
        batch_size: int = 64,
        forget_sentences: bool = False,
        use_sentence_keys: bool = False,
    ) -> None:
        """Write HDF5 with a dataset per line, whose words are separated by spaces."""
        if output_format not in OUTPUTS:
            raise UserError(
                "input", f"output_format is one of {', '.join(OUTPUTS)}, not {output_format!r}"
            )
        lines = [line.strip() for line in input_file]
        if "" in lines:
            raise UserError("input", f"line {lines.index('')} (from 0) is empty; remove it")
        if use_sentence_keys and len(set(lines)) < len(lines):
            raise UserError(
                "input", "the file has a sentence twice; leave out use_sentence_keys, or remove it"
            )
        keys = lines if use_sentence_keys else [str(number) for number in range(len(lines))]
        found = self.embed_sentences((line.split() for line in lines), batch_size)
        with h5py.File(output_file_path, "w") as file:
            for key, vectors in zip(keys, found, strict=True):
                if output_format == "top":
                    vectors = vectors[-1]  # noqa: PLW2901
                elif output_format == "average":
                    vectors = vectors.mean(axis=0)  # noqa: PLW2901
                file.create_dataset(key, data=vectors, dtype="float32", track_times=False)
            if not (forget_sentences or use_sentence_keys):
                index = file.create_dataset("sentence_to_index", (1,), dtype=h5py.string_dtype())
                index[0] = json.dumps(dict(zip(lines, keys, strict=True)))


def _refuse(name: str, unknown: dict[str, Any]) -> None:
    if unknown:
        raise UserError(
            "input",
            f"{name} has no argument {', '.join(unknown)}; docs/lifeboat.md lists those of "
            "AllenNLP that it takes",
        )


def _load(options_file: str | Path | None, weight_file: str | Path | None) -> BiLM:
    """The model in two files of any names."""
    for name, file in (("options_file", options_file), ("weight_file", weight_file)):
        if file is None or str(file).startswith(("http://", "https://", "s3://")):
            raise UserError(
                "model-missing",
                f"{name} is {str(file)!r}, and nothing is downloaded; give the path of a local "
                "file",
            )
        if not Path(file).is_file():
            raise UserError("file-missing", f"{name}: there is no file {file}; check the path")
    config = read_options(Path(str(options_file)))
    bilm = BiLM(config)
    load_tensors(bilm, read_weights(Path(str(weight_file)), config), str(weight_file))
    return bilm


def _fitted(ids: Tensor, max_chars: int) -> Tensor:
    """Character ids for a model whose words have another number of characters."""
    if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < N_CHARS:
        raise UserError(
            "input", f"character ids are 0 to {N_CHARS - 1}; make them with batch_to_ids(sentences)"
        )
    given = ids.size(-1)
    if given < max_chars:
        is_word = (ids != 0).any(-1, keepdim=True)
        ids = torch.cat([ids, (is_word * PAD).expand(*ids.shape[:-1], max_chars - given)], -1)
    elif given > max_chars:
        last = ids[..., max_chars - 1 : max_chars]
        is_cut = (last != 0) & (last != PAD)
        ids = torch.cat([ids[..., : max_chars - 1], torch.where(is_cut, EOW, last)], -1)
    return ids


def _accept_allennlp(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Give AllenNLP's tensors in a state_dict that is being loaded their names here."""
    assert isinstance(module, _ElmoBiLm)  # noqa: S101 - for the type checker
    theirs = {
        name: state.pop(name)
        for name in list(state)
        if name.startswith((f"{prefix}_token_embedder.", f"{prefix}_elmo_lstm."))
    }
    if theirs:
        ours = translated({name.removeprefix(prefix): theirs[name] for name in theirs})
        state.update({f"{prefix}core.bilm.{name}": tensor for name, tensor in ours.items()})
