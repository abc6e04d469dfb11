"""Text to text: a normal form, repairs that leave clean text alone, masks that know a version."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elmwright.pipeline.cleaning import repair
from elmwright.pipeline.config import CorpusConfig

ODD = st.text(
    st.one_of(
        st.characters(),
        st.sampled_from(
            " \t\n\r\x0b\x1c\x1f\x85\xa0\xad\u0301\u1680\u2003\u200b\u2028\u3000\ufeff"
        ),
    ),
    max_size=60,
)


@settings(deadline=None)
@given(ODD)
def test_the_normal_form_is_what_later_rules_rely_on(text):
    normal = repair.normalise(text)
    normal.encode()
    assert repair.normalise(normal) == normal
    for line in normal.split("\n"):
        assert line == " ".join(line.split())
    assert not normal.startswith("\n")
    assert not normal.endswith("\n")


def test_invisible_characters_go_and_joiners_stay():
    assert repair.normalise("co\u00adop\x00 e\u0301\r\nx\ufeff\ud800") == "coop é\nx\ufffd"
    assert repair.normalise("e\u200b\u0301") == "é"
    assert repair.normalise("می\u200cخواهم \u202bx\u202c") == "می\u200cخواهم x"


def test_every_line_break_is_one_and_blanks_do_not_pile_up():
    assert repair.normalise("a \t b\r\n\r  c\x0bd\u2028e\x85f ") == "a b\n\nc\nd\ne\nf"


def test_quotes_are_straightened_only_on_demand():
    text = "“It’s” – ‘so’ — «well»"
    assert repair.repaired(text, CorpusConfig())[0] == text
    straight = repair.repaired(text, CorpusConfig(quotes="straight"))[0]
    assert straight == '"It\'s" - \'so\' - "well"'


@pytest.mark.parametrize(
    ("broken", "whole"),
    [
        ("It doesnâ€™t work.", "It doesn’t work."),
        ("cafÃ© Ã  la carte", "café à la carte"),
        ("â\x80\x9cquotedâ\x80\x9d", "“quoted”"),
        ("voilÃ\xa0 le cafÃ©", "voilà le café"),
        ("the Mac‚Äôs quote", "the Mac’s quote"),
    ],
)
def test_wrong_decodings_are_undone(broken, whole):
    text, changes = repair.repaired(
        f"A clean line.\n{broken}\n“Another” one, né Müller.", CorpusConfig()
    )
    assert text == f"A clean line.\n{whole}\n“Another” one, né Müller."
    assert changes == ["mojibake"]
    assert repair.repaired(broken, CorpusConfig(mojibake=False))[1] == []


@pytest.mark.parametrize(
    "text",
    [
        "“Café”, he said – naïve…",
        "Ça va? «Où?» É”",
        "Привет, мир",
        "日本語です。",
        "Â and Ã are letters",
    ],
)
def test_clean_text_is_not_touched(text):
    assert repair.repaired(text, CorpusConfig()) == (text, [])


def test_ftfy_is_not_called_for_clean_text(monkeypatch):
    import ftfy

    monkeypatch.setattr(ftfy, "fix_encoding", lambda _: pytest.fail("asked"))
    repair.fix_mojibake("“Ünïcödé” – naïve café, " * 100)


MASKED = [
    ("email", "Write to joe.doe+x@mail.example.co.uk.", "Write to email@example.com."),
    ("email", "<a_b@c-d.org>", "<email@example.com>"),
    ("ip", "from 84.23.119.201, twice", "from 192.0.2.1, twice"),
    ("phone", "call +49 30 1234 5678 now", "call 555-0100 now"),
    ("phone", "(415) 555-2671 or 415-555-2671.", "555-0100 or 555-0100."),
    ("phone", "+1 (415) 555-2671", "555-0100"),
]


@pytest.mark.parametrize(("kind", "text", "masked"), MASKED)
def test_private_data_is_masked(kind, text, masked):
    assert repair.repaired(text, CorpusConfig(mask=(kind,))) == (masked, [kind])
    assert repair.repaired(text, CorpusConfig()) == (text, [])


@pytest.mark.parametrize(
    "text",
    [
        "Python 3.11.7, version 112.34.56.78, v84.23.119.201 and section 1.2.3.4",
        "127.0.0.1, 192.168.100.200, 10.12.200.250 and 300.300.300.300",
        "2014-05-06, 1914-1918, 1,000,000.50, 12:30:45, ISBN 978-3-16-148410-0",
        "@name, a@b, user@localhost, x = a @ b",
        "3.14159 26535 89793, 10.1000/182, 555-1234-5678-9012-3456",
        "+5 points, (2012) 345 of them, 2+2",
    ],
)
def test_numbers_that_are_not_private_are_not_masked(text):
    assert repair.repaired(text, CorpusConfig(mask=("email", "ip", "phone"))) == (text, [])


@pytest.mark.parametrize(
    "line",
    [
        "Home | About Us | Contact",
        "Share this: Facebook Twitter",
        "Skip to main content",
        "© 2014 Example Inc. All rights reserved.",
        "Copyright 1999-2004 by Somebody",
        "This site uses cookies to improve your experience.",
        "Privacy Policy",
        "Read more »",
        "Follow us on Twitter",
        "Leave a reply",
    ],
)
def test_lines_around_the_text_are_boilerplate(line):
    assert repair.is_boilerplate(line)
    assert repair.without_boilerplate(f"Some text.\n{line}\nMore text.") == (
        "Some text.\n\nMore text.",
        [line],
    )


@pytest.mark.parametrize(
    "line",
    [
        "",
        "He went home.",
        "She contacted us about the news.",
        "Home is where the heart is",
        "The copyright laws of 1909 were replaced by an act of Congress.",
        "1999",
        "• • •",
        "The cookies were baked at noon.",
    ],
)
def test_lines_of_text_are_not_boilerplate(line):
    assert not repair.is_boilerplate(line)


@pytest.mark.parametrize(
    "unit",
    [
        "a",
        "a@",
        "1.",
        "1-",
        "+1 ",
        "1.1.1.",
        "(",
        "Ã",
        "â€",
        "a.b@c.",
        " \n",
        "\u00ad",
        "😀",
        "e\u0301",
    ],
)
def test_hostile_text_costs_linear_time(unit):
    config = CorpusConfig(quotes="straight", mask=("email", "ip", "phone"))
    begin = time.process_time()
    text, _ = repair.repaired(unit * 100_000, config)
    repair.without_boilerplate(text)
    assert time.process_time() - begin < 5


def test_without_the_normal_form_words_stay_what_they_are():
    config = CorpusConfig(normalise=False, mojibake=False)
    text = "e\u0301 \ufeff Ã© \u200b a\u00adb\n 10 @,@ 000 \u201cx\u201d"
    assert repair.repaired(text, config)[0] == text.replace("\n ", "\n")
    assert repair.normalise(text) != text


def test_without_the_normal_form_lines_and_blanks_are_still_in_order():
    tidy = repair.tidied("\r\n a\tb\x00c \u00a0 d\r e \x85f\x1cg\ud800 \n\n h\n")
    assert tidy == "a b c d\ne f g\ufffd\n\nh"
