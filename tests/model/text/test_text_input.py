"""A batch of strings and lists becomes a model's own words, or one sentence says why not."""

import copy
import json
import pickle
import warnings
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmwright.model.text.text_input import TextInput, config_entries, spans_of
from elmwright.pipeline.cleaning.tokeniser import Tokenisation, Word
from elmwright.pipeline.cleaning.words import VERSION
from elmwright.pipeline.records import to_data
from tests.support.mistakes import mistake
from tests.support.pieces import KOREAN, TEXT, korean_pieces

PTB = Tokenisation("ptb", VERSION)
RAW = "I don't know."
WORDS = ["I", "do", "n't", "know", "."]


@pytest.fixture
def korean(tmp_path: Path) -> TextInput:
    (tmp_path / "sentencepiece.model").write_bytes(korean_pieces())
    return TextInput(KOREAN, tmp_path / "sentencepiece.model")


def test_a_string_is_raw_text_and_a_list_is_words() -> None:
    text = TextInput(PTB)
    read = text.read([RAW, ["I", "don't"], (), np.array(["know", "."]), np.str_("It's.")])
    assert read.tokens == [WORDS, ["I", "don't"], [], ["know", "."], ["It", "'s", "."]]
    assert not read.has_spans
    assert text.read(RAW).tokens == [WORDS]  # a bare string is a batch of one
    assert text.read(np.array([["a", "b"], ["c", "d"]])).tokens == [["a", "b"], ["c", "d"]]
    assert text.read(()).tokens == []


def test_words_have_their_places() -> None:
    found = TextInput(PTB).tokenise(RAW)
    assert [RAW[word.start : word.end] for word in found] == [word.text for word in found] == WORDS
    assert TextInput(PTB).tokenise(" \u200b") == []
    for wrong in (None, b"The cat", [RAW]):
        with mistake("input", "one sentence is a string, not"):
            TextInput(PTB).tokenise(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("batch", "why"),
    [
        ("", "sentence 0 of the batch is empty: ''; leave it out"),
        ([["a"], " \n"], "sentence 1 of the batch is empty"),
        (b"The cat", "a batch is bytes (b'The cat')"),
        (None, "a batch is None; give a list of sentences"),
        (3, "a batch is int (3)"),
        ({"a": "b"}, "a batch is dict"),
        (np.array(3), "a batch is ndarray"),
        ([b"The cat"], "sentence 0 of the batch is bytes (b'The cat'), neither a string nor"),
        ([["a"], None], "sentence 1 of the batch is None, neither a string nor a list of words"),
        ([3.5], "sentence 0 of the batch is float (3.5)"),
        ([["a", 3]], "word 1 of sentence 0 is int (3), not a string"),
        ([["a"], [None]], "word 0 of sentence 1 is None, not a string"),
        ([["a", b"b"]], "word 1 of sentence 0 is bytes (b'b'), not a string"),
        ([[["a"]]], "word 0 of sentence 0 is list (['a']), not a string"),
        ([["New York"]], "word 0 of sentence 0 is 'New York', and a word is not empty and has no"),
        ([["a", ""]], "word 1 of sentence 0 is '', and a word is not empty"),
    ],
)
def test_what_is_no_batch_is_named_in_a_sentence(batch: object, why: str) -> None:
    with mistake("input", why) as seen:
        TextInput(PTB).read(batch)
    assert "\n" not in str(seen.value)


def test_without_a_tokeniser_a_string_is_split_at_spaces_and_one_warning_says_so() -> None:
    text = TextInput()
    with pytest.warns(UserWarning, match="does not carry its tokeniser") as seen:
        read = text.read([RAW, "a\u3000b "])
    assert read.tokens == [["I", "don't", "know."], ["a", "b"]]
    assert len(seen) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [tuple(word) for word in text.tokenise("a  bc")] == [("a", 0, 1), ("bc", 3, 5)]
    assert text.read([["New York", ""]]).tokens == [["New York", ""]]  # as before


def test_pieces_have_the_spaces_in_them_and_lists_are_pieces_or_words(korean: TextInput) -> None:
    raw = TEXT[0]
    pieces = korean.words(raw)
    assert "".join(pieces).replace("▁", " ").strip() == raw
    assert korean.read([pieces], None).tokens == [pieces]
    read = korean.read([raw, raw.split()], "first")
    assert read.tokens == [pieces, pieces]
    assert read.spans[0] is None
    spans = read.spans[1]
    assert spans is not None
    for word, (start, end) in zip(raw.split(), spans, strict=True):
        assert "".join(pieces[start:end]).replace("▁", "") == word


def test_every_given_word_has_a_piece_also_one_that_normalisation_removes(
    korean: TextInput,
) -> None:
    words = ["학교", "\u2060", "책을", "\ufffd", "ﬁ", "½"]
    pieces, spans = korean.pieces(words)
    assert len(spans) == len(words)
    assert all(0 <= start < end <= len(pieces) for start, end in spans)
    assert spans == sorted(spans)
    assert pieces[spans[1][0]] == "\u2060"
    assert "".join(pieces[slice(*spans[4])]).lstrip("▁") == "fi"  # sentencepiece writes NFKC


def test_where_a_language_has_no_spaces_words_are_joined_without(tmp_path: Path) -> None:
    (tmp_path / "sentencepiece.model").write_bytes(korean_pieces())
    how = Tokenisation("sentencepiece", VERSION, language="zh")
    pieces, spans = TextInput(how, tmp_path / "sentencepiece.model").pieces(["학", "교에"])
    assert pieces == TextInput(how, tmp_path / "sentencepiece.model").words("학교에")
    assert [start for start, _ in spans] == [0, 0] if len(pieces) == 1 else spans[0][0] <= 1


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=12), st.data())
def test_a_piece_belongs_to_the_words_whose_characters_it_came_from(
    gaps: list[tuple[int, int]], data: st.DataObject
) -> None:
    place, words = 0, []
    for gap, size in gaps:
        words.append(Word("w", place + gap, place + gap + size + 1))
        place += gap + size + 1
    cuts = sorted({0, place, *data.draw(st.lists(st.integers(0, place), max_size=9))})
    pieces = [Word(f"p{n}", *cut) for n, cut in enumerate(pairwise(cuts))]
    tokens, spans = spans_of(pieces, words)
    assert tokens == [piece.text for piece in pieces]
    for word, (start, end) in zip(words, spans, strict=True):
        for number, piece in enumerate(pieces):
            overlaps = piece.start < word.end and piece.end > word.start
            assert overlaps == (start <= number < end)


def test_a_model_folder_says_how_it_reads(tmp_path: Path) -> None:
    assert TextInput.of_folder(tmp_path).tokenisation is None  # a folder in bilm format
    config = tmp_path / "config.json"
    entries = config_entries(KOREAN)
    assert entries["input"] == 2
    write(config, entries)
    with mistake("model-incomplete", "it has no sentencepiece.model"):
        TextInput.of_folder(tmp_path)
    (tmp_path / "sentencepiece.model").write_bytes(korean_pieces())
    assert TextInput.of_folder(tmp_path).tokenisation == KOREAN
    assert TextInput.of_folder(tmp_path).pool_of("default") == "first"
    write(config, {"tokenizer": "sentencepiece"})  # an earlier bundle
    assert TextInput.of_folder(tmp_path).pool_of("default") is None
    for damaged, code, why in (
        ({"input": 3}, "format", "has input 3 and this version reads 2"),
        ({"input": 2}, "model-invalid", "does not say how text becomes words"),
        ({"input": 2, "tokenisation": {"kind": 1}}, "model-invalid", "does not say how"),
        ({"input": 2, "tokenisation": to_data(PTB) | {"version": 99}}, "format", "version 99"),
    ):
        write(config, damaged)
        with mistake(code, why):
            TextInput.of_folder(tmp_path)


def test_it_can_be_copied_and_sent_to_another_process(korean: TextInput) -> None:
    wanted = korean.words(TEXT[1])
    assert copy.deepcopy(korean).words(TEXT[1]) == wanted
    assert pickle.loads(pickle.dumps(korean)).words(TEXT[1]) == wanted  # noqa: S301 - our own


def test_many_unknown_words_are_told_once_with_advice(tmp_path: Path) -> None:
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("<S>\n</S>\n<UNK>\nthe\n.\n", encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TextInput(PTB, vocab=vocab).read(["the the the the the the dog."] * 9)
        TextInput(PTB, vocab=vocab).read(["Hund."])  # too few to tell
    text = TextInput(PTB, vocab=vocab)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(20):
            text.read(["Hund."])
    (warning,) = (str(one.message) for one in seen)
    assert warning.startswith("50% of the words are unknown to the model ('Hund'")
    assert "perhaps in another language" in warning
    text = TextInput(PTB, vocab=vocab)
    with pytest.warns(UserWarning, match="raw text goes in as strings"):
        text.read([["Hund."] * 10])


def write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")
