"""The manifest: what a finished corpus consists of, written last, so its presence means complete.

`MANIFEST.json` names every shard with its digest and counts, the vocabulary, what cleaning dropped
and by which rule, the inputs and the settings. Paths are relative to the corpus folder, also those
of inputs in the same project, so a corpus or the whole project can be moved. Other inputs have
absolute paths or URLs. Its `fingerprint` covers the format and what the trainer sees (shards,
vocabulary, block length, split names), and nothing of the machine or the time: the same text and
settings give the same fingerprint everywhere.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elmwright.pipeline.config import MAX_BLOCK_STEPS
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.records import from_data, to_data
from elmwright.pipeline.storage.disk import sha256_bytes
from elmwright.pipeline.storage.files import at, join
from elmwright.pipeline.storage.untrusted import is_digest, is_int, read_small

FORMAT = 1
NAME = "MANIFEST.json"
MANIFEST_BYTES = 1 << 30
"""Size limit of a manifest: enough for a corpus made from several million files."""
LARGEST_COUNT = 1 << 53
"""No count in a manifest may be larger."""
SHARDS = "shards"
"""The folder of the shards inside the corpus folder."""


@dataclass(frozen=True)
class Shard:
    """One tar of blocks and its index."""

    name: str
    """Such as `train-00003`: the files are `shards/train-00003.tar` and `….index.json`."""
    sha256: str
    """Of the tar."""
    bytes: int
    """Size of the tar."""
    index_sha256: str
    """Of the index."""
    blocks: int
    """Blocks in it."""
    documents: int
    """Documents in it (sentences, where sentences were shuffled)."""
    sentences: int
    """Sentences in it; each piece of a cut sentence counts as one."""
    words: int
    """Words in it, without `<S>` and `</S>`."""
    unknown: int
    """How many of those words are not in the vocabulary (`<UNK>`)."""
    steps: int
    """Real prediction steps in each direction: words + sentences."""
    padding: int
    """Steps of weight 0 that fill up blocks."""
    first_document: int = 0
    """Documents of the split before this shard: added to a block's document numbers, it gives
    numbers that are unique in the split."""

    @property
    def tar(self) -> str:
        """The tar's path inside the corpus folder."""
        return f"{SHARDS}/{self.name}.tar"

    @property
    def index(self) -> str:
        """The index's path inside the corpus folder."""
        return f"{SHARDS}/{self.name}.index.json"


@dataclass(frozen=True)
class Split:
    """A named part of the corpus: `train`, or one of the held-out sets."""

    name: str
    """The name, which begins the names of its shards."""
    shards: tuple[Shard, ...]
    """Its shards, in order: block numbers of the split run through them."""

    @property
    def blocks(self) -> int:
        return sum(shard.blocks for shard in self.shards)

    @property
    def documents(self) -> int:
        return sum(shard.documents for shard in self.shards)

    @property
    def sentences(self) -> int:
        return sum(shard.sentences for shard in self.shards)

    @property
    def words(self) -> int:
        """Words in all shards, without the marks."""
        return sum(shard.words for shard in self.shards)

    @property
    def steps(self) -> int:
        """Real prediction steps in each direction: words + sentences."""
        return sum(shard.steps for shard in self.shards)

    @property
    def padding(self) -> int:
        """Steps of weight 0."""
        return sum(shard.padding for shard in self.shards)

    @property
    def unk_share(self) -> float:
        """Share of the targets (words and one mark per sentence) that are `<UNK>`."""
        return sum(shard.unknown for shard in self.shards) / max(1, self.steps)


@dataclass(frozen=True)
class Vocab:
    """The vocabulary file and its digest."""

    file: str
    """Path inside the corpus folder."""
    sha256: str
    """Of the file."""
    size: int
    """Words in it, marks included."""
    counts: str
    """Path of the exact train counts by id (int64 .npy)."""
    counts_sha256: str
    """Of that file."""


@dataclass(frozen=True)
class FunnelStep:
    """What one rule dropped; the first step is what was read, the last is what was kept."""

    rule: str
    """The rule's name."""
    documents: int = 0
    """Documents it dropped whole."""
    sentences: int = 0
    """Sentences it dropped, in those documents or alone."""
    words: int = 0
    """Words it dropped, in those documents and sentences."""


@dataclass(frozen=True)
class Input:
    """One file the corpus was built from."""

    path: str
    """A URL, an absolute path, or a path relative to the corpus folder."""
    bytes: int
    """Its size."""
    mtime_ns: int
    """When it was last modified, to recognise an unchanged file without reading it."""
    sha256: str
    """Its digest; empty for objects in a store, which are not read twice."""


@dataclass(frozen=True)
class Manifest:
    """A finished corpus."""

    created_by: str
    """The program and version that built it."""
    key: str
    """Digest of the settings that determine the result (`up_to_date.corpus_key`)."""
    block_steps: int
    """Prediction steps in every block."""
    splits: Mapping[str, Split]
    """`train` first, then the held-out sets by name."""
    vocab: Vocab
    """The vocabulary."""
    funnel: tuple[FunnelStep, ...]
    """From what was read to what was kept of `corpus.sources`, rule by rule; the steps between the
    first and the last add up to their difference. Held-out sets from files of their own are never
    filtered and do not appear here."""
    inputs: tuple[Input, ...]
    """The files it was built from: sources and held-out sets, then those of
    `corpus.decontaminate`, then a vocabulary that was given."""
    long_words: float
    """Share of the train words that have more than 48 UTF-8 bytes: a model with max_chars = 50
    (two of them marks) reads only their beginning."""
    unigram_perplexity: Mapping[str, float]
    """Held-out perplexity of the train unigram model, by held-out set: what a model must beat."""
    config: Mapping[str, Any]
    """The `corpus`, `vocab` and `shards` settings that determine the result, and the seed."""
    format: int = FORMAT
    """Version of this layout."""
    rules: int = 1
    """Version of the rules that found its sentences and words (`cleaning/words.py`). Manifests of
    version 1 do not say it."""
    extra_files: Mapping[str, str] = field(default_factory=dict)
    """Other files that belong to the corpus (a sentencepiece model) and their sha256."""

    @property
    def fingerprint(self) -> str:
        """sha256 over all that defines the data, and nothing of the machine or the time."""
        return sha256_bytes(
            canonical(
                {
                    "format": self.format,
                    "block_steps": self.block_steps,
                    "vocab": self.vocab.sha256,
                    "splits": {n: [s.sha256 for s in sp.shards] for n, sp in self.splits.items()},
                }
            )
        )

    @property
    def unk_share(self) -> dict[str, float]:
        """Share of `<UNK>` among the targets of each split."""
        return {name: split.unk_share for name, split in self.splits.items()}

    def to_json(self) -> bytes:
        """The file's content: canonical, so equal manifests are equal bytes."""
        content = to_data(self)
        for split in content["splits"].values():
            del split["name"]
        content["fingerprint"] = self.fingerprint
        content["unk_share"] = self.unk_share
        return json.dumps(content, sort_keys=True, indent=1, ensure_ascii=False).encode() + b"\n"

    def save(self, folder: str | Path) -> None:
        """Write the manifest, atomically: then the corpus is complete."""
        at(join(folder, NAME)).write_bytes(self.to_json())

    @staticmethod
    def load(folder: str | Path) -> "Manifest":
        """Read the manifest of a corpus folder, not the shards (see `verify_corpus.py`)."""
        path = join(folder, NAME)
        try:
            if not at(path).exists():
                raise FileNotFoundError
            content = json.loads(read_small(path, MANIFEST_BYTES))
        except FileNotFoundError:
            raise UserError(
                "corpus-missing",
                f"{folder} holds no finished corpus ({NAME} is missing); build it with "
                "`elmwright corpus`",
            ) from None
        except (ValueError, RecursionError) as error:
            raise UserError(
                "file-damaged", f"{path} is damaged ({error}); build the corpus again"
            ) from error
        header = content if isinstance(content, dict) else {}
        layout, writer = header.get("format"), header.get("created_by", "unknown")
        if layout != FORMAT:
            raise UserError(
                "format",
                f"{path} has format {layout!r:.50}, and this version of elmwright reads format "
                f"{FORMAT}; build the corpus again or use the version that wrote it "
                f"({writer!s:.50})",
            )
        try:
            splits = content["splits"]
            names = sorted(splits, key=lambda name: (name != "train", name))
            content["splits"] = {name: {**splits[name], "name": name} for name in names}
            # Where a held-out set has no words, its perplexity is not finite.
            manifest = from_data(Manifest, content, ignore_unknown=True, finite=False)
            problem = _problem(manifest)
            is_changed = not problem and manifest.fingerprint != content["fingerprint"]
        except (KeyError, TypeError, ValueError) as error:
            problem = f"{error!r:.200}"
        if problem:
            raise UserError(
                "file-damaged", f"{path} is damaged ({problem}); build the corpus again"
            )
        if is_changed:
            raise UserError(
                "file-damaged", f"{path} was changed after it was written; build the corpus again"
            )
        return manifest

    def files(self) -> Iterator[tuple[str, str]]:
        """The files that training and evaluation read (path inside the folder, sha256); report,
        statistics and lists are not among them."""
        yield self.vocab.file, self.vocab.sha256
        yield self.vocab.counts, self.vocab.counts_sha256
        yield from self.extra_files.items()
        for split in self.splits.values():
            for shard in split.shards:
                yield shard.tar, shard.sha256
                yield shard.index, shard.index_sha256


def _problem(manifest: Manifest) -> str:
    """The first value of a manifest that is out of range; empty if there is none.

    Names become paths and counts become loops and arrays, so both are checked here, once.
    """
    if not is_int(manifest.block_steps, 2, MAX_BLOCK_STEPS):
        return f"block_steps is {manifest.block_steps!r:.50}"
    if not is_int(manifest.rules, 1, LARGEST_COUNT):
        return f"rules is {manifest.rules!r:.50}"
    if "train" not in manifest.splits:
        return "there is no split train"
    vocab = manifest.vocab
    if not is_int(vocab.size, 0, LARGEST_COUNT):
        return f"the vocabulary's size is {vocab.size!r:.50}"
    for name, digest in (
        (vocab.file, vocab.sha256),
        (vocab.counts, vocab.counts_sha256),
        *manifest.extra_files.items(),
    ):
        if not _is_inside(name) or not is_digest(digest):
            return f"{name!r:.100} with the digest {digest!r:.70}"
    for split in manifest.splits.values():
        for shard in split.shards:
            if not _is_inside(shard.name) or not _is_inside(shard.tar) or "/" in shard.name:
                return f"a shard is called {shard.name!r:.100}"
            if not (is_digest(shard.sha256) and is_digest(shard.index_sha256)):
                return f"digests of shard {shard.name:.100}"
            counts = {name: count for name, count in vars(shard).items() if type(count) is int}
            if not all(is_int(count, 0, LARGEST_COUNT) for count in counts.values()):
                return f"counts of shard {shard.name:.100}: {counts!r:.200}"
    return ""


def _is_inside(name: str) -> bool:
    """Whether this names a file of the corpus folder."""
    if not name.isprintable() or not 0 < len(name) < 256:
        return False
    return not name.startswith(("/", "~")) and not {"", ".", ".."} & set(name.split("/"))


def canonical(value: object) -> bytes:
    """JSON with sorted keys and no spaces: equal values are equal bytes, so they can be hashed."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def finished_corpus(folder: str) -> Manifest | None:
    """The manifest of a corpus folder; None if there is none or it cannot be read."""
    try:
        return Manifest.load(folder)
    except UserError:
        return None
