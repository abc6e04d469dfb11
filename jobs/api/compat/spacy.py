"""A spaCy component that gives tokens their ELMo vectors.

    nlp = spacy.blank("en")
    nlp.add_pipe("sentencizer")
    nlp.add_pipe("elmwright", config={"model": "runs/demo/bundle"})
    doc = nlp("The dog barks. It is loud.")
    doc.tensor, doc[1].vector, doc[0:3].vector, doc[1].similarity(doc[6])

Sentences are read one by one where the pipeline has found them before, else the document as a
whole. A token of white space has a vector of zeros and is not read. The model is loaded when the
first document comes; a pipeline that is saved has its own copy of it.

spaCy is an optional dependency (`elmwright[spacy]`) that only this file imports.
"""

import shutil
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.torch import save_file
from spacy.language import Language
from spacy.tokens import Doc

from elmwright.jobs.registry.resolve import resolve
from elmwright.jobs.using.layer_choice import check_layers, width_of, words_of
from elmwright.jobs.using.pretrained import Elmo
from elmwright.model.formats.folder import CONFIG, MODEL, VOCAB, model_tensors, write_config
from elmwright.pipeline.storage.untrusted import read_object

from .words import check_words

Vectors = npt.NDArray[np.float32]
COPIED = ("input", "tokenisation")
"""What a saved model's config.json keeps besides its shape."""


class ElmoVectors:
    """Sets `doc.tensor`, and the hooks that make vectors of it."""

    def __init__(self, model: str, layers: str = "mean", device: str = "cpu") -> None:
        """`model` is a MODEL as in the commands. `layers` is mean, top, a number, or all, which
        concatenates them."""
        self.model = model
        self.layers = layers
        self.device = device
        self._elmo: Elmo | None = None

    @property
    def elmo(self) -> Elmo:
        """The model, loaded at first use."""
        if self._elmo is None:
            elmo = Elmo.from_pretrained(self.model, device=self.device)
            check_layers(self.layers, elmo.bilm.config.n_layers)
            self._elmo = elmo.eval()
        return self._elmo

    def __call__(self, doc: Doc) -> Doc:
        self._set([doc])
        return doc

    def pipe(self, stream: Iterable[Doc], *, batch_size: int = 64) -> Iterator[Doc]:
        """Read the sentences of `batch_size` documents together."""
        documents = iter(stream)
        while batch := list(islice(documents, batch_size)):
            self._set(batch)
            yield from batch

    def _set(self, documents: list[Doc]) -> None:
        places = [(doc, place) for doc in documents for place in _sentences(doc)]
        sentences = [[doc[i].text for i in place] for doc, place in places]
        for sentence in sentences:
            check_words(sentence, "put elmwright before the component that merges tokens")
        top = self.elmo.bilm.config.n_layers
        width = width_of(self.layers, top, self.elmo.width)
        for doc in documents:
            doc.tensor = np.zeros((len(doc), width), np.float32)
            for hooks in (doc.user_hooks, doc.user_span_hooks):
                hooks.update(vector=_mean, has_vector=_has_vector, similarity=_similarity)
            doc.user_token_hooks.update(vector=_row, has_vector=_has_vector, similarity=_similarity)
        for (doc, place), vectors in zip(places, self.elmo.embed(sentences), strict=True):
            doc.tensor[place] = words_of(vectors, self.layers)

    def to_disk(self, path: Path | str, *, exclude: Iterable[str] = ()) -> None:
        """Copy the model into a folder."""
        folder = Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        source = resolve(self.model)
        known = read_object(source / CONFIG) if (source / CONFIG).is_file() else {}
        bilm = self.elmo.bilm
        kept = {key: known[key] for key in COPIED if key in known}
        write_config(folder / CONFIG, bilm.config, kept)
        save_file(model_tensors(bilm), folder / MODEL)
        for name in (VOCAB, "sentencepiece.model"):
            if (source / name).is_file() and source != folder:
                shutil.copyfile(source / name, folder / name)

    def from_disk(self, path: Path | str, *, exclude: Iterable[str] = ()) -> "ElmoVectors":
        """Use the copy in a folder."""
        self.model, self._elmo = str(path), None
        return self


def _sentences(doc: Doc) -> Iterator[list[int]]:
    """The places of the words of each sentence that has any."""
    for sentence in doc.sents if doc.has_annotation("SENT_START") else [doc]:
        if place := [token.i for token in sentence if not token.is_space]:
            yield place


def _row(token: Any) -> Vectors:
    return np.asarray(token.doc.tensor[token.i])


def _mean(tokens: Any) -> Vectors:
    """The mean over the words of a document or a span; zeros if it has none."""
    doc = tokens if isinstance(tokens, Doc) else tokens.doc
    place = [token.i for token in tokens if not token.is_space]
    if not place:
        return np.zeros(doc.tensor.shape[1], np.float32)
    return np.asarray(doc.tensor[place].mean(axis=0))


def _has_vector(tokens: Any) -> bool:
    return bool(tokens.vector.any())


def _similarity(one: Any, other: Any) -> float:
    """The cosine; 0 where one has no vector."""
    norm = float(np.linalg.norm(one.vector) * np.linalg.norm(other.vector))
    return float(np.dot(one.vector, other.vector)) / norm if norm else 0.0


def make(nlp: Language, name: str, model: str, layers: str, device: str) -> ElmoVectors:
    """The component, as `nlp.add_pipe("elmwright", config={…})` calls it."""
    return ElmoVectors(model, layers, device)


Language.factory(
    "elmwright",
    assigns=["doc.tensor"],
    default_config={"layers": "mean", "device": "cpu"},
    func=make,
)
