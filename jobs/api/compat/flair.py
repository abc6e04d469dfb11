"""ELMo vectors as word embeddings of flair.

    from elmwright.compat.flair import ElmoEmbeddings

    embeddings = StackedEmbeddings([WordEmbeddings("glove"), ElmoEmbeddings("runs/demo/bundle")])

The biLM is frozen and is no part of the tagger's weights. A saved tagger names its MODEL, which
must be there when it is loaded, after `import elmwright.compat.flair`.

flair is an optional dependency (`elmwright[flair]`) that only this file imports.
"""

from typing import Any

import flair
import torch
from flair.data import Sentence
from flair.embeddings.base import TokenEmbeddings, register_embeddings

from elmwright.jobs.using.layer_choice import check_layers, width_of, words_of
from elmwright.jobs.using.pretrained import Elmo

from .words import check_words


class ElmoEmbeddings(TokenEmbeddings):  # type: ignore[misc]
    """The vectors of a MODEL, one per token."""

    def __init__(self, model: str, layers: str = "mean", name: str = "") -> None:
        """`model` is a MODEL as in the commands. `layers` is mean, top, a number, or all, which
        concatenates them. `name` tells two of them in one stack apart."""
        self.name = name or f"elmwright {model} {layers}"
        self.static_embeddings = True
        super().__init__()
        elmo = Elmo.from_pretrained(model, device=str(flair.device)).eval()
        check_layers(layers, elmo.bilm.config.n_layers)
        self.model, self.layers = model, layers
        self._frozen = (elmo,)  # in a tuple, so that it is no module of the tagger

    @property
    def embedding_length(self) -> int:
        (elmo,) = self._frozen
        return width_of(self.layers, elmo.bilm.config.n_layers, elmo.width)

    def _add_embeddings_internal(self, sentences: list[Sentence]) -> None:
        words = [[token.text for token in sentence] for sentence in sentences]
        for sentence in words:
            check_words(sentence, "give its parts as tokens of their own")
        (elmo,) = self._frozen
        for tokens, vectors in zip(sentences, elmo.embed(words), strict=True):
            rows = torch.from_numpy(words_of(vectors, self.layers)).to(flair.device)
            for token, row in zip(tokens, rows, strict=True):
                token.set_embedding(self.name, row)

    def to_params(self) -> dict[str, Any]:
        """What a saved tagger keeps."""
        return {"model": self.model, "layers": self.layers, "name": self.name}

    @classmethod
    def from_params(cls, params: dict[str, Any]) -> "ElmoEmbeddings":
        """The embeddings of a saved tagger."""
        return cls(**params)


register_embeddings("ElmwrightEmbeddings")(ElmoEmbeddings)
