"""Languages: detected, refused by a wrong code, and never a crash."""

import pytest

from elmwright.pipeline.cleaning import language
from tests.support.mistakes import mistake

ENGLISH = "The quick brown fox jumps over the lazy dog, and everybody was very pleased with it. "
GERMAN = "Der schnelle braune Fuchs springt über den faulen Hund, und alle freuten sich darüber. "


def test_documents_are_told_apart():
    assert language.judge(ENGLISH * 3, ("en",), 0.65) == ("en", "")
    code, why = language.judge(GERMAN * 3, ("en",), 0.65)
    assert code == "de"
    assert why.startswith("de 9")
    assert language.judge(GERMAN * 3, ("en", "de"), 0.65) == ("de", "")


def test_the_share_counts_also_in_long_documents():
    mixed = (ENGLISH * 5 + GERMAN * 5) * 100
    assert language.judge(mixed, ("en",), 0.9)[1]
    assert not language.judge(mixed, ("en",), 0.2)[1]
    assert not language.judge(mixed, ("en", "de"), 0.9)[1]


def test_only_reliably_foreign_sentences_are_dropped():
    assert language.is_foreign(GERMAN, ("en",))
    assert not language.is_foreign(GERMAN, ("en", "de"))
    assert not language.is_foreign("Guten Morgen .", ("en",))
    assert not language.is_foreign("1 2 3 4 5 6 7 8", ("en",))


def test_a_code_without_a_script_includes_all_scripts():
    traditional = (
        "香港水上人主要包括蜑家人和鶴佬人兩大族群，也有少量客家人，傳統上是以捕魚為生的漁民。" * 3
    )
    assert language.judge(traditional, ("zh",), 0.65) == ("zh-Hant", "")
    assert language.judge(traditional, ("zh-Hant",), 0.65) == ("zh-Hant", "")
    assert language.judge(traditional, ("ja",), 0.65)[1]


def test_a_wrong_code_is_refused_with_a_suggestion():
    language.check(("en", "de", "zh-Hant"))
    with mistake("setting", '"eng"', '"en"'):
        language.check(("eng",))


@pytest.mark.parametrize(
    "text", ["\ufffe\uffff", "\x01\x02", "😀" * 100, "ا" * 50_000, "\u0301" * 9]
)
def test_odd_text_is_of_unknown_language(text):
    reliable, shares = language.detect(text)
    assert isinstance(reliable, bool)
    assert shares
