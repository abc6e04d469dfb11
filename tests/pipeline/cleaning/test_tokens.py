"""Words as integers: the same words, and what is known of each."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elmwright.pipeline.cleaning import countable, repair, tokens, words
from elmwright.pipeline.cleaning.countable import LETTER, WORD
from elmwright.pipeline.cleaning.tokens import Lexicon, Reader

SENTENCE = st.text(max_size=40).map(
    lambda text: repair.normalise(repair.normalise(text).replace("\n", " "))
)
BATCH = st.lists(st.lists(SENTENCE.filter(bool), max_size=4), max_size=4)


@settings(deadline=None)
@given(BATCH)
def test_a_reader_gives_the_words_of_the_tokeniser_as_text_and_as_numbers(documents):
    reader = Reader(words.chunk_rules("ptb"))
    for _ in range(2):  # met before or not
        texts, read = reader.read(documents)
        assert texts == [reader.text(sentences) for sentences in documents]
        assert texts == ["\n".join(map(words.ptb, sentences)) for sentences in documents]
        for number, text in enumerate(texts):
            ids = read.ids[read.offsets[number] : read.offsets[number + 1]]
            assert [reader.lexicon.number(word) for word in text.split()] == ids.tolist()


def test_a_full_memory_is_emptied_and_changes_nothing(monkeypatch):
    monkeypatch.setattr(tokens, "MOST_CHUNKS", 3)
    monkeypatch.setattr(tokens, "MOST_TYPES", 5)
    reader = Reader(words.chunk_rules("ptb"))
    for n in range(20):
        reader.refresh()
        texts, read = reader.read([[f"It's number {n}, the {n}th."]])
        assert texts == [f"It 's number {n} , the {n}th ."]
        assert read.ids.size == 8
        assert len(read.lexicon) < 30


def test_a_lexicon_knows_what_the_rules_ask():
    lexicon = Lexicon()
    known = ["the", "The", "don't", "42", "½", "...", "€", "#", "مرحبا"]
    numbers = [lexicon.number(word) for word in known]
    assert numbers == list(range(len(known)))
    assert lexicon.facts.chars[numbers].tolist() == list(map(len, known))
    flags = dict(zip(known, lexicon.facts.flags[numbers].tolist(), strict=True))
    assert flags["the"] == LETTER | WORD
    assert flags["The"] == flags["don't"] == flags["مرحبا"] == LETTER | WORD
    assert flags["42"] == flags["½"] == flags["€"] == WORD
    assert flags["..."] == flags["#"] == 0
    assert lexicon.facts.hashes[0] == lexicon.facts.hashes[1] != 0
    assert lexicon.facts.hashes[known.index("...")] == 0


def test_sums_and_choices_of_documents():
    reader = Reader(words.whitespace_chunk)
    _, read = reader.read([["a bb", "ccc"], [], ["dd"], ["a"]])
    chars = reader.lexicon.facts.chars[read.ids]
    assert read.total(chars).tolist() == [6, 0, 2, 1]
    assert read.largest(chars).tolist() == [3, 0, 2, 1]
    assert read.owners.tolist() == [0, 0, 0, 2, 3]
    some = read.take(np.array([0, 3]))
    assert some.sizes.tolist() == [3, 1]
    assert some.ids.tolist() == read.ids[[0, 1, 2, 4]].tolist()


@pytest.mark.parametrize(
    ("chunk", "counts"),
    [
        ("word", (1, 1, 4, 1)),
        ("word,", (2, 1, 4, 1)),
        ("42", (1, 1, 2, 0)),
        ("...", (1, 0, 0, 0)),
        ("well-known", (3, 2, 9, 2)),
        ("2-3", (3, 2, 2, 0)),
        ("__x__", (5, 1, 1, 1)),
        ("“(word.”", (5, 1, 4, 1)),
        ("1914–1918", (1, 1, 9, 0)),
        ("f(x)", (2, 1, 3, 1)),
        ("so,—he", (1, 1, 6, 1)),
        ("so—he", (3, 2, 4, 2)),
        ("don't", (2, 2, 5, 2)),
        ("end.The", (3, 2, 6, 2)),
    ],
)
def test_chunks_count_as_spacy_counts_them(chunk, counts):
    found = words.chunk_rules("ptb")(chunk, False).split(" ")
    flags, rows = map(countable.flags_of, found), map(countable.counted_word, found)
    assert countable.counted(found, list(flags), list(rows)) == list(counts)
    [row] = Reader(words.chunk_rules("ptb")).read([[f"{chunk} x"]], counts=True)[1].counts.tolist()
    assert row == [count + more for count, more in zip(counts, (1, 1, 1, 1), strict=True)]


def test_counts_are_summed_by_document():
    documents = [["Well-known 1914–1918.", "So."], [], ["x"]]
    _, read = Reader(words.chunk_rules("ptb")).read(documents, counts=True)
    assert read.counts.tolist() == [[7, 4, 20, 3], [0, 0, 0, 0], [1, 1, 1, 1]]
    assert read.take([2]).counts.tolist() == [[1, 1, 1, 1]]
