"""The Gopher rules: every threshold from both sides, and the fast way equal to the obvious one."""

import re
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elmwright.pipeline.cleaning import gopher, repair, words
from elmwright.pipeline.cleaning.tokens import Reader
from elmwright.pipeline.config import GopherQuality, GopherRepetition

pytestmark = pytest.mark.slow(3)

READER = Reader(words.whitespace_chunk)
LAX = GopherQuality(0, 10**9, 0.0, 1e9, 1e9, 1e9, 1e9, 0.0, 0)
FREE = GopherRepetition(1.0, 1.0, 1.0, 1.0, (), ())


def tokens_of(texts):
    return READER.read([[s for s in text.split("\n") if s] for text in texts], counts=True)[1]


def quality(text, **rules):
    [drop] = gopher.quality([text], tokens_of([text]), replace(LAX, **rules))
    return drop and drop[0]


def repetition(text, **rules):
    [drop] = gopher.repetition([text], tokens_of([text]), replace(FREE, **rules))
    return drop and drop[0]


@pytest.mark.parametrize(
    ("rule", "limit", "inside", "outside"),
    [
        ("min_words", 3, "a b c .", "a b . . ."),
        ("max_words", 3, "a b c . .", "a b c d"),
        ("min_word_length", 3.0, "aaa bb cccc .", "aaa bb ccc .........."),
        ("max_word_length", 3.0, "aaa bb cccc ..........", "aaa bbb cccc"),
        ("max_symbol_share", 0.25, "# a b c", "# # a b c"),
        ("max_symbol_share", 0.25, "... a b c", "… ... a b c"),
        ("max_bullet_lines", 0.5, "- a\nb", "- a\n• b\nc"),
        ("max_ellipsis_lines", 0.5, "a ...\nb", "a ...\nb…\nc"),
        ("min_letter_words", 0.5, "a 1", "a 1 2"),
        ("min_stop_words", 2, "the cat of the", "The cat of of"),
    ],
)
def test_each_quality_rule_at_its_threshold(rule, limit, inside, outside):
    assert quality(inside, **{rule: limit}) is None
    assert quality(outside, **{rule: limit}) == rule


@pytest.mark.parametrize(
    ("rule", "limit", "inside", "outside"),
    [
        ("max_duplicate_lines", 0.25, "a\na\nb\nc", "a\na\nb\nb\nc"),
        ("max_duplicate_line_characters", 0.5, "aa\naa", "aaaaa\naaaaa\naaaaa"),
        ("max_duplicate_paragraphs", 0.25, "a\n\na\n\nb\n\nc", "a\n\na\n\n\nb\n\nb\n\nc"),
        ("max_duplicate_paragraph_characters", 0.4, "a\nb\n\na\nb", "aaa\nb\n\naaa\nb\n\naaa\nb"),
        ("max_top_ngrams", (0.5,), "a b a b xxxxxx", "a b a b xxx"),
        ("max_top_ngrams", (1.0, 0.4), "a b c a b d x y", "a b c a b c d d d"),
        ("max_top_ngrams", (1.0, 1.0, 0.5), "a b c d x a b c e", "a b c d a b c d x"),
        ("max_duplicate_ngrams", (0.25,), "a b c d e a b c d e x", "a b c d e " * 3),
        ("max_duplicate_ngrams", (1.0, 0.3), "a b c d e f x a b c d e f", "a b c d e f " * 4),
    ],
)
def test_each_repetition_rule_at_its_threshold(rule, limit, inside, outside):
    assert repetition(inside.strip(), **{rule: limit}) is None
    assert repetition(outside.strip(), **{rule: limit}) == rule


def slow_quality(text, rules):
    tokens = text.replace("-in-", " - in - ").replace("_", " _ ").split()
    if not tokens:
        return None
    real = [word for word in tokens if any(c.isalnum() for c in word)]
    lines = text.split("\n")
    length = sum(map(len, real)) / max(1, len(real))
    stops = {"the", "be", "to", "of", "and", "that", "have", "with"} & set(tokens)
    bullets = sum(line.startswith(("•", "-")) for line in lines)
    ends = sum(line.endswith(("...", "…")) for line in lines)
    letters = sum(any(c.isalpha() for c in word) for word in tokens)
    ellipses = text.count("...") + text.count("…")
    checks = [
        ("min_words", len(real) < rules.min_words),
        ("max_words", len(real) > rules.max_words),
        ("min_word_length", length < rules.min_word_length),
        ("max_word_length", length > rules.max_word_length),
        ("max_symbol_share", text.count("#") / len(tokens) > rules.max_symbol_share),
        ("max_symbol_share", ellipses / len(tokens) > rules.max_symbol_share),
        ("max_bullet_lines", bullets / len(lines) > rules.max_bullet_lines),
        ("max_ellipsis_lines", ends / len(lines) > rules.max_ellipsis_lines),
        ("min_letter_words", letters / len(tokens) < rules.min_letter_words),
        ("min_stop_words", len(stops) < rules.min_stop_words),
    ]
    return next((name for name, fails in checks if fails), None)


def slow_repetition(text, rules):
    tokens = text.split()
    if not tokens:
        return None
    for unit, parts in (("paragraph", re.split(r"\n{2,}", text)), ("line", re.split(r"\n+", text))):
        again = [part for n, part in enumerate(parts) if part in parts[:n]]
        if len(again) / len(parts) > getattr(rules, f"max_duplicate_{unit}s"):
            return f"max_duplicate_{unit}s"
        if len("".join(again)) / len(text) > getattr(rules, f"max_duplicate_{unit}_characters"):
            return f"max_duplicate_{unit}_characters"
    for n, limit in enumerate(rules.max_top_ngrams, 2):
        grams = [tuple(tokens[k : k + n]) for k in range(len(tokens) - n + 1)]
        if grams:
            gram, count = Counter(grams).most_common(1)[0]
            if len(" ".join(gram)) * count / len(text) > limit:
                return "max_top_ngrams"
    for n, limit in enumerate(rules.max_duplicate_ngrams, 5):
        seen, chars, k = [], 0, 0
        while k + n <= len(tokens):
            gram = tokens[k : k + n]
            if gram in seen:
                chars += len("".join(gram))
                k += n
            else:
                seen.append(gram)
                k += 1
        if chars / len(text) > limit:
            return "max_duplicate_ngrams"
    return None


WORDS = st.sampled_from(
    ["a", "b", "the", "of", "-", "•", "...", "…", "#", "12", "word", "#x", "la-in-law", "__x_"]
)
LINE = st.lists(WORDS, max_size=12).map(" ".join)
TEXT = st.lists(LINE, max_size=10).map(lambda lines: repair.normalise("\n".join(lines)))
TIGHT = GopherQuality(3, 40, 1.5, 3.0, 0.2, 0.5, 0.3, 0.5, 1)


@settings(deadline=None)
@given(st.lists(TEXT, max_size=5))
def test_quality_equals_the_obvious_way(texts):
    for rules in (TIGHT, GopherQuality(min_words=1, min_word_length=1.0)):
        found = gopher.quality(texts, tokens_of(texts), rules)
        assert [drop and drop[0] for drop in found] == [slow_quality(t, rules) for t in texts]


FEW = st.sampled_from(["a", "bb", "a", "ccc", "dddd", "e"])
REPEATING = st.builds(
    lambda parts, times: repair.normalise("\n".join(parts * times)),
    st.lists(st.lists(FEW, min_size=1, max_size=9).map(" ".join) | st.just(""), max_size=7),
    st.integers(1, 3),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(REPEATING, max_size=4))
def test_repetition_equals_the_obvious_way(texts):
    grams = replace(FREE, max_top_ngrams=(0.5, 0.5, 0.5), max_duplicate_ngrams=(0.4, 0.3, 0.2))
    for rules in (GopherRepetition(), grams, replace(grams, max_top_ngrams=(0.9, 0.3))):
        found = gopher.repetition(texts, tokens_of(texts), rules)
        assert [drop and drop[0] for drop in found] == [slow_repetition(t, rules) for t in texts]


def test_no_documents_and_empty_documents_pass():
    for texts in ([], [""], ["", ""]):
        tokens = tokens_of(texts)
        assert gopher.quality(texts, tokens, GopherQuality()) == [None] * len(texts)
        assert gopher.repetition(texts, tokens, GopherRepetition()) == [None] * len(texts)
