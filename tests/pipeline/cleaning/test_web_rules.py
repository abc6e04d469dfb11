"""The C4 and FineWeb rules, each from both sides of its threshold."""

from dataclasses import replace

import pytest

from elmwright.pipeline.cleaning import web_rules
from elmwright.pipeline.config import C4, FineWeb

LAX = C4(False, 0, 10**9, False, False, False, False, False, 0)


def c4(line, **rules):
    result = web_rules.c4_lines([line], replace(LAX, **rules))
    return result.drop[0] if result.drop else result.touched.get(0)


@pytest.mark.parametrize("end", [".", "?", "!", '"', "'"])
def test_lines_must_end_in_punctuation(end):
    assert c4(f"A line of words{end}", terminal_punctuation=True) is None


@pytest.mark.parametrize("line", ["A line of words", "A line of words...", "A line.”", "A, b,"])
def test_lines_without_final_punctuation_are_dropped(line):
    assert c4(line, terminal_punctuation=True) == "terminal_punctuation"
    assert c4(line) is None


@pytest.mark.parametrize(
    ("rule", "value", "inside", "outside"),
    [
        ("min_line_words", 3, "a b c", "a b"),
        ("max_word_length", 5, "aaaaa bbbbb ccccc", "aaaaa bbbbbb c"),
        ("max_word_length", 1000, "x" * 1000 + " y", "y " + "x" * 1001),
        ("javascript", True, "Java script.", "Enable JavaScript now."),
        ("policy", True, "The policy of cookies.", "We Use Cookies here."),
        ("policy", True, "Use of terms.", "See our Terms of Use."),
        ("lorem_ipsum", True, "lorem and ipsum", "Lorem Ipsum dolor."),
        ("curly_bracket", True, "a ( b ) }", "if (x) { y; }"),
        ("citations", True, "a [x] b", "a[12] b[edit] c[citation needed]"),
    ],
)
def test_each_c4_rule_from_both_sides(rule, value, inside, outside):
    assert c4(inside, **{rule: value}) is None
    assert c4(outside, **{rule: value}) == rule
    assert c4(outside) is None


def test_citations_leave_no_gap():
    result = web_rules.c4_lines(["So it is[1] said [2] often.[3]"], replace(LAX, citations=True))
    assert result.lines == ["So it is said often."]


def test_a_bad_line_is_judged_before_the_document():
    lines = ["if (x) {", "A good line of text.", "", "lorem ipsum"]
    result = web_rules.c4_lines(lines, C4())
    assert result.drop is None
    assert result.lines == [None, "A good line of text.", "", None]
    assert set(result.touched) == {0, 3}


def fineweb(lines, newlines=0, words=1000, **rules):
    lax = FineWeb(0.0, 1.0, 30, 1.0, 1e9)
    drop = web_rules.fineweb(lines, newlines, words, replace(lax, **rules))
    return drop and drop[0]


@pytest.mark.parametrize(
    ("rule", "limit", "inside", "outside"),
    [
        ("min_terminal_lines", 0.5, ["a.", "b"], ["a。", "b", "c"]),
        ("max_short_lines", 0.5, ["a" * 30, "b" * 31], ["a" * 30, "b", "c" * 31]),
        ("max_duplicate_characters", 0.25, ["aa", "aa", "bbbb"], ["aa", "aa", "bbb"]),
    ],
)
def test_each_fineweb_rule_at_its_threshold(rule, limit, inside, outside):
    assert fineweb(inside, **{rule: limit}) is None
    assert fineweb(outside, **{rule: limit}) == rule


def test_line_breaks_for_each_word():
    assert fineweb(["a b c d"], newlines=1, words=4, max_newlines=0.25) is None
    assert fineweb(["a b c"], newlines=1, words=3, max_newlines=0.25) == "max_newlines"
