"""The vocabulary: sorted by frequency, the same file everywhere, refused if it is another file."""

import math

import numpy as np
import pytest

from elmwright.pipeline.format.vocab import (
    choose,
    counts_by_id,
    load_vocab,
    save_vocab,
    target_counts,
    unigram_perplexity,
)
from tests.support.corpus.plain_packing import pack
from tests.support.mistakes import mistake


def test_words_fall_in_frequency_and_ties_go_by_their_bytes():
    counts = {"b": 5, "é": 5, "a": 5, "z": 9, "rare": 1, "<UNK>": 4}
    assert choose(counts, 99, 2) == ["<S>", "</S>", "<UNK>", "z", "a", "b", "é"]
    assert choose(counts, 5, 2) == ["<S>", "</S>", "<UNK>", "z", "a"]


def test_counts_add_up_to_every_target():
    counts = {"a": 5, "b": 3, "rare": 1}
    words = choose(counts, 99, 2)
    assert counts_by_id(words, counts, 4, 9).tolist() == [4, 4, 1, 5, 3]


def test_the_unigram_perplexity_is_that_of_the_counted_targets():
    """Train: a a b </S>; held out: `a </S>`, so ppl = exp(-(ln 2/4 + ln 1/4) / 2)."""
    (block,) = pack([(0, ["a"])], {"a": 3, "b": 4}, 8)
    heldout = target_counts([block], 5)
    assert heldout.tolist() == [0, 1, 0, 1, 0]
    expected = math.exp(-(math.log(2 / 4) + math.log(1 / 4)) / 2)
    assert unigram_perplexity(np.array([1, 1, 0, 2, 1]), heldout) == pytest.approx(expected)


def test_a_target_never_seen_in_train_counts_as_seen_once():
    heldout = np.array([0, 0, 1, 0])
    assert unigram_perplexity(np.array([3, 3, 0, 6]), heldout) == pytest.approx(10)


def test_a_saved_vocabulary_is_read_back(tmp_path):
    words = ["<S>", "</S>", "<UNK>", "the", "naïve"]
    save_vocab(str(tmp_path / "x"), words, np.arange(5))
    assert load_vocab(tmp_path / "x.vocab.txt") == words


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("the\na\n", ["<S>, </S>, <UNK>"]),
        ("<S>\n</S>\n<UNK>\na\n\nb\n", ["line 5"]),
        ("<S>\n</S>\n<UNK>\na\na\n", ["line 5", "line 4", "'a'"]),
        ("<S>\n</S>\n<UNK>\na b\n", ["line 4"]),
    ],
)
def test_invalid_vocabulary_is_refused(tmp_path, text, names):
    (tmp_path / "vocab.txt").write_text(text)
    with mistake("vocabulary", "vocab.txt", *names):
        load_vocab(tmp_path / "vocab.txt")
