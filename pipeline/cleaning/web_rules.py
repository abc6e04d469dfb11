"""The C4 and FineWeb rules, which separate the text of a web page from the rest of the page.

Definitions and order are those of datatrove. C4 (Raffel et al. 2020, section 2.2, and its code)
drops lines, or the whole document if a line shows that the page is not prose. FineWeb (Penedo et
al. 2024, section 3.6) then judges the remaining lines.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from elmwright.pipeline.cleaning.document import Drop
from elmwright.pipeline.cleaning.gopher import repeated
from elmwright.pipeline.config import C4, FineWeb

C4_LINES = (
    "max_word_length",
    "citations",
    "terminal_punctuation",
    "min_line_words",
    "javascript",
    "policy",
)
C4_DOCUMENTS = ("lorem_ipsum", "curly_bracket", "min_sentences")
FINEWEB = ("min_terminal_lines", "max_short_lines", "max_duplicate_characters", "max_newlines")

_ENDS = (".", "?", "!", '"', "'")
_CITATION = re.compile(r"\[\d*\]|\[edit\]|\[citation needed\]")
_BLANKS = re.compile(" {2,}")
_POLICY = (
    "terms of use",
    "privacy policy",
    "cookie policy",
    "uses cookies",
    "use of cookies",
    "use cookies",
)
_PHRASES = (b"lorem ipsum", b"javascript", b"cookie", b"terms of use", b"privacy policy")

_RANGES = """
    21 2e 3f 589 61d-61f 6d4 700-702 7f9 837 839 83d-83e 964-965 104a-104b 1362 1367-1368 166e
    1735-1736 17d4-17d6 17d9-17da 1803 1809 1944-1945 1aa8-1aab 1b5a-1b5b 1b5e-1b5f 1b7d-1b7e
    1c3b-1c3c 1c7e-1c7f 203c-203d 2047-2049 2e2e 2e3c 2e53-2e54 3002 a4ff a60e-a60f a6f3 a6f7
    a876-a877 a8ce-a8cf a92f a9c8-a9c9 aa5d-aa5f aaf0-aaf1 abeb fe52 fe56-fe57 ff01 ff0e ff1f ff61
    10a56-10a57 10f55-10f59 10f86-10f89 11047-11048 110be-110c1 11141-11143 111c5-111c6 111cd
    111de-111df 11238-11239 1123b-1123c 112a9 1144b-1144c 115c2-115c3 115c9-115d7 11641-11642
    1173c-1173e 11944 11946 11a42-11a43 11a9b-11a9c 11c41-11c42 11ef7-11ef8 11f43-11f44 16a6e-16a6f
    16af5 16b37-16b38 16b44 16e98 1bc9f 1da88
"""
TERMINAL = frozenset(
    chr(code)
    for first, _, last in (part.partition("-") for part in _RANGES.split())
    for code in range(int(first, 16), int(last or first, 16) + 1)
)
"""Characters that end a sentence in any script (the Unicode property Sentence_Terminal)."""


@dataclass(frozen=True)
class Lines:
    """A document after the C4 line rules."""

    lines: list[str | None]
    """Every line after the rules; None if it was dropped."""
    touched: dict[int, str]
    """The rule that dropped or changed a line, by the line's number."""
    drop: Drop | None
    """Why the whole document is dropped."""


def c4_lines(lines: Sequence[str], rules: C4) -> Lines:
    """Apply the line rules to the lines of a document in normal form."""
    text = "\n".join(lines)
    lower = text.encode().lower()
    # Most lines need only a look at their last character.
    has_phrases = b"{" in lower or any(phrase in lower for phrase in _PHRASES)
    has_citations = rules.citations and b"[" in lower
    ends = _ENDS if rules.terminal_punctuation else ("",)
    kept: list[str | None] = []
    touched: dict[int, str] = {}
    for number, line in enumerate(lines):
        new, rule = line, ""
        if not line:
            pass
        elif len(line) > rules.max_word_length and _has_long_word(line, rules.max_word_length):
            rule = "max_word_length"
        else:
            if has_citations:
                new = _without_citations(line)
            if not new.endswith(ends) or (rules.terminal_punctuation and new.endswith("...")):
                rule = "terminal_punctuation"
            elif line.count(" ") + 1 < rules.min_line_words:
                rule = "min_line_words"
            elif has_phrases:
                rule = _phrase(new, rules)
        if rule in C4_DOCUMENTS:
            return Lines(kept, touched, (rule, new[:80]))
        if rule or new is not line:
            touched[number] = rule or "citations"
        kept.append(None if rule else new)
    return Lines(kept, touched, None)


def _without_citations(line: str) -> str:
    if not _CITATION.search(line):
        return line
    # The blank before a final citation stays, so such lines fail the next rule, as in C4's code.
    return _BLANKS.sub(" ", _CITATION.sub("", line))


def _has_long_word(line: str, limit: int) -> bool:
    """Whether a word is longer than the limit, by jumping from space to space."""
    start = 0
    while start + limit < len(line):
        space = line.rfind(" ", start, start + limit + 1)
        if space < 0:
            return True
        start = space + 1
    return False


def _phrase(line: str, rules: C4) -> str:
    lower = line.lower()
    if rules.lorem_ipsum and "lorem ipsum" in lower:
        return "lorem_ipsum"
    if rules.javascript and "javascript" in lower:
        return "javascript"
    if rules.curly_bracket and "{" in line:
        return "curly_bracket"
    if rules.policy and any(phrase in lower for phrase in _POLICY):
        return "policy"
    return ""


def fineweb(lines: Sequence[str], newlines: int, words: int, rules: FineWeb) -> Drop | None:
    """The rule that drops a document with these lines (none blank), line breaks and words."""
    count = len(lines)
    if not count or not words:
        return None
    ended = sum(line[-1] in TERMINAL for line in lines)
    if ended / count < rules.min_terminal_lines:
        return "min_terminal_lines", f"{ended} of {count} lines end in punctuation"
    short = sum(len(line) <= rules.short_line for line in lines)
    if short / count > rules.max_short_lines:
        return "max_short_lines", f"{short} of {count} lines are short"
    chars, total = repeated(lines)[1], sum(map(len, lines))
    if chars / total > rules.max_duplicate_characters:
        return "max_duplicate_characters", f"{chars} of {total} characters in repeated lines"
    if newlines / words > rules.max_newlines:
        return "max_newlines", f"{newlines} line breaks for {words} words"
    return None
