"""The rules a document must pass, as pure functions: text in, text and a verdict out.

A document is normalised, split and tokenised once (`words.py`); every rule then works on that
result. Each rule bears the name of its setting, so that the funnel tells the user which knob
dropped what.
"""

import re
import unicodedata
from collections.abc import Sequence

from elmwright.pipeline.config import CorpusConfig

EMPTY = "empty"
"""The rule that drops documents without any word."""
BROKEN = "broken record"
"""The rule that drops records that cannot be read."""
SENTENCE_RULE = "min_sentence_words"
"""The one rule that drops single sentences."""
RULES = (BROKEN, SENTENCE_RULE, EMPTY, "min_words", "max_words", "min_letter_share")
"""All rules of this file, in the order in which they act."""

_BREAKS = re.compile("\r\n?|[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
# Control characters, soft hyphens, zero-width spaces and byte-order marks; the joiners U+200C and
# U+200D stay, because Persian and Indic words are spelled with them.
_INVISIBLE = re.compile("[\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f\u00ad\u200b\u2060\ufeff]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_LETTER = re.compile(r"[^\W\d_]")


def normalise(text: str) -> str:
    """Unicode NFC, one kind of line break, nothing invisible, nothing that cannot be encoded."""
    if not text.isascii():
        text = unicodedata.normalize("NFC", text)
        # JSON can spell half a surrogate pair, which no file could hold.
        text = _SURROGATE.sub("\ufffd", text)
    return _INVISIBLE.sub("", _BREAKS.sub("\n", text))


def drop_short_sentences(sentences: Sequence[str], rules: CorpusConfig) -> list[str]:
    """The tokenised sentences that are long enough."""
    return [s for s in sentences if s.count(" ") + 1 >= rules.min_sentence_words]


def judge(sentences: Sequence[str], rules: CorpusConfig) -> str | None:
    """The name of the rule that drops this document of tokenised sentences, or None to keep it."""
    words = count_words(sentences)
    if words == 0:
        return EMPTY
    if words < rules.min_words:
        return "min_words"
    if words > rules.max_words:
        return "max_words"
    if rules.min_letter_share > 0 and letter_share(sentences) < rules.min_letter_share:
        return "min_letter_share"
    return None


def count_words(sentences: Sequence[str]) -> int:
    """Words of tokenised sentences."""
    return sum(sentence.count(" ") + 1 for sentence in sentences)


def letter_share(sentences: Sequence[str]) -> float:
    """Share of the words that hold a letter."""
    words = [word for sentence in sentences for word in sentence.split(" ")]
    return sum(1 for word in words if _LETTER.search(word)) / max(1, len(words))
