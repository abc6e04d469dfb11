"""Exact duplicates and held-out overlap, decided by 128-bit keys on disk.

Every part of the corpus writes the keys of its documents (later of its sentences) sorted, as a
plain numpy table. A reducer owns a range of keys: it takes its slice of each part's table by binary
search in the memory-mapped file, and writes which rows lose. So no process holds all keys, and the
parts are read again only once, to drop the losers.

Which copy wins is decided by its place (file, offset, sentence), never by which task came first or
how files were cut. 128 bits: a false match among 10^9 sentences has a chance of 10^-21.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from elmwright.pipeline.storage import atomic_file

Table = NDArray[np.void]

KEY = np.dtype(
    [
        ("hi", "<u8"),
        ("lo", "<u8"),
        ("heldout", "u1"),
        ("file", "<u4"),
        ("offset", "<u8"),
        ("sentence", "<u4"),
        ("row", "<u4"),
    ]
)
"""A document's or sentence's key, its side, its place, and its row in the part's table."""

ORDER = ("hi", "lo", "heldout", "file", "offset", "sentence")

LOSER = np.dtype([("part", "<u4"), ("row", "<u4"), ("sentence", "<u4"), ("rule", "u1")])
"""What to drop: a row of a part (a document), or one of its sentences, and by which rule."""

DOCUMENT, SENTENCE, OVERLAP = "dedup_document", "dedup_sentence", "heldout_overlap"
RULES = (DOCUMENT, SENTENCE, OVERLAP)
"""The rules of this file; a loser's `rule` is an index into it."""

KEYS_PER_REDUCER = 4_000_000
"""Bounds the memory of a reducer: a key is 37 bytes, and sorting holds a few copies."""


def keys_of(texts: Iterable[str]) -> NDArray[np.uint64]:
    """[texts, 2] 128-bit xxh3 keys, high and low half."""
    digests = b"".join([xxhash.xxh3_128_digest(text.encode()) for text in texts])
    return np.frombuffer(digests, ">u8").astype(np.uint64).reshape(-1, 2)


def save_table(path: Path, table: Table) -> None:
    """Write a table as .npy, atomically."""
    with atomic_file(path) as file:
        np.lib.format.write_array(file, table, version=(1, 0), allow_pickle=False)


def sort_table(table: Table, columns: Sequence[str]) -> Table:
    """The rows in the order of some columns, the first weighing most."""
    order = np.lexsort([table[column] for column in reversed(columns)])
    return table[order]


def reducers(keys: int) -> int:
    """How many reducers share this many keys."""
    return max(1, -(-keys // KEYS_PER_REDUCER))


def _slice(path: Path, reducer: int, n_reducers: int) -> Table:
    """A reducer's rows of a sorted table, without reading the others."""
    table: Table = np.load(path, mmap_mode="r", allow_pickle=False)
    step = -(-(1 << 64) // n_reducers)

    def first(edge: int) -> int:
        return bisect_left(range(len(table)), edge, key=lambda row: int(table[row]["hi"]))

    return np.array(table[first(reducer * step) : first((reducer + 1) * step)])


def reduce_keys(
    tables: Sequence[tuple[int, str, bool]],
    reducer: int,
    n_reducers: int,
    *,
    unit: str,
    once: bool,
    given: bool,
    out: str,
) -> dict[str, Any]:
    """Decide which documents or sentences of one key range are dropped, and write them to `out`.

    `tables` lists (part, its key table, whether it is a held-out set given as files). Copies lose
    where `once` is set; what train and held-out share loses on one side: on train's, if the
    held-out sets were given, else on the held-out's.
    """
    slices, parts = [], []
    for part, path, _ in tables:
        rows = _slice(Path(path), reducer, n_reducers)
        slices.append(rows)
        parts.append(np.full(len(rows), part, np.uint32))
    table = np.concatenate(slices) if slices else np.zeros(0, KEY)
    part_of = np.concatenate(parts) if parts else np.zeros(0, np.uint32)
    order = np.lexsort([table[column] for column in reversed(ORDER)])
    table, part_of = table[order], part_of[order]
    is_given = np.isin(part_of, [part for part, _, fixed in tables if fixed])

    rule = np.full(len(table), 255, np.uint8)
    if len(table):
        same = np.zeros(len(table), bool)
        same[1:] = (table["hi"][1:] == table["hi"][:-1]) & (table["lo"][1:] == table["lo"][:-1])
        group = np.cumsum(~same) - 1
        side = table["heldout"].astype(bool)
        if once:
            copy = same.copy()
            copy[1:] &= side[1:] == side[:-1]
            rule[copy & ~is_given] = RULES.index(unit)
        has_train, has_heldout = (np.bincount(group, weights=s) > 0 for s in (~side, side))
        both = (has_train & has_heldout)[group]
        rule[both & (~side if given else side)] = RULES.index(OVERLAP)

    lost = rule != 255
    losers = np.zeros(int(lost.sum()), LOSER)
    losers["part"], losers["rule"] = part_of[lost], rule[lost]
    losers["row"], losers["sentence"] = table["row"][lost], table["sentence"][lost]
    save_table(Path(out), sort_table(losers, ("part", "row", "sentence")))
    return {"losers": len(losers)}


def losers_of(part: int, paths: Sequence[str]) -> Table:
    """All rows of one part that lose, from the files of all reducers, by row and sentence."""
    found = []
    for path in paths:
        table: Table = np.load(path, mmap_mode="r", allow_pickle=False)
        rows = range(len(table))
        begin, end = (
            bisect_left(rows, edge, key=lambda row: int(table[row]["part"]))
            for edge in (part, part + 1)
        )
        found.append(np.array(table[begin:end]))
    joined = np.concatenate(found) if found else np.zeros(0, LOSER)
    return sort_table(joined, ("row", "sentence"))
