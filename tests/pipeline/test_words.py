"""Sentences and words: nothing lost, nothing forged."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmwright.pipeline import clean, harvest, words
from elmwright.pipeline.config import CorpusConfig

TEXT = st.text(max_size=200)


@given(TEXT)
def test_ptb_words_hold_no_white_space_and_keep_every_character(text):
    tokens = words.ptb(text)
    assert "".join(tokens.split()) == "".join(text.split())
    assert all(word and word.split() == [word] for word in tokens.split(" ") if tokens)
    assert not {"<S>", "</S>"} & set(tokens.split())


@given(TEXT)
def test_normal_text_can_be_written_and_stays_normal(text):
    normal = clean.normalise(text)
    normal.encode()
    assert clean.normalise(normal) == normal


@given(TEXT)
def test_splitting_keeps_every_character(text):
    normal = clean.normalise(text)
    sentences = list(words.find_sentences(normal, "split", "en"))
    assert "".join("".join(sentences).split()) == "".join(normal.split())
    assert not any("\n" in sentence for sentence in sentences)


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("I don't think it's 1,000.5.", "I do n't think it 's 1,000.5 ."),
        ('He said "no" (twice).', 'He said " no " ( twice ) .'),
        ("Mr. Smith, e.g., of the U.S. army", "Mr. Smith , e.g. , of the U.S. army"),
        ("well-known os.path o'clock", "well-known os.path o'clock"),
        ("See https://a.org/b?c=1.", "See https://a.org/b?c=1 ."),
        ("Wait... what--now?", "Wait ... what -- now ?"),
        ("a <S> and </S>", "a < S > and < / S >"),
        ("हिन्दी में लिखा", "हिन्दी में लिखा"),
    ],
)
def test_ptb_examples(sentence, expected):
    assert words.ptb(sentence) == expected


def test_tokenised_text_stays_as_it_is_but_for_the_marks():
    assert words.whitespace("the <unk> , <UNK>\tsat .") == "the <unk> , <UNK> sat ."
    assert words.whitespace("<S> a </S>") == "< S > a < / S >"


def test_sentences_are_found_in_wrapped_text_and_lists():
    text = "Mr. Smith came\nhome. It was late.\n\n1. first thing\n2. torch.nn.Linear is a thing"
    assert list(words.find_sentences(text, "split", "en")) == [
        "Mr. Smith came home.",
        "It was late.",
        "1. first thing",
        "2. torch.nn.Linear is a thing",
    ]
    assert list(words.find_sentences("one\n\n two ", "line", "en")) == ["one", "two"]


def test_rules_drop_by_their_setting_names():
    rules = CorpusConfig(min_words=3, max_words=5, min_letter_share=0.5)
    assert clean.judge([], rules) == "empty"
    assert clean.judge(["a b"], rules) == "min_words"
    assert clean.judge(["a b c", "d e f"], rules) == "max_words"
    assert clean.judge(["1 2 c"], rules) == "min_letter_share"
    assert clean.judge(["a 2 c"], rules) is None
    kept = clean.drop_short_sentences(["a", "a b"], CorpusConfig(min_sentence_words=2))
    assert kept == ["a b"]


def test_invisible_characters_go():
    assert clean.normalise("co\u00adop\x00 e\u0301\r\nx\ufeff\ud800") == "coop é\nx\ufffd"


def test_docstrings_give_prose_without_code():
    docstring = """Return the sum of *values*.

    The ``start`` value is added, see :func:`math.fsum`.

    >>> total([1])
    1

    Parameters
    ----------
    values : iterable
        The numbers to add.

    Use it like this::

        x = total([1, 2])
    """
    assert harvest.prose(docstring.replace("\n    ", "\n")).split("\n\n") == [
        "Return the sum of values.",
        "The start value is added, see math.fsum.",
        "The numbers to add.",
        "Use it like this:",
    ]
