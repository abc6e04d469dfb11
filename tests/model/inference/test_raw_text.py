"""The ELMo layer on raw sentences, and on words where the model reads pieces."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch

from elmwright.model.inference.elmo import Elmo
from elmwright.pipeline.cleaning.tokeniser import Tokenisation
from elmwright.pipeline.cleaning.words import VERSION
from tests.support.mistakes import mistake
from tests.support.pieces import KOREAN, TEXT, korean_pieces
from tests.support.random_model import write_random_model

RAW = "The cat sees the dog's house."
WORDS = ["The", "cat", "sees", "the", "dog", "'s", "house", "."]
CLOSE = {"atol": 1e-6, "rtol": 1e-5}


@pytest.fixture
def english(tmp_path: Path) -> Elmo:
    how = Tokenisation("ptb", VERSION)
    return Elmo.from_pretrained(write_random_model(tmp_path / "en", tokenisation=how), dropout=0)


@pytest.fixture
def korean(tmp_path: Path) -> Path:
    return write_random_model(tmp_path / "ko", tokenisation=KOREAN, pieces=korean_pieces())


def test_raw_sentences_and_their_words_have_the_same_vectors(english: Elmo) -> None:
    for batch in ([RAW, ["A", "bird"]], RAW):
        raw = english.embed(batch)
        listed = english.embed([WORDS, ["A", "bird"]][: len(raw)])
        for got, wanted in zip(raw, listed, strict=True):
            np.testing.assert_array_equal(got, wanted)
    assert raw[0].shape == (3, len(WORDS), 16)
    assert torch.equal(english([RAW]).mixes[0], english([WORDS]).mixes[0])
    assert torch.equal(english(RAW).mixes[0], english([WORDS]).mixes[0])
    assert [RAW[word.start : word.end] for word in english.tokenize(RAW)] == WORDS


def test_a_wrong_batch_is_a_mistake_of_embed_and_forward(english: Elmo) -> None:
    for use in (english.embed, english):
        with mistake("input", "word 1 of sentence 0 is int (3), not a string"):
            use([["a", 3]])  # type: ignore[operator, list-item]
        with mistake("input", "None"):
            use(None)  # type: ignore[operator, arg-type]
        with mistake("input", "is empty"):
            use("")  # type: ignore[operator]


@pytest.mark.parametrize("boundaries", [False, True])
@pytest.mark.parametrize("pool", ["first", "last", "mean"])
def test_a_word_has_one_vector_of_its_pieces(korean: Path, pool: str, boundaries: bool) -> None:
    options = {"dropout": 0, "keep_sentence_boundaries": boundaries}
    elmo = Elmo.from_pretrained(korean, pool=pool, **options)
    plain = Elmo.from_pretrained(korean, pool=None, **options)
    words = [TEXT[0].split(), TEXT[4].split()]
    batch = [words[0], TEXT[2], words[1], []]
    pieces = [plain.text.words(sentence) for sentence in (TEXT[0], TEXT[2], TEXT[4])]
    vectors = plain.embed([*pieces, []])
    for number, given in ((0, words[0]), (2, words[1])):
        read, spans = elmo.pieces(given)
        assert read == pieces[number]
        assert any(end - start > 1 for start, end in spans)
        choose = {
            "first": lambda v, a, _: v[:, a],
            "last": lambda v, _, b: v[:, b - 1],
            "mean": lambda v, a, b: v[:, a:b].mean(1),
        }[pool]
        own = [choose(vectors[number], a + boundaries, b + boundaries) for a, b in spans]
        ends = [vectors[number][:, 0], vectors[number][:, -1]]
        own = [ends[0], *own, ends[1]] if boundaries else own
        vectors[number] = np.stack(own, axis=1)
    embedded = elmo.embed(batch)
    for got, wanted in zip(embedded, vectors, strict=True):
        np.testing.assert_allclose(got, wanted, **CLOSE)

    output = elmo(batch)
    assert output.mask.sum(1).tolist() == [v.shape[1] for v in embedded]
    for row, got in enumerate(embedded):
        mixed = output.mixes[0][row, : got.shape[1]].detach().numpy()
        np.testing.assert_allclose(mixed, got.mean(0), **CLOSE)
        assert not output.mixes[0][row, got.shape[1] :].any()


def test_gradients_reach_the_pieces_of_a_word(korean: Path) -> None:
    elmo = Elmo.from_pretrained(korean, pool="mean", trainable_bilm=True, dropout=0)
    elmo([TEXT[0].split()]).mixes[0].square().sum().backward()
    gradient = elmo.bilm.encoder.char_embed.grad
    assert gradient is not None
    assert gradient.abs().sum() > 0


def test_the_default_is_the_first_piece_and_a_setting_is_checked(korean: Path) -> None:
    elmo = Elmo.from_pretrained(korean)
    assert elmo.pool == "first"
    assert copy.deepcopy(elmo).embed(TEXT[0])[0].shape[1] == len(elmo.tokenize(TEXT[0]))
    with mistake("input", "'sum'", "first, last, mean or None"):
        Elmo.from_pretrained(korean, pool="sum")


def test_a_model_without_its_tokeniser_splits_at_spaces_as_before(tmp_path: Path) -> None:
    elmo = Elmo.from_pretrained(write_random_model(tmp_path / "old"))
    with pytest.warns(UserWarning, match="only split at spaces"):
        (vectors,) = elmo.embed(RAW)
    np.testing.assert_array_equal(vectors, elmo.embed([RAW.split()])[0])
    assert elmo.pool is None
