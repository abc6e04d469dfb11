"""MinHash keeps its statistical promises, and its keys never change."""

import tracemalloc

import numpy as np
import pytest

from elmwright.pipeline.cleaning.tokens import Lexicon, Tokens
from elmwright.pipeline.config import MinHash
from elmwright.pipeline.dedup import minhash, ngrams

WORDS = 20_000


@pytest.fixture(scope="module")
def lexicon():
    made = Lexicon()
    for n in range(WORDS):
        made.number(f"w{n}")
    return made


def _tokens(documents, lexicon):
    offsets = np.cumsum([0, *map(len, documents)], dtype=np.int64)
    return Tokens(np.concatenate(documents).astype(np.int32), offsets, lexicon)


def _texts(*texts):
    lexicon = Lexicon()
    return _tokens([np.array([lexicon.number(w) for w in text.split()]) for text in texts], lexicon)


def _pairs_of_sets(rng, pairs, union, similarity):
    """Pairs of sets of words with exactly this Jaccard similarity, one after the other."""
    documents, shared = [], round(union * similarity)
    for _ in range(pairs):
        words = rng.choice(WORDS, union, replace=False)
        middle = (union - shared) // 2
        common, left, right = np.split(words, [shared, shared + middle])
        for own in (left, right):
            documents.append(rng.permutation(np.concatenate([common, own])))
    return documents


@pytest.mark.parametrize("similarity", [0.3, 0.5, 0.8])
def test_the_share_of_equal_rows_is_the_jaccard_similarity(lexicon, similarity):
    pairs, config = 1500, MinHash(ngram=1)
    rng = np.random.default_rng(int(similarity * 10))
    tokens = _tokens(_pairs_of_sets(rng, pairs, 120, similarity), lexicon)
    rows = minhash.signatures(ngrams.words_of(tokens), config)
    equal = (rows[:, ::2] == rows[:, 1::2]).mean(axis=0)
    assert abs(equal.mean() - similarity) < 3 * equal.std() / pairs**0.5
    # Rows that depended on each other would spread more than independent ones.
    assert equal.var() < 1.15 * similarity * (1 - similarity) / len(rows)


@pytest.mark.parametrize("similarity", [0.5, 0.65, 0.75, 0.85])
@pytest.mark.parametrize(("bands", "rows"), [(14, 8), (20, 4)])
def test_documents_are_linked_as_often_as_the_formula_says(lexicon, similarity, bands, rows):
    pairs, config = 1000, MinHash(bands=bands, rows=rows, ngram=1)
    rng = np.random.default_rng(bands)
    keys = minhash.bands(_tokens(_pairs_of_sets(rng, pairs, 100, similarity), lexicon), config)
    linked = (keys[::2] == keys[1::2]).any(axis=1).mean()
    expected = 1 - (1 - similarity**rows) ** bands
    assert abs(linked - expected) < 3.5 * (expected * (1 - expected) / pairs) ** 0.5 + 1e-3


def _shingles(ids):
    return {tuple(ids[i : i + 5]) for i in range(len(ids) - 4)}


def test_near_copies_of_jaccard_090_are_linked(lexicon):
    """The promise: at least 99 % of pairs whose shingles have a Jaccard similarity of 0.9."""
    rng = np.random.default_rng(9)
    documents, similarities = [], []
    while len(similarities) < 1200:
        text = np.minimum(rng.zipf(1.3, int(rng.integers(60, 900))) - 1, WORDS - 1)
        copy = list(text)
        for _ in range(max(1, int(len(text) * rng.uniform(0, 0.012)))):
            place = int(rng.integers(len(copy)))
            edit = rng.integers(3)
            copy[place : place + (edit != 0)] = [] if edit == 2 else [int(rng.integers(WORDS))]
        ours, theirs = _shingles(text.tolist()), _shingles(copy)
        similarity = len(ours & theirs) / len(ours | theirs)
        if similarity >= 0.9:
            similarities.append(similarity)
            documents += [text, np.array(copy)]
    assert np.mean(similarities) < 0.97
    keys = minhash.bands(_tokens(documents, lexicon), MinHash())
    assert (keys[::2] == keys[1::2]).any(axis=1).mean() >= 0.99
    unrelated = (keys[:-2:2] == keys[2::2]).any(axis=1)
    assert not unrelated.any()


def test_capitals_and_punctuation_do_not_matter_and_order_does():
    texts = [
        "The cat sat on the mat , and slept .",
        "the Cat sat on the MAT and -- slept !",
        "slept and mat the on sat cat the",
    ]
    keys = minhash.bands(_texts(*texts), MinHash())
    assert (keys[0] == keys[1]).all()
    assert not (keys[0] == keys[2]).any()


def test_a_short_document_is_one_shingle_and_an_empty_one_matches_nothing():
    texts = ["a b", "A , b", "a b c", "b a", "", ", .", "a b c d e", "a b c d"]
    keys = minhash.bands(_texts(*texts), MinHash(ngram=5))
    assert (keys[0] == keys[1]).all()
    distinct = keys[[0, 2, 3, 6, 7], 0]
    assert len(set(distinct.tolist())) == 5
    assert (keys[[4, 5]] == minhash.NOTHING).all()
    assert (keys[[0, 1, 2, 3, 6, 7]] != minhash.NOTHING).all()
    assert len(set(keys[0].tolist())) == 14


def test_keys_do_not_depend_on_the_batch_or_on_block_sizes(lexicon, monkeypatch):
    rng = np.random.default_rng(3)
    documents = [rng.integers(0, WORDS, size) for size in rng.integers(0, 60, 200)]
    keys = minhash.bands(_tokens(documents, lexicon), MinHash())
    alone = [minhash.bands(_tokens([document], lexicon), MinHash())[0] for document in documents]
    assert np.array_equal(keys, alone)
    monkeypatch.setattr(ngrams, "BLOCK", 7)
    monkeypatch.setattr(minhash, "_GROUP", 9)
    assert np.array_equal(minhash.bands(_tokens(documents, lexicon), MinHash()), keys)


def test_no_documents_have_no_keys():
    assert minhash.bands(
        Tokens(np.zeros(0, np.int32), np.zeros(1, np.int64), Lexicon()), MinHash()
    ).shape == (0, 14)
    assert (minhash.bands(_texts("", ""), MinHash()) == minhash.NOTHING).all()


def test_keys_never_change():
    """These numbers are part of the format: other values would link other documents."""
    keys = minhash.bands(_texts("one two three four five six"), MinHash())
    assert keys[0, [0, 1, 13]].tolist() == [
        18226526180296701452,
        8438990066706133215,
        4993931484241705243,
    ]


def test_memory_is_a_few_bytes_a_word(lexicon):
    words = 1_000_000
    tokens = _tokens([np.arange(words) * 7919 % WORDS], lexicon)
    minhash.bands(tokens, MinHash())
    tracemalloc.start()
    minhash.bands(tokens, MinHash())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 26 * words
