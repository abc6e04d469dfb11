"""Raw text in words with their places: nothing lost, every place right, old versions kept."""

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from elmwright.pipeline.cleaning import repair, words
from elmwright.pipeline.cleaning.aligned import aligned
from elmwright.pipeline.cleaning.tokeniser import Tokenisation, Tokeniser
from elmwright.pipeline.cleaning.words import VERSION
from elmwright.pipeline.config import CorpusConfig, Pieces
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.records import from_data, to_data

ODD = st.sampled_from(list("ae \n\r\t.\x0b\x85\xa0\xad\u200b\u2028\u3000\ufeff\ud800\u0301\u0344"))
ODD |= st.sampled_from(
    "doesnâ€™t|Ã\xa0 la|“x”|é|e\u0323\u0307|\u1100\u1161\u11a8|각|½|😀".split("|")
)
TEXT = st.lists(ODD | st.text(max_size=3), max_size=30).map("".join)


@settings(deadline=None)
@given(TEXT, st.booleans(), st.booleans(), st.sampled_from(["keep", "straight"]))
@example("a\r\n\r\nb", True, True, "keep")
@example("Ã la Ã\xa0 la doesnâ€™t", True, True, "keep")
def test_aligned_text_is_the_repaired_text_and_its_places_never_decrease(
    raw, mojibake, normalise, quotes
):
    config = CorpusConfig(mojibake=mojibake, normalise=normalise, quotes=quotes)
    found = aligned(raw, mojibake=mojibake, normalise=normalise, quotes=quotes)
    assert found.text == repair.repaired(raw, config)[0]
    places = [found.place(n, n + 1) for n in range(len(found.text))]
    assert all(0 <= start < end <= len(raw) for start, end in places)
    assert places == sorted(places)


def test_places_are_exact_around_what_was_repaired():
    raw = "The  cafe\u0301 doesnâ€™t\xa0open,\u200b\r\n  sorry ."
    found = Tokeniser(Tokenisation("ptb", 1)).tokenise(raw)
    assert [(word.text, raw[word.start : word.end]) for word in found] == [
        ("The", "The"),
        ("café", "cafe\u0301"),
        ("does", "does"),
        ("n’t", "nâ€™t"),
        ("open", "open"),
        (",", ","),
        ("sorry", "sorry"),
        (".", "."),
    ]


@settings(deadline=None)
@given(TEXT, st.sampled_from(["ptb", "whitespace"]), st.integers(1, VERSION))
def test_words_of_text_without_repairs_are_found_at_their_places(raw, kind, version):
    text = repair.normalise(raw)
    tokeniser = Tokeniser(Tokenisation(kind, version, mojibake=False))
    found = tokeniser.tokenise(text)
    assert [word.text for word in found] == [text[word.start : word.end] for word in found]
    assert [word.text for word in found] == tokeniser.words(text)
    assert "".join(word.text for word in found) == "".join(text.split())
    sentences = tokeniser.split(text)
    assert [text[word.start : word.end] for s in sentences for word in s.words] == [
        word.text for s in sentences for word in s.words
    ]
    for sentence in sentences:
        assert (sentence.start, sentence.end) == (sentence.words[0].start, sentence.words[-1].end)


@settings(deadline=None)
@given(TEXT)
def test_any_text_gives_words_of_which_each_has_a_place(raw):
    tokeniser = Tokeniser(Tokenisation("ptb", VERSION))
    for sentence in tokeniser.split(raw):
        for word in sentence.words:
            assert sentence.start <= word.start < word.end <= sentence.end
    assert tokeniser.words(raw) == [word.text for word in tokeniser.tokenise(raw)]


def test_sentences_of_wrapped_text_have_places_in_it():
    raw = "Mr. Smith came\nhome. It was late."
    found = Tokeniser(Tokenisation("ptb", 1)).split(raw)
    assert [raw[s.start : s.end] for s in found] == ["Mr. Smith came\nhome.", "It was late."]
    line = Tokeniser(Tokenisation("ptb", 1, sentences="line")).split(raw)
    assert [raw[s.start : s.end] for s in line] == raw.split("\n")


@pytest.fixture(scope="module")
def pieces(tmp_path_factory):
    path = tmp_path_factory.mktemp("pieces") / "sentencepiece.model"
    sentences = [f"the cat number {n} sat on the mat ." for n in range(300)]
    config = Pieces(size=400, byte_fallback=True)
    path.write_bytes(words.train_sentencepiece(iter(sentences), config, "en"))
    return path


def test_pieces_know_the_characters_they_came_from(pieces):
    raw = "the  cat ж½ sat"
    tokeniser = Tokeniser(Tokenisation("sentencepiece", 1), pieces)
    found = [(word.text, raw[word.start : word.end]) for word in tokeniser.tokenise(raw)]
    assert found[0] == ("▁the", "the")
    assert found[1] == ("▁cat", "cat")
    assert ("<0xD0>", "ж") in found
    assert ("<0xB6>", "ж") in found
    assert ("1", "½") in found
    assert found[-1] == ("▁sat", "sat")


@settings(deadline=None)
@given(raw=TEXT)
@example(raw="\ufffd")
@example(raw="<S> </S>")
def test_pieces_with_places_are_the_pieces(pieces, raw):
    tokeniser = Tokeniser(Tokenisation("sentencepiece", 1), pieces)
    found = tokeniser.tokenise(raw)
    assert [word.text for word in found] == tokeniser.words(raw)
    assert all(0 <= word.start <= word.end <= len(raw) for word in found)


def test_a_tokenisation_is_plain_data():
    how = Tokenisation.of_corpus(CorpusConfig(language="de", quotes="straight"), VERSION)
    assert from_data(Tokenisation, json.loads(json.dumps(to_data(how)))) == how
    assert (how.kind, how.version, how.language, how.quotes) == ("ptb", VERSION, "de", "straight")


def test_a_later_version_and_a_missing_model_are_refused():
    with pytest.raises(UserError, match="install a newer one"):
        Tokeniser(Tokenisation("ptb", VERSION + 1))
    with pytest.raises(UserError, match=r"no sentencepiece\.model"):
        Tokeniser(Tokenisation("sentencepiece", 1))
