"""A block holds whole sentences, lays them out in both directions, and survives the disk."""

from itertools import chain, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmwright.pipeline.format.block import (
    BOS,
    EOS,
    EOS_ID,
    UNK_ID,
    Block,
    from_members,
    remap,
    streams,
    to_members,
)
from tests.support.corpus.plain_packing import pack

pytestmark = pytest.mark.slow(3)

WORD = st.text(st.characters(exclude_categories=("Z", "C")), min_size=1, max_size=6).filter(
    lambda word: word.split() == [word] and word not in (BOS, EOS)
)
SENTENCES = st.lists(st.lists(WORD, min_size=1, max_size=12), min_size=1, max_size=20)


def numbered(sentences: list[list[str]]) -> list[tuple[int, list[str]]]:
    return [(number // 2, sentence) for number, sentence in enumerate(sentences)]


def unpack(blocks: list[Block]) -> list[tuple[int, list[str]]]:
    found = []
    for block in blocks:
        ends = np.cumsum(block.lengths)
        for document, end, length in zip(block.documents, ends, block.lengths, strict=True):
            words = [block.types[token] for token in block.tokens[end - length : end]]
            found.append((int(document), words))
    return found


@given(SENTENCES, st.integers(13, 40))
def test_packing_loses_doubles_and_reorders_nothing(sentences, steps):
    blocks = list(pack(numbered(sentences), {}, steps))
    assert unpack(blocks) == numbered(sentences)
    assert all(block.steps == steps and block.padding >= 0 for block in blocks)
    for before, after in pairwise(blocks):
        assert before.padding < after.lengths[0] + 1, "the next sentence would have fitted"


@given(SENTENCES, st.integers(2, 12))
def test_a_sentence_too_long_for_a_block_is_cut_into_pieces(sentences, steps):
    blocks = list(pack(numbered(sentences), {}, steps))
    assert [word for _, piece in unpack(blocks) for word in piece] == list(chain(*sentences))
    assert all(0 < length <= steps - 1 for block in blocks for length in block.lengths)


@given(SENTENCES)
def test_streams_are_the_sentences_read_forward_and_backward(sentences):
    (block,) = pack(numbered(sentences), {}, 400)
    laid = streams(block)
    inputs, targets, back_inputs, back_targets = [], [], [], []
    for sentence in sentences:
        inputs += [BOS, *sentence]
        targets += [*sentence, EOS]
        back_inputs += [EOS, *sentence[::-1]]
        back_targets += [*sentence[::-1], BOS]

    def words(stream: np.ndarray) -> list[str]:
        return [block.types[index] for index in stream]

    padding = [BOS] * block.padding
    assert words(laid.forward_inputs) == inputs + padding
    assert words(laid.forward_targets) == targets + padding
    assert words(laid.backward_inputs) == back_inputs + padding
    assert words(laid.backward_targets) == back_targets + padding
    assert laid.weights.tolist() == [1.0] * len(inputs) + [0.0] * len(padding)


@given(SENTENCES, st.dictionaries(WORD, st.integers(3, 99)))
def test_a_block_survives_its_members(sentences, word_id):
    for block in pack(numbered(sentences), word_id, 30):
        again = from_members(to_members(block))
        assert to_members(again) == to_members(block)
        assert again.types == block.types
        assert again.steps == 30
        assert again.tokens.tolist() == block.tokens.tolist()


def test_words_outside_the_vocabulary_are_unknown_until_it_changes():
    (block,) = pack([(0, ["the", "cat"])], {"the": 3}, 8)
    assert block.ids.tolist() == [0, EOS_ID, 3, UNK_ID]
    assert remap(block, {"cat": 5}).ids.tolist() == [0, EOS_ID, UNK_ID, 5]


@pytest.mark.parametrize(
    ("member", "data", "reason"),
    [
        ("types.txt", b"<S>\n</S>\na\na", "repeated"),
        ("types.txt", b"<S>\n</S>\na", "ids for 3 types"),
        ("block.json", b'{"format": 2, "steps": 8}', "format"),
        ("block.json", b'{"format": 1, "steps": 2}', "more text"),
        ("tokens.npy", b"nonsense", "not a numpy array"),
    ],
)
def test_damage_is_told_by_its_reason(member, data, reason):
    (block,) = pack([(0, ["a", "b"])], {}, 8)
    with pytest.raises(ValueError, match=reason):
        from_members({**to_members(block), member: data})


def test_a_missing_member_is_named():
    (block,) = pack([(0, ["a", "b"])], {}, 8)
    members = to_members(block)
    del members["lengths.npy"]
    with pytest.raises(ValueError, match=r"lengths\.npy"):
        from_members(members)
