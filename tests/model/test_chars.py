"""Words to character ids, against the examples of the format."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmwright.model.chars import N_CHARS, PAD, char_ids
from elmwright.model.reference import ReferenceBiLM


@pytest.mark.parametrize(
    ("word", "raw"),
    [
        ("th", [258, 116, 104, 259, 260]),
        ("thhhhh", [258, 116, 104, 104, 259]),
        ("Āt", [258, 196, 128, 116, 259]),
        ("<S>", [258, 256, 259, 260, 260]),
        ("</S>", [258, 257, 259, 260, 260]),
    ],
)
def test_the_published_examples(word, raw):
    assert char_ids([word], 5)[0].tolist() == [id_ + 1 for id_ in raw]


@given(st.lists(st.text(), max_size=5), st.integers(3, 30))
def test_any_text_equals_the_reference_and_stays_in_range(words, max_chars):
    reference = ReferenceBiLM.__new__(ReferenceBiLM)
    reference.options = {"char_cnn": {"max_characters_per_token": max_chars}}
    ids = char_ids(words, max_chars)
    assert ids.shape == (len(words), max_chars)
    for word, row in zip(words, ids, strict=True):
        assert row.tolist() == [id_ + 1 for id_ in reference.characters(word)]
    assert ((ids > 0) & (ids < N_CHARS)).all()


def test_hard_words():
    words = ["", "x" * 1000, "👩‍👩‍👧", "e\u0301", "\ud800lone"]
    ids = char_ids(words, 50)
    assert (ids != PAD).sum(axis=1).tolist() == [2, 50, 20, 5, 6]
    assert np.array_equal(ids[4], char_ids(["lone"], 50)[0])  # a lone surrogate is left out


def test_max_chars_below_three_is_refused():
    with pytest.raises(ValueError, match="max_chars is 2"):
        char_ids(["a"], 2)
