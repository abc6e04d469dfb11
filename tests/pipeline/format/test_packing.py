"""The fast way to blocks and counts gives what the plain way gives."""

import tarfile
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmwright.pipeline.format.block import to_members
from elmwright.pipeline.format.packing import pack_words, words_of
from elmwright.pipeline.format.shards import tar_header
from tests.support.corpus.plain_packing import pack

word = st.text(st.sampled_from("abcé漢😀-."), min_size=1, max_size=4)
sentence = st.lists(word, min_size=1, max_size=12)
texts = st.lists(st.lists(sentence, min_size=1, max_size=5), max_size=12)


def written(documents: list[list[list[str]]]) -> list[str]:
    return ["\n".join(" ".join(words) for words in document) for document in documents]


@given(texts, st.integers(2, 40))
def test_blocks_are_those_of_the_plain_way(documents, steps):
    ids = {"a": 3, "b": 4, "é": 5}
    sentences = [(n, words) for n, document in enumerate(documents) for words in document]
    slow = list(pack(sentences, ids, steps))
    found = words_of(written(documents))
    fast = list(pack_words(found, np.arange(len(documents)), ids, steps))
    assert [to_members(block) for block in fast] == [to_members(block) for block in slow]


@given(texts)
def test_counts_are_exact(documents):
    found = words_of(written(documents))
    plain = Counter(word for document in documents for words in document for word in words)
    assert dict(zip(found.types, found.counts.tolist(), strict=True)) == plain
    assert found.sentences.tolist() == [len(document) for document in documents]
    assert found.lengths.tolist() == [len(words) for d in documents for words in d]


@pytest.mark.parametrize("text", ["<S> is a mark", "a </S>", "two  spaces"])
def test_marks_and_empty_words_are_refused(text):
    with pytest.raises(ValueError, match="mark"):
        list(pack_words(words_of([text]), np.arange(1), {}, 10))


@given(st.from_regex(r"[a-z0-9.-]{1,100}", fullmatch=True), st.integers(0, 8**11 - 1))
def test_a_tar_header_is_what_tarfile_writes(name, size):
    expected = tarfile.TarInfo(name)
    expected.size = size
    assert tar_header(name, size) == expected.tobuf(tarfile.USTAR_FORMAT)
