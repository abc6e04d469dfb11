"""The middle stages of a build: which documents and sentences stay, and in which order.

`clean_chunk` writes parts that know nothing of each other. Here every part gets its number, its
files their rank, and its documents their side: `train`, or one of the held-out sets. Then exact
copies, near-copies (`clusters.py`), repeated lines or sentences and what train shares with held-out
text lose. All of this uses tables that are partitioned by hash (`tables.py`), so no task sees
more than its share. `keep_part` drops what lost.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elmwright.pipeline.build.stages.hashes import Purpose, mix
from elmwright.pipeline.dedup import keys as dedup
from elmwright.pipeline.dedup import ngrams, tables
from elmwright.pipeline.dedup.clusters import Clusters, Links, band_rows, link_range, resolve
from elmwright.pipeline.storage.files import join

SMALLEST = 64
"""Hashes that are looked at to give a small corpus its held-out documents, too."""


@dataclass(frozen=True)
class Part:
    """A part among all parts of the corpus."""

    number: int
    """Its number: tables name documents by (part, row)."""
    name: str
    """Its files, relative to the work folder, without their endings."""
    split: str
    """`train`, or the held-out set it was given for."""
    first_file: int
    """Rank, among all files of its split, of the first file of its chunk."""
    source: int
    """Which entry of `corpus.sources` it comes from."""
    weight: float
    """How often its documents are taken."""


@dataclass(frozen=True)
class HashSplit:
    """How documents are divided into train and held-out sets by their hash."""

    seed: int
    """The seed of the run."""
    names: tuple[str, ...] = ()
    """The held-out sets."""
    limits: tuple[int, ...] = ()
    """A document is in the first set whose limit is above its hash; in train if none is."""

    def split_numbers(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        """For each key, 0 for train, else one more than the index of its set in `names`."""
        hashes = mix(keys, self.seed, Purpose.HELDOUT)
        place = np.searchsorted(np.array(self.limits, np.uint64), hashes, side="right") + 1
        place[place > len(self.names)] = 0
        return place


@dataclass(frozen=True)
class SmallestHashes:
    """The smallest held-out hashes, sorted."""

    smallest: tuple[int, ...]


@dataclass(frozen=True)
class KeyCount:
    """How many keys were written."""

    keys: int


def find_limits(shares: Sequence[float], smallest: Sequence[int]) -> tuple[int, ...]:
    """The limit of each share. Every set with a share above 0 gets at least one document.

    `smallest` are the smallest hashes in the corpus, sorted. They only matter where the share or
    the corpus is so small that no hash would be below the limit.
    """
    limits: list[int] = []
    total = 0.0
    for share in shares:
        total += share
        limit = min(int(total * (1 << 64)), (1 << 64) - 1)
        before = limits[-1] if limits else 0
        first = next((number for number in smallest if number >= before), None)
        limits.append(max(limit, first + 1) if first is not None and share > 0 else limit)
    return tuple(limits)


def smallest_hashes(work: str, _out: str, names: Sequence[str], seed: int) -> SmallestHashes:
    """The smallest held-out hashes of some parts."""
    smallest = np.zeros(0, np.uint64)
    for name in names:
        index = tables.load_npy(join(work, f"{name}.npy"))
        hashes = mix(doc_keys(index), seed, Purpose.HELDOUT)
        smallest = np.sort(np.concatenate([smallest, hashes]))[:SMALLEST]
    return SmallestHashes(tuple(smallest.tolist()))


def load_index(work: str, part: Part) -> NDArray[np.void]:
    """The index of a part, a row for each document."""
    return tables.load_npy(join(work, f"{part.name}.npy"))


def losers(work: str, part: Part, names: Sequence[str]) -> NDArray[np.void]:
    """The rows of a part that lost, from these tables of losers."""
    return dedup.losers_of(part.number, [join(work, name) for name in names])


def doc_keys(index: NDArray[np.void]) -> NDArray[np.uint64]:
    """[documents, 2] The keys of the documents of a part."""
    return np.stack([index["hi"], index["lo"]], axis=1)


def _side(part: Part, keys: NDArray[np.uint64], hash_split: HashSplit) -> NDArray[np.uint8]:
    if part.split != "train":
        return np.full(len(keys), dedup.GIVEN, np.uint8)
    return (hash_split.split_numbers(keys) > 0).astype(np.uint8)


def times_taken(part: Part, index: NDArray[np.void], seed: int) -> NDArray[np.int64]:
    """How often each document is taken: `weight` times on the average, by its hash."""
    whole = int(part.weight)
    limit = np.uint64(min(int((part.weight - whole) * (1 << 64)), (1 << 64) - 1))
    more = mix(doc_keys(index), seed, Purpose.WEIGHT) < limit
    times: NDArray[np.int64] = whole + more.astype(np.int64)
    return times


def _remaining(
    work: str, part: Part, index: NDArray[np.void], document_losers: Sequence[str], seed: int
) -> NDArray[np.int64]:
    """The rows of documents that have not lost and are taken at least once.

    What is not taken must not win either: of two copies, the one that is taken has to stay.
    """
    is_in: NDArray[np.bool_] = times_taken(part, index, seed) > 0
    if part.split != "train":
        is_in[:] = True
    is_in[losers(work, part, document_losers)["row"]] = False
    return np.flatnonzero(is_in)


def document_keys(work: str, out: str, part: Part, hash_split: HashSplit) -> KeyCount:
    """Write the keys of all documents of a part, sorted."""
    index = load_index(work, part)
    rows = _remaining(work, part, index, [], hash_split.seed)
    return _save_keys(join(work, out), part, index, hash_split, doc_keys(index)[rows], rows, 0)


def _save_keys(
    path: str,
    part: Part,
    index: NDArray[np.void],
    hash_split: HashSplit,
    keys: NDArray[np.uint64],
    documents: NDArray[np.int64],
    numbers: Sequence[int] | int,
) -> KeyCount:
    """Write keys, the row of the document of each, and the number of the line or sentence in it."""
    rows = np.zeros(len(keys), dedup.KEY)
    rows["hi"], rows["lo"] = keys[:, 0], keys[:, 1]
    rows["heldout"] = _side(part, doc_keys(index), hash_split)[documents]
    rows["file"] = index["file"][documents] + part.first_file
    rows["offset"] = index["offset"][documents]
    rows["row"], rows["sentence"] = documents, numbers
    tables.save_rows(path, dedup.sort_table(rows, dedup.ORDER))
    return KeyCount(len(rows))


def heldout_bands(
    work: str,
    out: str,
    parts: Sequence[Part],
    document_losers: Sequence[str],
    hash_split: HashSplit,
) -> KeyCount:
    """Write the band keys of all held-out documents: few, so one task can hold them."""
    bands = [_band_rows(work, part, document_losers, hash_split) for part in parts]
    keys = [np.unique(rows["hi"][rows["heldout"] > dedup.TRAIN]) for rows in bands]
    ngrams.save_set(join(work, out), np.concatenate(keys))
    return KeyCount(sum(map(len, keys)))


def join_sets(work: str, out: str, names: Sequence[str]) -> KeyCount:
    """Write several sets of keys as one."""
    keys = np.concatenate([ngrams.load_set(join(work, name)) for name in names])
    ngrams.save_set(join(work, out), keys)
    return KeyCount(len(keys))


def band_keys(
    work: str,
    out: str,
    part: Part,
    document_losers: Sequence[str],
    hash_split: HashSplit,
    near: str | None,
) -> KeyCount:
    """Write the band keys of the documents of a part that are still in, sorted.

    With `near`, a set of held-out band keys, only rows of train that could be linked to held-out
    text are written: where near-copies within train stay in, the others do not matter.
    """
    rows = _band_rows(work, part, document_losers, hash_split)
    if near is not None:
        known = ngrams.load_set(join(work, near))
        rows = rows[(rows["heldout"] > dedup.TRAIN) | np.isin(rows["hi"], known)]
    tables.save_rows(join(work, out), rows)
    return KeyCount(len(rows))


def _band_rows(
    work: str, part: Part, document_losers: Sequence[str], hash_split: HashSplit
) -> NDArray[np.void]:
    index = load_index(work, part)
    rows = _remaining(work, part, index, document_losers, hash_split.seed)
    index = index[rows]
    return band_rows(
        index["bands"],
        row=rows,
        words=index["words"],
        file=index["file"] + part.first_file,
        offset=index["offset"],
        heldout=_side(part, doc_keys(index), hash_split),
    )


def sentence_keys(
    work: str,
    out: str,
    part: Part,
    document_losers: Sequence[str],
    line_losers: Sequence[str],
    hash_split: HashSplit,
    unit: str,
) -> KeyCount:
    """Write the keys of all sentences (or lines) of a part that are still in, sorted."""
    index = load_index(work, part)
    arrow = join(work, f"{part.name}.arrow")
    _, texts = tables.load_texts(arrow)
    by_line = unit == dedup.LINE
    lines = tables.load_lines(arrow) if by_line or line_losers else []
    lost = lines_to_sentences(losers(work, part, line_losers), lines)
    units: list[str] = []
    numbers: list[int] = []
    counts = np.zeros(len(texts), np.int64)
    for row in _remaining(work, part, index, document_losers, hash_split.seed).tolist():
        row_units = texts[row].split("\n")
        if by_line:
            row_units = _join_lines(row_units, lines[row])
        lost_numbers = lost.get(row, {})
        row_numbers = [number for number in range(len(row_units)) if number not in lost_numbers]
        counts[row] = len(row_numbers)
        units.extend(row_units[number] for number in row_numbers)
        numbers.extend(row_numbers)
    documents = np.repeat(np.arange(len(texts)), counts)
    keys = dedup.keys_of(units)
    return _save_keys(join(work, out), part, index, hash_split, keys, documents, numbers)


def _join_lines(sentences: list[str], counts: Sequence[int]) -> list[str]:
    ends = np.cumsum(counts).tolist()
    return ["\n".join(sentences[end - n : end]) for end, n in zip(ends, counts, strict=True)]


def lines_to_sentences(
    line_losers: NDArray[np.void], lines: Sequence[Sequence[int]]
) -> dict[int, dict[int, str]]:
    """The sentences of lines that lost: row → sentence → rule."""
    lost: dict[int, dict[int, str]] = {}
    ends: dict[int, list[int]] = {}
    for loser in line_losers:
        row, line = int(loser["row"]), int(loser["sentence"])
        if row not in ends:
            ends[row] = np.cumsum(lines[row]).tolist()
        end, rule = ends[row][line], dedup.RULES[int(loser["rule"])]
        sentences = lost.setdefault(row, {})
        sentences.update((number, rule) for number in range(end - lines[row][line], end))
    return lost


def link_keys(
    work: str, out: str, names: Sequence[tuple[int, str]], reducer: int, n_reducers: int
) -> Links:
    """Link the documents that share a band key of one range (`clusters.py`)."""
    paths = [(part, join(work, name)) for part, name in names]
    return link_range(paths, reducer, n_reducers, out=join(work, out))


def resolve_clusters(work: str, out: str, edges: Sequence[str], only_one: bool) -> Clusters:
    """Join the links of all ranges, and decide which document of a cluster stays."""
    paths = [join(work, name) for name in edges]
    return resolve(paths, dedup=only_one, out=join(work, out))


def reduce_keys(
    work: str,
    out: str,
    names: Sequence[tuple[int, str]],
    reducer: int,
    n_reducers: int,
    *,
    unit: str,
    once: bool,
) -> dedup.LoserCount:
    """Decide which rows of one range of keys lose (`keys.py`)."""
    paths = [(part, join(work, name)) for part, name in names]
    return dedup.reduce_keys(paths, reducer, n_reducers, unit=unit, once=once, out=join(work, out))
