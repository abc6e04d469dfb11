"""The numbers behind the report: the same in any order of tasks, and whole after a round trip."""

import json
import random
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from elmwright.pipeline.records import from_data
from elmwright.pipeline.report.statistics import (
    EXAMPLE_CHARS,
    EXAMPLES,
    Example,
    Gathered,
    SourceCount,
    StageTime,
    Statistics,
    coverage_points,
    document_histogram,
    examples_of,
    gather,
    merge_examples,
    sentence_histogram,
    to_json,
    zipf_points,
)
from tests.support.corpus.read_statistics import read_statistics

NUMBER = st.integers(0, 2**63)
SHARE = st.floats(0, 1)
TEXT = st.text(max_size=20)
BY_NAME = st.dictionaries(TEXT, NUMBER, max_size=4)
BY_NUMBER = st.dictionaries(NUMBER, NUMBER, max_size=4)
EXAMPLE = st.builds(Example, TEXT, NUMBER, TEXT, TEXT)
STATISTICS = st.builds(
    Statistics,
    sources=st.lists(st.builds(SourceCount, TEXT, TEXT, SHARE, *[NUMBER] * 7), max_size=3).map(
        tuple
    ),
    examples=st.dictionaries(TEXT, st.lists(EXAMPLE, max_size=3).map(tuple), max_size=3),
    quarantine=BY_NAME,
    languages=BY_NAME,
    document_words=BY_NUMBER,
    sentence_words=BY_NUMBER,
    clusters=BY_NUMBER,
    duplicate_pairs=NUMBER,
    zipf=st.lists(st.tuples(NUMBER, NUMBER), max_size=3).map(tuple),
    coverage=st.lists(st.tuples(NUMBER, SHARE), max_size=3).map(tuple),
    truncated=st.dictionaries(NUMBER, SHARE, max_size=3),
    repaired=BY_NAME,
    stages=st.lists(
        st.builds(StageTime, TEXT, NUMBER, NUMBER, SHARE, SHARE, SHARE), max_size=2
    ).map(tuple),
)


@given(STATISTICS)
def test_statistics_are_equal_after_writing_and_reading(statistics):
    content = to_json(statistics)
    assert read_statistics(content) == statistics
    assert to_json(read_statistics(content)) == content


def test_half_a_surrogate_pair_is_written_and_read():
    statistics = read_statistics(to_json(_empty(examples={"rule": (Example("a", 0, "x\ud800y"),)})))
    assert statistics.examples["rule"][0].text == "x\ud800y"


@dataclass(frozen=True)
class Part:
    examples: Gathered


@given(st.lists(st.integers(0, 30), max_size=40), st.randoms())
def test_the_same_examples_win_whatever_the_order_and_the_tasks(keys, shuffler: random.Random):
    rows = [(key, Example(f"file {n}", n, f"text {key}")) for n, key in enumerate(keys)]
    alone = {}
    for key, example in rows:
        gather(alone, "rule", key, example)
    assert [row[0] for row in alone.get("rule", ())] == sorted(set(keys))[:EXAMPLES]

    shuffler.shuffle(rows)
    parts = [{}, {}, {}]
    for key, example in rows:
        gather(parts[shuffler.randrange(3)], "rule", key, example)
    parts = [from_data(Part, json.loads(json.dumps({"examples": part}))).examples for part in parts]
    pairwise = merge_examples(merge_examples(*parts[:2]), parts[2])
    assert pairwise == merge_examples(*reversed(parts)) == alone
    assert merge_examples(alone, alone) == alone


def test_gathered_examples_are_cut_and_lose_their_hashes():
    gathered = {}
    gather(gathered, "c4", 7, Example("a.txt", 3, "x" * 1000, "curly bracket"))
    (example,) = examples_of(gathered)["c4"]
    assert example == Example("a.txt", 3, "x" * EXAMPLE_CHARS, "curly bracket")


def test_zipf_ranks_grow_by_a_tenth_and_end_at_the_last_word():
    counts = 10**9 // np.arange(1, 1_000_001)
    points = zipf_points(counts)
    ranks = [rank for rank, _ in points]
    assert ranks[:12] == list(range(1, 13))
    assert ranks[-1] == 1_000_000
    assert len(points) < 150
    assert all(count == 10**9 // rank for rank, count in points)
    assert all(b <= a * 1.1 + 1 for a, b in pairwise(ranks))


def test_coverage_rises_to_one():
    assert coverage_points(np.array([5, 3, 2])) == ((1, 0.5), (2, 0.8), (3, 1.0))


def test_no_words_make_no_points():
    none = np.array([], np.int64)
    assert zipf_points(none) == coverage_points(none) == ()
    assert document_histogram(none) == sentence_histogram(none) == {}


@given(st.lists(st.integers(1, 2**62), max_size=30))
def test_documents_fall_into_the_bin_of_their_power_of_two(words):
    expected: dict[int, int] = {}
    for size in words:
        power = size.bit_length() - 1
        expected[power] = expected.get(power, 0) + 1
    assert document_histogram(np.array(words, np.int64)) == expected


def test_long_sentences_share_the_last_bin():
    words = np.array([1, 1, 99, 100, 101, 5000])
    assert sentence_histogram(words) == {1: 2, 99: 1, 100: 3}


def _empty(**changes) -> Statistics:
    values = {
        "sources": (),
        "examples": {},
        "quarantine": {},
        "languages": {},
        "document_words": {},
        "sentence_words": {},
        "clusters": {},
        "duplicate_pairs": 0,
        "zipf": (),
        "coverage": (),
        "truncated": {},
        "repaired": {},
        "stages": (),
    }
    return Statistics(**{**values, **changes})
