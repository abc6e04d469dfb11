"""What the user says about text: the `[corpus]`, `[vocab]` and `[shards]` sections of a run config.

The string under each field is its documentation; `elmwright config --explain` prints it.
"""

from dataclasses import dataclass, field
from typing import Literal

EMBEDDED = "embedded:docstrings"
"""The source that needs no download: docstrings of the Python code on this machine."""


@dataclass(frozen=True)
class CorpusConfig:
    """Where the text comes from and how it is cleaned, split and tokenised."""

    sources: tuple[str, ...] = ()
    """Files, folders or globs to read (.txt and .jsonl, each also .gz, .bz2, .xz or .zst), or
    "embedded:docstrings" for the documentation already on this machine."""
    heldout: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Held-out sets from files of their own, by name: {valid = ["valid.txt"]}. They are never
    filtered; sentences they share with train are removed from train."""
    heldout_fraction: float = 0.01
    """Share of the documents split off by content hash as the held-out set "heldout". Ignored
    where `heldout` names files."""
    tokenizer: Literal["ptb", "whitespace", "sentencepiece"] = "ptb"
    """How sentences become words: Penn Treebank style, already tokenised (split at white space),
    or subword pieces trained on this corpus."""
    sentencepiece_size: int = 8000
    """Number of pieces when tokenizer = "sentencepiece"."""
    documents: Literal["blank-line", "line", "file"] = "blank-line"
    """What separates documents in plain text: an empty line, every line, or only the file's end."""
    sentences: Literal["split", "line"] = "split"
    """Find sentence boundaries in the text, or take every line as one sentence."""
    language: str = "en"
    """Language code for sentence splitting."""
    text_field: str = "text"
    """The field of a JSON Lines record that holds the text."""
    encoding: str = "utf-8"
    """Encoding of the sources."""
    min_words: int = 1
    """Documents with fewer words are dropped."""
    max_words: int = 1_000_000
    """Documents with more words are dropped."""
    min_letter_share: float = 0.0
    """Documents in which a smaller share of the words holds a letter are dropped (0 keeps all;
    0.8 is the published Gopher rule)."""
    min_sentence_words: int = 1
    """Sentences with fewer words are dropped."""
    dedup: Literal["none", "document", "sentence"] = "document"
    """Drop exact repeats: nothing, whole documents, or documents and then single sentences."""
    chunk_mb: int = 16
    """How much input one task reads, in megabytes."""


@dataclass(frozen=True)
class VocabConfig:
    """Which words the softmax can predict. Inputs are spelled, so they need no vocabulary."""

    max_size: int = 800_000
    """The most words to keep, `<S>`, `</S>` and `<UNK>` included."""
    min_count: int = 3
    """Words seen less often in train become `<UNK>` as targets."""


@dataclass(frozen=True)
class ShardsConfig:
    """How the training data lies on disk."""

    block_steps: int = 2560
    """Prediction steps in a block: a multiple of train.window."""
    blocks_per_shard: int = 512
    """Blocks in a shard, about."""
    shuffle: Literal["document", "sentence"] = "document"
    """What is shuffled globally: documents (sentences keep their neighbours) or sentences."""
