"""Elmwright: from raw text to a published, drop-in ELMo.

`from elmwright import Elmo` is all that a user of a finished model needs. `SentenceVectors` is for
scikit-learn, `CachedLayers` and `LayerMixes` are for a task that trains from vectors in a file,
`Sentences` is for torch.compile, and `shards` gives the sentences of a corpus. A mistake of the
caller raises `UserError`. Names are resolved on first use, so `import elmwright` (and the command's
`--help`) does not import torch.

The top room of jobs/: it may import every other room. They take only `__version__` from it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elmwright.jobs.using.pretrained import Elmo
    from elmwright.jobs.using.sentence_shards import shards
    from elmwright.jobs.using.sentence_vectors import SentenceVectors
    from elmwright.model.inference.cached_layers import CachedLayers
    from elmwright.model.inference.mixes import LayerMixes
    from elmwright.model.inference.word_types import Sentences
    from elmwright.pipeline.errors import UserError

__version__ = "0.1.0"
__all__ = [
    "CachedLayers",
    "Elmo",
    "LayerMixes",
    "SentenceVectors",
    "Sentences",
    "UserError",
    "__version__",
    "shards",
]

_HOMES = {
    "CachedLayers": "elmwright.model.inference.cached_layers",
    "Elmo": "elmwright.jobs.using.pretrained",
    "LayerMixes": "elmwright.model.inference.mixes",
    "SentenceVectors": "elmwright.jobs.using.sentence_vectors",
    "Sentences": "elmwright.model.inference.word_types",
    "UserError": "elmwright.pipeline.errors",
    "shards": "elmwright.jobs.using.sentence_shards",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'elmwright' has no attribute {name!r}")
