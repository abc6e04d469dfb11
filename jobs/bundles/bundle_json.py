"""config.json and provenance.json of a bundle, as far as they are read again."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from elmwright.jobs.checkpoints.contents import Scores
from elmwright.pipeline.cleaning.tokeniser import Tokenisation
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.records import from_data
from elmwright.pipeline.storage.untrusted import read_object

T = TypeVar("T")


@dataclass(frozen=True)
class Vocabulary:
    """The words of the softmax."""

    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class BundleConfig:
    """What config.json says besides the model's shape, in its order."""

    evaluation: Scores = field(default_factory=dict)
    step: int
    """Updates made."""
    vocab: Vocabulary
    heldout_sha256: dict[str, str]
    """Held-out set → digest of what was scored of it."""
    eval_lanes: int = 0
    """Rows that a held-out set is read in; the carried perplexity depends a little on them."""
    tokenizer: str = ""
    """Empty, as the two below, where an early bundle does not say it."""
    sentences: str = ""
    """How text is split into sentences."""
    language: str = ""
    input: int = 1
    """2 where the model carries its tokenisation; 1 where a string is split at white space."""
    tokenisation: Tokenisation | None = None
    """How raw text becomes words, where `input` is 2."""
    example: str = ""
    """A sentence for the card and the registry; empty in earlier bundles."""


@dataclass(frozen=True, kw_only=True)
class Origin:
    """What is read of provenance.json."""

    config: dict[str, Any] = field(default_factory=dict)
    """The resolved config of the run."""
    corpus_fingerprint: str
    corpus_words: int | None = None
    """Words it was trained on; early bundles do not say it."""
    mlflow_run_id: str


def read_bundle_config(bundle: Path) -> BundleConfig:
    """The checked content of config.json."""
    return _read(BundleConfig, bundle / "config.json")


def read_origin(bundle: Path) -> Origin:
    """The checked content of provenance.json."""
    return _read(Origin, bundle / "provenance.json")


def _read(cls: type[T], path: Path) -> T:
    content = read_object(path)
    try:
        return from_data(cls, content, ignore_unknown=True, finite=False)
    except (ValueError, RecursionError) as error:
        raise UserError(
            "file-damaged", f"{path} is not as export writes it ({error!s:.200}); export again"
        ) from error
