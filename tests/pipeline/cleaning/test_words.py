"""Sentences and words: nothing lost, nothing forged."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elmwright.pipeline.cleaning import repair, words
from elmwright.pipeline.config import Pieces
from elmwright.pipeline.reading import harvest

TEXT = st.text(max_size=200)


@settings(deadline=None)
@given(TEXT)
def test_ptb_words_hold_no_white_space_and_keep_every_character(text):
    tokens = words.ptb(text)
    assert "".join(tokens.split()) == "".join(text.split())
    assert all(word and word.split() == [word] for word in tokens.split(" ") if tokens)
    assert not {"<S>", "</S>"} & set(tokens.split())


@settings(deadline=None)
@given(TEXT)
def test_normal_text_can_be_written_and_stays_normal(text):
    normal = repair.normalise(text)
    normal.encode()
    assert repair.normalise(normal) == normal


@settings(deadline=None)
@given(TEXT)
def test_splitting_keeps_every_character(text):
    normal = repair.normalise(text)
    sentences = words.split(normal, "split", "en").sentences
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
        ("a Ph.D., etc., at 5pm", "a Ph.D. , etc. , at 5 pm"),
        ("about 1.5e-10 or +44 on 08/16/2000", "about 1.5e-10 or +44 on 08/16/2000"),
        (
            "I'd've gone, 'tis so in the '90s, get 'em",
            "I 'd 've gone , 't is so in the '90s , get 'em",
        ),
        ("AT&T and/or me: a.b@c.de,", "AT&T and / or me : a.b@c.de ,"),
        ("(www.x.com/p?q=1), dont", "( www.x.com/p?q=1 ) , do nt"),
        ("👩‍👩‍👧 👍🏽👍🏽 🇳🇴!", "👩‍👩‍👧 👍🏽 👍🏽 🇳🇴 !"),
        ("well :-) !!! ==== ?!", "well :-) !!! ==== ?!"),
        ("I cannot, gonna, Mr. T.", "I can not , gon na , Mr. T ."),
        ("the dogs' “church.” ‘Yes’—no", "the dogs ' “ church . ” ‘ Yes ’ — no"),
    ],
)
def test_ptb_examples(sentence, expected):
    assert words.ptb(sentence) == expected


@pytest.mark.parametrize(
    ("language", "sentence", "expected"),
    [
        (
            "de",
            "Am 1. Januar bzw. ca. Nr. 5, z.B. hier.",
            "Am 1. Januar bzw. ca. Nr. 5 , z.B. hier .",
        ),
        ("en", "Am 1. Januar bzw. er", "Am 1 . Januar bzw . er"),
        ("no", "Den 2. mai kl. 5 kom hr. Bang.", "Den 2. mai kl. 5 kom hr. Bang ."),
        ("fr", "Mme. Roy et env. dix", "Mme. Roy et env. dix"),
        ("es", "El Sr. Ruiz y la Dra. Gil", "El Sr. Ruiz y la Dra. Gil"),
        ("it", "Il sig. Rossi, avv. Neri", "Il sig. Rossi , avv. Neri"),
        ("pt", "O exmo. Sr. Lima", "O exmo. Sr. Lima"),
        ("nl", "twee foto's, bijv. deze", "twee foto's , bijv. deze"),
        ("ru", "в 5 тыс. руб. и т.д. там", "в 5 тыс. руб. и т.д. там"),
    ],
)
def test_abbreviations_and_ordinals_follow_the_language(language, sentence, expected):
    assert words.ptb(sentence, language) == expected


@pytest.mark.parametrize(
    ("language", "sentences"),
    [
        (
            "en",
            [
                "“Go home.",
                "It is late,” he said.",
                "No.",
                "See No. 5 of J. Smith, etc.",
                "The end.",
            ],
        ),
        (
            "en",
            ["“What?” he asked.", "I came at 5 p.m. Monday.", "He and I.", "So what! :)", "Yes."],
        ),
        (
            "de",
            ["Am 1. Januar kam bzw. ging Dr. Huber.", "»Nein!« rief er.", "Es war 1914.", "Gut."],
        ),
        ("no", ["Kl. 5 kom hr. Bang den 2. Mai.", "«Mor!» – rettede hun.", "Det er bra."]),
        ("ru", ["В 1999 г. Москва и т. д. росла.", "Это др. дело.", "Он ушёл."]),
        ("ja", ["雨だ。", "「はい。」と言った。", "終わり"]),
    ],
)
def test_sentences_are_found_inside_quotes_and_after_abbreviations(language, sentences):
    between = "" if language == "ja" else " "
    assert words.split(between.join(sentences), "split", language).sentences == sentences


@pytest.mark.parametrize(
    "sentences",
    [
        ["We agree.", "Ann Lee@ACME", "10/20/2000 11:32 AM", "please find it attached."],
        ["He wrote on 04/30/2001 01:39:56 PM", "Dear all, it is done."],
        ["It was done 04/30/2001 01:39 by us."],
    ],
)
def test_the_head_of_a_mail_is_apart_from_its_text(sentences):
    assert words.split(" ".join(sentences), "split", "en").sentences == sentences


def test_a_drawn_line_is_a_sentence_and_a_short_one_is_not():
    sentences = ["the first part", "-" * 20, "The second ---- part", "=" * 10, "third"]
    assert words.split(" ".join(sentences), "split", "en").sentences == sentences


def test_an_address_before_a_capital_ends_a_sentence():
    sentences = [
        "See http://a.org/b_c#d for more at https://a.org/b",
        "This is mine: a.b@c.de",
        "Is it good?",
    ]
    assert words.split(" ".join(sentences), "split", "en").sentences == sentences


@pytest.mark.parametrize(
    ("language", "sentences"),
    [
        ("en", ["Does it work?", "how is it?", "But it broke...", "Then it did not.", "You see."]),
        ("en", ["See torch.nn.Linear and a.b?c=d, os.Path, Sean.Cooper@x.org"]),
        ("ru", ["Он ушёл.", "На улице темно...", "Вот и всё."]),
    ],
)
def test_sentences_without_a_blank_between_are_found_and_names_with_stops_stay(language, sentences):
    assert words.split("".join(sentences), "split", language).sentences == sentences


def test_the_closing_of_a_letter_ends_before_a_name_only():
    letter = ["Thanks,", "Kim Lee 555-0199"]
    assert words.split(" ".join(letter), "split", "en").sentences == letter
    letter = ["It is done.", "Best regards,", "Kim"]
    assert words.split(" ".join(letter), "split", "en").sentences == letter
    for text in ("Thanks, I will come.", "Thanks, kim", "Boston, Paris and Rome"):
        assert words.split(text, "split", "en").sentences == [text]


def test_wrapped_lines_are_joined_in_the_same_way_whether_or_not_a_list_follows():
    assert words.split("a b\n c d\ne", "split", "en").sentences == ["a b c d e"]
    assert words.split("a b\nc d\n- e", "split", "en").counts == [1, 1]


def test_a_line_is_a_paragraph_where_text_is_not_wrapped_or_a_setting_says_so():
    short = "»Ja«, sagte er\nDann ging er"
    assert words.split(short, "split", "de").counts == [1]
    assert words.split(short, "split", "de", "line").counts == [1, 1]
    long = "Ein langer Satz " + "und noch mehr " * 10
    assert words.split(f"{short}\n{long.strip()}", "split", "de").counts == [1, 1, 1]


def test_version_1_stays_as_it_was():
    """As computed by the code before there was another version."""
    text = "“Go. Stay,” I'd've said.\nMr. T. left. Am 1. Januar!!\n\n:-) a@b.de bzw. Ph.D., so"
    found = words.split(text, "split", "en", version=1)
    assert found.counts == [1, 3, 2]
    assert [words.ptb(sentence, "de", version=1) for sentence in found.sentences] == [
        "“ Go . Stay , ” I'd 've said .",
        "Mr. T. left .",
        "Am 1 .",
        "Januar ! !",
        ": - ) a @ b.de bzw .",
        "Ph.D . , so",
    ]


def test_tokenised_text_stays_as_it_is_but_for_the_marks():
    assert words.whitespace("the <unk> , <UNK>\tsat .") == "the <unk> , <UNK> sat ."
    assert words.whitespace("<S> a </S>") == "< S > a < / S >"


def test_sentences_are_found_in_wrapped_text_and_lists():
    text = "Mr. Smith came\nhome. It was late.\n\n1. first thing\n2. torch.nn.Linear is a thing"
    assert words.split(text, "split", "en").sentences == [
        "Mr. Smith came home.",
        "It was late.",
        "1. first thing",
        "2. torch.nn.Linear is a thing",
    ]
    assert words.split("one\n\n two ", "line", "en").sentences == ["one", "two"]


def test_paragraphs_know_their_lines_and_sentences():
    text = "One. Two.\nThree.\n\n- an item\n- another. And more."
    found = words.split(text, "split", "en")
    assert found.counts == [3, 1, 2]
    assert found.spans == [(0, 2), (3, 4), (4, 5)]
    assert words.split("a b\n\nc", "line", "en").spans == [(0, 1), (2, 3)]


@pytest.mark.parametrize(
    "unit",
    [
        "“",
        "a. “b ",
        "word ",
        "x",
        "。",
        "Mr. ",
        "1. ",
        "a?b",
        "://",
        "@",
        "=",
        "x... Y",
        "1/1/00 1:00 ",
    ],
)
def test_long_paragraphs_keep_every_character_and_cost_linear_time(unit):
    text = (unit * 100_000)[:100_000].strip()
    begin = time.process_time()
    sentences = words.split(text, "split", "en").sentences
    assert time.process_time() - begin < 10  # at most 1 s on a quiet machine
    assert "".join("".join(sentences).split()) == "".join(text.split())


def test_long_paragraphs_are_split_as_short_ones_are():
    sentences = [f"This is sentence number {n} of Mr. Smith (e.g. this one)." for n in range(1000)]
    assert words.split(" ".join(sentences), "split", "en").sentences == sentences


def test_a_piece_model_of_each_kind_can_be_trained_and_used(tmp_path):
    sentences = [f"the cat number {n} sat on the mat ." for n in range(300)]
    for kind, fallback in (("unigram", True), ("bpe", False)):
        pieces = Pieces(size=400, model=kind, byte_fallback=fallback)
        model = words.train_sentencepiece(iter(sentences), pieces, "en")
        assert model == words.train_sentencepiece(iter(sentences), pieces, "en")
        path = tmp_path / kind
        path.write_bytes(model)
        tokenised = words.sentencepiece(path)("the cat sat")
        assert tokenised.replace(" ", "").replace("▁", " ").strip() == "the cat sat"
        assert ("<0x" in words.sentencepiece(path)("ж")) == fallback


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
