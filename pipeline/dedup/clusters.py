"""Finds clusters of near-duplicates by their band keys, and decides which documents are kept.

Each part writes a row for every document and band, sorted by band key. A reducer owns a range of
keys and links the documents with equal keys of one band (`link_range`). A final task joins the
links of all reducers (`resolve`). A cluster is a connected component.

Links form stars: the best document found so far in a cluster is linked to each of the others. A
document that is not the best of its neighbours can never be the best of the cluster, so a link has
the size and place of its best end only, and takes 34 bytes. Linked stars can be merged into one
star, so `resolve` merges links as it reads them, and holds one for each document with a near-copy.

The best document has the most words and, among equals, comes first in the input (file, offset). The
way files are cut into parts and keys into ranges makes no difference. A million links take about 1
CPU second.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmwright.pipeline.dedup import keys as exact
from elmwright.pipeline.dedup import tables as disk
from elmwright.pipeline.dedup.minhash import NOTHING
from elmwright.pipeline.dedup.tables import Table

BAND = np.dtype(
    [
        ("hi", "<u8"),
        ("band", "u1"),
        ("part", "<u4"),
        ("row", "<u4"),
        ("words", "<u4"),
        ("file", "<u4"),
        ("offset", "<u8"),
        ("heldout", "u1"),
    ]
)
"""A document's key in one band, its part and row, its size, its place and its side."""

EDGE = np.dtype(
    [
        ("a_part", "<u4"),
        ("a_row", "<u4"),
        ("a_words", "<u4"),
        ("a_file", "<u4"),
        ("a_offset", "<u8"),
        ("a_heldout", "u1"),
        ("b_part", "<u4"),
        ("b_row", "<u4"),
        ("b_heldout", "u1"),
    ]
)
"""A link from the best document of a group (a) to another document of the group (b)."""

MERGE_EDGES = 4_000_000
"""Links read before they are merged: 0.6 GB at 150 bytes each, which a test measures."""


@dataclass(frozen=True)
class Links:
    """The number of rows read from one range of band keys, and of links between them."""

    rows: int
    edges: int


@dataclass(frozen=True)
class Clusters:
    """The clusters of near-duplicates in a corpus."""

    edges: int
    """Links of all ranges."""
    clusters: Mapping[int, int]
    """Size of a cluster in documents → number of clusters of that size."""
    losers: Mapping[str, int]
    """Rule → number of documents that it drops."""


NO_CLUSTERS = Clusters(0, {}, {})


def band_rows(
    keys: NDArray[np.uint64],
    *,
    row: NDArray[Any],
    words: NDArray[Any],
    file: NDArray[Any],
    offset: NDArray[Any],
    heldout: NDArray[Any],
) -> Table:
    """The rows to save for band keys of [documents, bands], sorted by key, without their part."""
    documents, bands = keys.shape
    table = np.zeros((documents, bands), BAND)
    table["hi"], table["band"] = keys, np.arange(bands)
    columns = {"row": row, "words": words, "file": file, "offset": offset, "heldout": heldout}
    for name, column in columns.items():
        table[name] = np.asarray(column)[:, None]
    flat = table.reshape(-1)
    return flat[np.argsort(flat["hi"], kind="stable")]


def link_range(
    tables: Sequence[tuple[int, str]], reducer: int, n_reducers: int, *, out: str
) -> Links:
    """Link the documents that share a band key of one range, and write the links to `out`.

    `tables` lists (part, path of its band table). The rows' own column `part` is not read.
    """
    begin, end = disk.hash_range(reducer, n_reducers)
    slices = [disk.load_rows(path, BAND, "hi", begin, end) for _, path in tables]
    rows = sum(map(len, slices))
    table, part_of = exact.repeated_rows(
        [np.zeros(0, BAND), *slices], [0, *(part for part, _ in tables)]
    )
    table["part"] = part_of
    edges = stars(_edges(table[table["hi"] != NOTHING]))
    disk.save_rows(out, edges, "a_part")
    return Links(rows, len(edges))


def _edges(table: Table) -> Table:
    """Links from the best document of every group of equal keys to each of the others."""
    order = np.lexsort(
        (table["offset"], table["file"], ~table["words"], table["band"], table["hi"])
    )
    table = table[order]
    same = np.zeros(len(table), bool)
    same[1:] = (table["hi"][1:] == table["hi"][:-1]) & (table["band"][1:] == table["band"][:-1])
    group = np.cumsum(~same) - 1
    best, other = table[np.flatnonzero(~same)[group[same]]], table[same]
    edges = np.zeros(len(other), EDGE)
    for name in ("part", "row", "words", "file", "offset", "heldout"):
        edges[f"a_{name}"] = best[name]
    for name in ("part", "row", "heldout"):
        edges[f"b_{name}"] = other[name]
    return edges


def stars(edges: Table) -> Table:
    """Links that form the same clusters, from the best document of each to every other one of it,
    sorted by both ends."""
    ids, ends = np.unique(np.concatenate([_id(edges, "a"), _id(edges, "b")]), return_inverse=True)
    a, b = ends[: len(edges)], ends[len(edges) :]
    heldout = np.zeros(ids.size, np.uint8)
    heldout[a], heldout[b] = edges["a_heldout"], edges["b_heldout"]
    label = components(a, b, ids.size)
    best = _best(edges, a, label)[label]
    center = a[best]
    order = np.lexsort((ids, ids[center]))
    order = order[center[order] != order]
    links: Table = edges[best[order]]
    links["b_part"] = ids[order] >> np.uint64(32)
    links["b_row"] = ids[order] & np.uint64(0xFFFFFFFF)
    links["b_heldout"] = heldout[order]
    return links


def _id(edges: Table, end: str) -> NDArray[np.uint64]:
    """[edges] The part and row of the documents at one end, "a" or "b", as one number."""
    part, row = (edges[f"{end}_{name}"].astype(np.uint64) for name in ("part", "row"))
    joined: NDArray[np.uint64] = part << np.uint64(32) | row
    return joined


def _best(edges: Table, a: NDArray[np.int64], label: NDArray[np.int64]) -> NDArray[np.int64]:
    """[documents] At the label of a component, the index of a link from the component's best
    document."""
    link = np.full(label.size, -1, np.int64)
    link[a] = np.arange(len(edges))
    links = link[link >= 0]
    words, file, offset = (edges[f"a_{name}"][links] for name in ("words", "file", "offset"))
    order = np.lexsort((offset, file, ~words, label[a[links]]))
    links = links[order]
    labels, begins = np.unique(label[a[links]], return_index=True)
    link[labels] = links[begins]
    return link


def components(a: NDArray[np.int64], b: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """[size] For each node 0 … size - 1 of the graph with edges a–b, the smallest node of its
    connected component."""
    label = np.arange(size)
    while True:
        a, b = label[a], label[b]
        differ = a != b
        a, b = a[differ], b[differ]
        if not a.size:
            return label
        np.minimum.at(label, np.maximum(a, b), np.minimum(a, b))
        while not np.array_equal(shortened := label[label], label):
            label = shortened


def resolve(edges: Sequence[str], *, dedup: bool, out: str) -> Clusters:
    """The clusters that the links of all reducers form; writes the losers to `out`.

    In a cluster with documents of held-out sets given as files, all others are dropped (`OVERLAP`).
    With `dedup`, any other cluster keeps only its best document (`NEAR`). Without it, documents
    held out by their hash are dropped from clusters with training documents (`OVERLAP`).
    """
    count, tables = 0, [np.zeros(0, EDGE)]
    for path in edges:
        tables.append(disk.load_rows(path, EDGE))
        count += len(tables[-1])
        unmerged = sum(map(len, tables[1:]))
        if unmerged >= max(MERGE_EDGES, len(tables[0])):
            tables = [_merge(tables)]
    losers, sizes = _decide(_merge(tables), dedup=dedup)
    exact.save_losers(out, losers)
    numbers, counts = np.unique(sizes, return_counts=True)
    rules = np.bincount(losers["rule"], minlength=len(exact.RULES)).tolist()
    return Clusters(
        edges=count,
        clusters=dict(zip(numbers.tolist(), counts.tolist(), strict=True)),
        losers={rule: n for rule, n in zip(exact.RULES, rules, strict=True) if n},
    )


def _merge(tables: list[Table]) -> Table:
    """The stars of the links in all tables. Empties `tables` first, to free memory."""
    joined = np.concatenate(tables)
    tables.clear()
    return stars(joined)


def _decide(links: Table, *, dedup: bool) -> tuple[Table, NDArray[np.int64]]:
    """The losers among the documents linked by `stars`, and the sizes of the clusters."""
    center = _id(links, "a")
    starts = np.flatnonzero(np.diff(center, prepend=~center[:1]))
    sizes = np.diff(starts, append=len(links))
    rows = np.zeros(len(links) + len(starts), exact.LOSER)
    rows["part"] = np.concatenate([links["a_part"][starts], links["b_part"]])
    rows["row"] = np.concatenate([links["a_row"][starts], links["b_row"]])
    side = np.concatenate([links["a_heldout"][starts], links["b_heldout"]])
    cluster = np.concatenate([np.arange(len(starts)), np.repeat(np.arange(len(starts)), sizes)])
    sides = np.zeros(len(starts), np.uint8)
    np.bitwise_or.at(sides, cluster, np.uint8(1) << side)
    rule = np.full(len(rows), exact.KEPT, np.uint8)
    given = (sides[cluster] & (1 << exact.GIVEN)) != 0
    lost = exact.overlaps(side, sides[cluster])
    if dedup:
        rule[len(starts) :] = exact.RULES.index(exact.NEAR)
        rule[given] = exact.KEPT
        lost &= given
    rule[lost] = exact.RULES.index(exact.OVERLAP)
    rows["rule"] = rule
    return rows[rule != exact.KEPT], sizes + 1
