"""N-grams of words: which there are, and which documents share one with a set."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmwright.pipeline.cleaning.tokens import Lexicon, Tokens
from elmwright.pipeline.dedup import ngrams

DOCUMENTS = st.lists(
    st.lists(st.sampled_from(["a", "B", "b", "c", ",", "."]), max_size=12), max_size=6
)


def _tokens(documents):
    lexicon = Lexicon()
    ids = [lexicon.number(word) for words in documents for word in words]
    offsets = np.cumsum([0, *map(len, documents)], dtype=np.int64)
    return Tokens(np.array(ids, np.int32), offsets, lexicon)


def _lexicon(size):
    lexicon = Lexicon()
    for n in range(size):
        lexicon.number(f"w{n}")
    return lexicon


def _ngrams(words, n):
    kept = [word.lower() for word in words if word not in ",."]
    return [tuple(kept[i : i + n]) for i in range(len(kept) - n + 1)]


@pytest.fixture(params=[4, 8192])
def block(request, monkeypatch):
    monkeypatch.setattr(ngrams, "BLOCK", request.param)


@pytest.mark.usefixtures("block")
@given(documents=DOCUMENTS, n=st.integers(1, 5))
def test_equal_ngrams_and_no_others_have_equal_hashes(documents, n):
    hashes, offsets = ngrams.ngram_hashes(_tokens(documents), n)
    expected = [_ngrams(words, n) for words in documents]
    assert np.diff(offsets).tolist() == [len(some) for some in expected]
    flat = [ngram for some in expected for ngram in some]
    assert len(set(zip(flat, hashes.tolist(), strict=True))) == len(set(flat))
    assert len(set(hashes.tolist())) == len(set(flat))


@pytest.mark.usefixtures("block")
@given(documents=DOCUMENTS, other=DOCUMENTS, n=st.integers(1, 4))
def test_the_first_hit_is_where_the_first_known_ngram_begins(documents, other, n):
    known = np.unique(ngrams.ngram_hashes(_tokens(other), n)[0])
    known_ngrams = {ngram for words in other for ngram in _ngrams(words, n)}
    tokens = _tokens(documents)
    expected = []
    for begin, words in zip(tokens.offsets.tolist(), documents, strict=False):
        places = [place for place, word in enumerate(words) if word not in ",."]
        hits = [
            begin + place
            for place, ngram in zip(places, _ngrams(words, n), strict=False)
            if ngram in known_ngrams
        ]
        expected.append(hits[0] if hits else -1)
    assert ngrams.first_hit(tokens, n, known).tolist() == expected


def test_ngrams_of_another_length_never_match():
    tokens = _tokens([["a"] * 20])
    known = np.unique(ngrams.ngram_hashes(tokens, 5)[0])
    assert ngrams.first_hit(tokens, 5, known).tolist() == [0]
    assert ngrams.first_hit(tokens, 4, known).tolist() == [-1]


def test_a_short_document_neither_matches_nor_is_matched():
    short, long = _tokens([list("abcdefgh")]), _tokens([list("abcdefghijklmnop")])
    assert ngrams.ngram_hashes(short, 13)[0].size == 0
    known = np.unique(ngrams.ngram_hashes(long, 13)[0])
    assert ngrams.first_hit(short, 13, known).tolist() == [-1]


def test_a_set_is_sorted_and_each_once(tmp_path):
    path = str(tmp_path / "set")
    ngrams.save_set(path, np.array([5, 2**63, 1, 5], np.uint64))
    assert ngrams.load_set(path).tolist() == [1, 5, 2**63]
    ngrams.save_set(path, np.zeros(0, np.uint64))
    assert ngrams.load_set(path).tolist() == []
    assert ngrams.first_hit(_tokens([["a"]]), 1, ngrams.load_set(path)).tolist() == [-1]


def test_hashes_never_change():
    """These numbers are part of the format of saved sets."""
    hashes, _ = ngrams.ngram_hashes(_tokens([["the", "Cat", ",", "sat"]]), 2)
    assert hashes.tolist() == [3026872150306851529, 11955269418021940721]


def test_planted_ngrams_are_found_among_many():
    rng, lexicon = np.random.default_rng(0), _lexicon(5000)
    secret = rng.integers(0, 5000, 200_000).astype(np.int32)
    known = np.unique(ngrams.ngram_hashes(Tokens(secret, np.array([0, 200_000]), lexicon), 13)[0])
    ids = rng.integers(0, 5000, 100_000).astype(np.int32)
    for document in range(0, 1000, 10):
        place = document * 100 + 40
        ids[place : place + 13] = secret[place : place + 13]
    hits = ngrams.first_hit(Tokens(ids, np.arange(0, 100_001, 100), lexicon), 13, known)
    planted = np.arange(0, 1000, 10)
    assert (hits[planted] == planted * 100 + 40).all()
    assert (np.delete(hits, planted) == -1).all()


def test_memory_is_a_few_bytes_a_word():
    words, lexicon = 1_000_000, _lexicon(1000)
    ids = np.arange(words, dtype=np.int32) % 1000
    tokens = Tokens(ids, np.array([0, words]), lexicon)
    known = np.arange(1000, dtype=np.uint64)
    ngrams.first_hit(tokens, 13, known)
    tracemalloc.start()
    ngrams.first_hit(tokens, 13, known)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 26 * words
