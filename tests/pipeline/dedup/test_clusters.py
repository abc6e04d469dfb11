"""Clusters of near-duplicates keep the same documents for any partition and order."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elmwright.pipeline.dedup import clusters, keys, minhash, tables

BANDS = 3


def _run(folder, documents, parts, n_reducers, *, near, order=1):
    """The rule that drops each document, {index: rule}, and the report.

    A document is (keys, number of words, value of `heldout`).
    """
    numbers = sorted(set(parts))
    members = {n: [d for d, part in enumerate(parts) if part == n] for n in numbers}
    paths = []
    for number, own in members.items():
        table = clusters.band_rows(
            np.array([documents[d][0] for d in own], np.uint64).reshape(-1, BANDS),
            row=np.arange(len(own)),
            words=np.array([documents[d][1] for d in own]),
            file=np.array(own) // 3,
            offset=np.array(own) % 3,
            heldout=np.array([documents[d][2] for d in own]),
        )
        path = str(folder / f"bands-{number}")
        tables.save_rows(path, table)
        paths.append((number, path))
    edges = [str(folder / f"edges-{n}") for n in range(n_reducers)]
    for n, out in enumerate(edges):
        clusters.link_range(paths[::order], n, n_reducers, out=out)
    out = str(folder / "losers")
    report = clusters.resolve(edges[::order], dedup=near, out=out)
    dropped = {
        own[loser["row"]]: keys.RULES[loser["rule"]]
        for number, own in members.items()
        for loser in keys.losers_of(number, [out])
    }
    return dropped, report


def _expected(documents, *, near):
    """What `_run` should return as dropped, computed by comparing all pairs of documents."""
    label = list(range(len(documents)))
    for _ in documents:
        for a, (ours, _, _) in enumerate(documents):
            for b, (theirs, _, _) in enumerate(documents):
                if any(x == y != 0 for x, y in zip(ours, theirs, strict=True)):
                    label[a] = label[b] = min(label[a], label[b])
    dropped = {}
    for name in set(label):
        cluster = [d for d in range(len(documents)) if label[d] == name]
        side = {d: documents[d][2] for d in cluster}
        sides = set(side.values())
        best = min(cluster, key=lambda d: (-documents[d][1], d))
        for d in cluster:
            if side[d] == keys.GIVEN or len(cluster) == 1:
                continue
            if keys.GIVEN in sides:
                dropped[d] = keys.OVERLAP
            elif near and d != best:
                dropped[d] = keys.NEAR
            elif not near and sides == {keys.TRAIN, keys.SPLIT_OFF} and side[d] == keys.SPLIT_OFF:
                dropped[d] = keys.OVERLAP
    return dropped


KEY = st.sampled_from([0, 1, 2**62, 2**63, 2**63 + 1, 2**64 - 1])
DOCUMENT = st.tuples(st.tuples(*[KEY] * BANDS), st.integers(1, 3), st.sampled_from([0, 0, 1, 2]))


@settings(max_examples=60)
@given(
    st.lists(DOCUMENT, min_size=1, max_size=12),
    st.data(),
    st.sampled_from([1, 2, 8]),
    st.booleans(),
    st.sampled_from([1, -1]),
    st.sampled_from([1, 1000]),
)
def test_the_same_documents_are_kept_for_any_partition_and_order(
    tmp_path_factory, documents, data, n_reducers, near, order, merge_edges
):
    parts = [data.draw(st.integers(0, 4)) for _ in documents]
    folder = tmp_path_factory.mktemp("clusters")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clusters, "MERGE_EDGES", merge_edges)
        dropped, report = _run(folder, documents, parts, n_reducers, near=near, order=order)
    assert dropped == _expected(documents, near=near)
    assert sum(report.losers.values()) == len(dropped)


def test_a_chain_is_one_cluster_that_keeps_its_longest(tmp_path):
    chain = [((1, 2, 3), 5, 0), ((4, 2, 5), 9, 0), ((4, 6, 7), 9, 1), ((8, 9, 10), 1, 0)]
    dropped, report = _run(tmp_path, chain, [0, 1, 2, 3], 1, near=True)
    assert dropped == {0: keys.NEAR, 2: keys.NEAR}
    assert report.clusters == {3: 1}
    assert report.edges == 2


def test_equal_keys_of_different_bands_link_nothing(tmp_path):
    documents = [((1, 2, 3), 5, 0), ((2, 3, 1), 5, 0)]
    assert _run(tmp_path, documents, [0, 0], 1, near=True)[0] == {}


def test_documents_without_words_are_not_copies_of_each_other(tmp_path):
    documents = [((minhash.NOTHING,) * BANDS, 0, 0)] * 5
    dropped, report = _run(tmp_path, documents, [0, 1, 0, 1, 0], 2, near=True)
    assert dropped == {}
    assert report.clusters == {}


def test_copies_that_share_all_bands_are_linked_once(tmp_path):
    documents = [((1, 2, 3), 5, 0)] * 100
    dropped, report = _run(tmp_path, documents, [d % 7 for d in range(100)], 1, near=True)
    assert sorted(dropped) == list(range(1, 100))
    assert report.edges == 99
    assert report.clusters == {100: 1}


def test_the_part_comes_from_the_caller_and_not_from_the_file(tmp_path):
    table = np.zeros(2, clusters.BAND)
    table["hi"], table["part"], table["row"], table["words"] = 7, 999, [0, 1], [2, 1]
    tables.save_rows(str(tmp_path / "bands"), table)
    clusters.link_range([(3, str(tmp_path / "bands"))], 0, 1, out=str(tmp_path / "edges"))
    clusters.resolve([str(tmp_path / "edges")], dedup=True, out=str(tmp_path / "out"))
    assert keys.losers_of(3, [str(tmp_path / "out")])["row"].tolist() == [1]


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_chain_of_a_hundred_thousand_is_one_component(shuffled):
    numbers = np.arange(100_000)
    if shuffled:
        numbers = np.random.default_rng(0).permutation(numbers)
    label = clusters.components(numbers[:-1], numbers[1:], numbers.size)
    assert (label == 0).all()


def test_memory_per_link_is_as_documented(tmp_path):
    rng, count = np.random.default_rng(0), 200_000
    paths = []
    for n in range(4):
        edges = np.zeros(count // 4, clusters.EDGE)
        edges["a_row"], edges["b_row"] = rng.integers(0, count, (2, len(edges)))
        edges["a_offset"] = edges["a_row"]
        paths.append(str(tmp_path / f"edges-{n}"))
        tables.save_rows(paths[-1], clusters.stars(edges), "a_part")
    tracemalloc.start()
    report = clusters.resolve(paths, dedup=True, out=str(tmp_path / "out"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    claimed = 150 * report.edges
    assert claimed / 2 < peak < claimed
