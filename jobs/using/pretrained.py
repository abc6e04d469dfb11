"""Opens models: `elmwright.Elmo`, the ELMo layer of any MODEL, and models that can score text.

The layer itself (`model/inference/elmo.py`) reads folders and knows no registry. Here a MODEL (a
bundle, a checkpoint, `models:/name@alias`, a bilm folder) is first resolved to a verified folder.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from elmwright.jobs.bundles.finetuned import Opened, save_finetuned
from elmwright.jobs.registry.resolve import resolve
from elmwright.jobs.using.substitutes import Substitutes, Vocabulary, substitutes_of
from elmwright.jobs.using.text.marked_sentence import (
    MarkedWords,
    find_mark,
    marked_list,
    words_around,
)
from elmwright.model.bilm import BiLM
from elmwright.model.formats.folder import load_folder
from elmwright.model.inference import elmo
from elmwright.model.softmax import Softmax
from elmwright.model.text.text_input import Batch
from elmwright.pipeline.errors import UserError


class Elmo(elmo.Elmo):
    """`elmwright.model.inference.elmo.Elmo` whose `from_pretrained` takes any MODEL."""

    opened: Opened | None = None
    """The MODEL that it was opened from."""
    _vocabulary: Vocabulary | None = None
    """The softmax, once `substitutes` has needed it."""

    @classmethod
    def from_pretrained(
        cls, folder: Path | str, *, device: torch.device | str = "cpu", **options: Any
    ) -> "Elmo":
        """Open `folder`, which is any MODEL; `device` may be "auto". `options` are those of the
        layer, and

        `tracking_uri`: where a `models:/` URI is looked up (by default what MLflow itself would
        use, MLFLOW_TRACKING_URI first);
        `require_signature`: a public key that the bundle must be signed with.
        """
        verified = resolve(
            str(folder), options.pop("tracking_uri", ""), options.pop("require_signature", "")
        )
        layer = super().from_pretrained(verified, device=choose_device(str(device)), **options)
        assert isinstance(layer, cls)  # noqa: S101 - for the type checker
        layer.opened = Opened(str(folder), verified)
        return layer

    def save_pretrained(
        self, folder: Path | str, *, name: str = "", licence: str = "", force: bool = False
    ) -> None:
        """Save a biLM that was fine-tuned in a task as a bundle, which `from_pretrained` and every
        command can open. Its card and `provenance.json` name the model that it was opened from, and
        the sources of that. The mixes are not in it: they are in `state_dict`.

        `name` is by default that of the folder. A bundle that exists is replaced with `force`.
        """
        if self.opened is None:
            raise UserError(
                "input", "only an Elmo that from_pretrained opened can be saved; open one first"
            )
        save_finetuned(
            self.bilm, self.opened, Path(folder), name=name, licence=licence, force=force
        )

    def substitutes(self, sentences: Batch, k: int = 10) -> list[Substitutes]:
        """The `k` most probable words in the place that each sentence marks, as in
        `they [play] in the garden`: forward × backward probability over the vocabulary.

        A sentence is raw text or a list of words, in which the brackets are part of words. The
        softmax is read at the first call.
        """
        batch = [sentences] if isinstance(sentences, str) else sentences
        marked = [self._marked(sentence) for sentence in batch]
        if self._vocabulary is None:
            if self.opened is None:
                raise UserError(
                    "model-incomplete",
                    "this Elmo was not opened with from_pretrained, so it has no softmax",
                )
            model = load_language_model(self.opened.folder, str(self._device), self.opened.called)
            self._vocabulary = Vocabulary(model.softmax, tuple(model.word_ids), model.word_ids)
        return substitutes_of(self.bilm, self._vocabulary, marked, k)

    def _marked(self, sentence: str | Sequence[str]) -> MarkedWords:
        """The model's own words around the mark of a sentence."""
        if isinstance(sentence, str):
            mark = find_mark(sentence)
            return words_around(mark, self.tokenize(mark.text))
        given = marked_list(sentence)
        words, spans = self.pieces([*given.before, *given.words, *given.after])
        first, last = len(given.before), len(given.before) + len(given.words)
        start = spans[first][0] if first < len(spans) else len(words)
        end = spans[last - 1][1] if last > first else start
        return MarkedWords(tuple(words[:start]), tuple(words[start:end]), tuple(words[end:]))


@dataclass(frozen=True)
class LanguageModel:
    """A model that can score text."""

    bilm: BiLM
    softmax: Softmax
    word_ids: dict[str, int]
    """The number of each word of the vocabulary."""


def load_language_model(folder: Path, device: str = "cpu", name: str = "") -> LanguageModel:
    """Load a verified folder with its softmax; `name` is the user's name for it in errors."""
    loaded = load_folder(folder, device, with_softmax=True)
    if loaded.softmax is None or loaded.vocab is None:
        raise UserError(
            "model-incomplete",
            f"{name or folder} has no softmax or no vocabulary, so it cannot score text; use a "
            "bundle with its softmax.safetensors, or a checkpoint",
        )
    word_ids = {word: number for number, word in enumerate(loaded.vocab)}
    return LanguageModel(loaded.bilm, loaded.softmax, word_ids)


def choose_device(name: str) -> str:
    """The torch device of this name, where `auto` is a GPU if there is one; UserError if torch
    cannot use it."""
    has_gpu = torch.cuda.is_available()
    if name == "auto":
        return "cuda" if has_gpu else "cpu"
    if name.partition(":")[0] == "cuda" and not has_gpu:
        raise UserError(
            "device", "there is no GPU that torch can use here; take --device cpu (or auto)"
        )
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0][:100]
        raise UserError(
            "device",
            f"torch has no device {name!r} here ({reason}); take cpu, cuda, cuda:N or auto",
        ) from error
    return name
