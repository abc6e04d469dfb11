"""The Gopher rules (Rae et al. 2021, tables A1 and A2), over a whole batch of documents.

Definitions and order are those of datatrove, so that its published thresholds mean the same here.
Words are our tokens. For the quality rules they are counted as datatrove's tokeniser would split
them (`countable.py`). Decisions are exact and depend on one document alone.

Repeated n-grams are the expensive part: as written, the rules take nine passes over all words. Here
two cheap passes over a batch give upper bounds, and the exact count runs only where a bound is
above its threshold, which is rare in prose:

- no 3- or 4-gram occurs more often than the most frequent 2-gram;
- repeated n-grams of more than 5 words consist of repeated 5-grams, so they have no more
  characters.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from elmwright.pipeline.cleaning.document import Drop
from elmwright.pipeline.cleaning.tokens import Tokens
from elmwright.pipeline.config import GopherQuality, GopherRepetition
from elmwright.pipeline.format.lanes import keyed_hash

QUALITY = (
    "min_words",
    "max_words",
    "min_word_length",
    "max_word_length",
    "max_symbol_share",
    "max_bullet_lines",
    "max_ellipsis_lines",
    "min_letter_words",
    "min_stop_words",
)
REPETITION = (
    "max_duplicate_paragraphs",
    "max_duplicate_paragraph_characters",
    "max_duplicate_lines",
    "max_duplicate_line_characters",
    "max_top_ngrams",
    "max_duplicate_ngrams",
)

_FACTORS = np.array([keyed_hash(20211208, n) | 1 for n in range(6)], np.uint64)
"""Odd random factors that hash an n-gram of up to 5 words: one per word, one for its document."""


def quality(texts: Sequence[str], tokens: Tokens, rules: GopherQuality) -> list[Drop | None]:
    """The rule that drops each document, or None. A document without words passes."""
    if tokens.counts is None:
        raise ValueError("the Gopher quality rules need tokens read with their counts")
    rows = np.column_stack([tokens.counts, _stop_words(tokens)]).tolist()
    documents = zip(texts, rows, strict=True)
    return [_judge(text, rules, *row) if row[0] else None for text, row in documents]


def _stop_words(tokens: Tokens) -> NDArray[np.int64]:
    """[documents] How many of the `STOP_WORDS` occur."""
    seen = np.zeros(len(tokens), np.uint8)
    nonempty = np.flatnonzero(tokens.sizes)
    if nonempty.size:
        bits = tokens.lexicon.facts.stops[tokens.ids]
        seen[nonempty] = np.bitwise_or.reduceat(bits, tokens.offsets[nonempty])
    return np.bitwise_count(seen).astype(np.int64)


def _judge(
    text: str, rules: GopherQuality, size: int, words: int, chars: int, letters: int, stops: int
) -> Drop | None:
    """The rule that drops a document, or None.

    `size` counts all words including punctuation, `words` those that are more than punctuation,
    `chars` the characters of the latter, and `letters` the words with a letter. `stops` is the
    number of distinct stop words.
    """
    if words < rules.min_words:
        return "min_words", f"{words} words"
    if words > rules.max_words:
        return "max_words", f"{words} words"
    length = chars / max(1, words)
    if length < rules.min_word_length:
        return "min_word_length", f"mean word length {length:.1f}"
    if length > rules.max_word_length:
        return "max_word_length", f"mean word length {length:.1f}"
    for symbol, count in (
        ("#", text.count("#")),
        ("ellipses", text.count("...") + text.count("…")),
    ):
        if count / size > rules.max_symbol_share:
            return "max_symbol_share", f"{count} {symbol} in {size} words"
    lines = text.count("\n") + 1
    bullets = text.count("\n•") + text.count("\n-") + text.startswith(("•", "-"))
    if bullets / lines > rules.max_bullet_lines:
        return "max_bullet_lines", f"{bullets} of {lines} lines are bullets"
    ends = text.count("...\n") + text.count("…\n") + text.endswith(("...", "…"))
    if ends / lines > rules.max_ellipsis_lines:
        return "max_ellipsis_lines", f"{ends} of {lines} lines end in an ellipsis"
    if letters / size < rules.min_letter_words:
        return "min_letter_words", f"{letters} of {size} words hold a letter"
    if stops < rules.min_stop_words:
        return "min_stop_words", f"{stops} stop words"
    return None


def repetition(texts: Sequence[str], tokens: Tokens, rules: GopherRepetition) -> list[Drop | None]:
    """The rule that drops each document, or None. A document without words passes."""
    drops = [_repeated_lines(text, rules) for text in texts]
    lengths = np.array([max(1, len(text)) for text in texts], np.int64)
    suspects = _may_exceed_top_ngrams(tokens, lengths, rules.max_top_ngrams)
    if rules.max_duplicate_ngrams:
        suspects |= _repeated_chars_bound(tokens) > lengths * min(rules.max_duplicate_ngrams)
    for number in np.flatnonzero(suspects).tolist():
        if drops[number] is None:
            ids = tokens.ids[tokens.offsets[number] : tokens.offsets[number + 1]]
            sizes = tokens.lexicon.facts.chars[ids].tolist()
            drops[number] = _repeated_ngrams(ids.tolist(), sizes, len(texts[number]), rules)
    return drops


def _repeated_lines(text: str, rules: GopherRepetition) -> Drop | None:
    if "\n" not in text:
        return None
    lines = text.split("\n")
    if "" in lines:
        paragraphs = [part.strip("\n") for part in text.split("\n\n") if part.strip("\n")]
        lines = [line for line in lines if line]
        count, chars = repeated(paragraphs)
        if count / len(paragraphs) > rules.max_duplicate_paragraphs:
            return "max_duplicate_paragraphs", f"{count} of {len(paragraphs)} paragraphs"
        if chars / len(text) > rules.max_duplicate_paragraph_characters:
            return "max_duplicate_paragraph_characters", f"{chars} of {len(text)} characters"
    count, chars = repeated(lines)
    if count / len(lines) > rules.max_duplicate_lines:
        return "max_duplicate_lines", f"{count} of {len(lines)} lines"
    if chars / len(text) > rules.max_duplicate_line_characters:
        return "max_duplicate_line_characters", f"{chars} of {len(text)} characters"
    return None


def repeated(parts: Sequence[str]) -> tuple[int, int]:
    """How many parts are repetitions, and their characters."""
    distinct = set(parts)
    if len(distinct) == len(parts):
        return 0, 0
    return len(parts) - len(distinct), sum(map(len, parts)) - sum(map(len, distinct))


def _grams(tokens: Tokens, n: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Where the n-grams of all documents begin, grouped by document and n-gram, and whether each
    equals the one before it."""
    windows = tokens.ids.size - n + 1
    if windows < 1:
        return np.zeros(0, np.int64), np.zeros(0, bool)
    owners = tokens.owners
    keys = owners[:windows].astype(np.uint64) * _FACTORS[n]
    for place in range(n):
        keys += tokens.ids[place : place + windows].astype(np.uint64) * _FACTORS[place]
    # Hash in the upper bits, place in the lower: a plain sort instead of an argsort.
    bits = np.uint64(windows.bit_length())
    keys >>= bits
    keys <<= bits
    keys |= np.arange(windows, dtype=np.uint64)
    keys = keys[owners[:windows] == owners[n - 1 :]]
    keys.sort()
    places = (keys & ((np.uint64(1) << bits) - np.uint64(1))).astype(np.int64)
    keys >>= bits
    again = np.zeros(keys.size, bool)
    again[1:] = keys[1:] == keys[:-1]
    return places, again


def _may_exceed_top_ngrams(
    tokens: Tokens, lengths: NDArray[np.int64], limits: tuple[float, ...]
) -> NDArray[np.bool_]:
    """[documents] Whether the most frequent 2-, 3- or 4-gram may have too many characters.

    No n-gram occurs more often than the most frequent 2-gram, and none is longer than the longest
    word n times over, so few documents need a closer look.
    """
    suspects = np.zeros(len(tokens), bool)
    if not limits:
        return suspects
    counts, chars = _top(tokens, 2)
    suspects |= chars > lengths * limits[0]
    longest = tokens.largest(tokens.lexicon.facts.chars[tokens.ids])
    for n, limit in enumerate(limits[1:], 3):
        near = np.flatnonzero(counts * (n * longest + n - 1) > lengths * limit)
        near = near[~suspects[near]]
        suspects[near] = _top(tokens.take(near), n)[1] > lengths[near] * limit
    return suspects


def _top(tokens: Tokens, n: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """[documents] How often the most frequent n-gram occurs, and the largest number of characters
    that all occurrences of one n-gram have together."""
    places, again = _grams(tokens, n)
    firsts = np.flatnonzero(~again)
    counts = np.diff(firsts, append=places.size)
    places = places[firsts]
    running = np.concatenate(
        [[0], np.cumsum(tokens.lexicon.facts.chars[tokens.ids], dtype=np.int64)]
    )
    chars = (running[places + n] - running[places] + n - 1) * counts
    most, best = np.zeros((2, len(tokens)), np.int64)
    np.maximum.at(most, tokens.owners[places], counts)
    np.maximum.at(best, tokens.owners[places], chars)
    return most, best


def _repeated_chars_bound(tokens: Tokens, n: int = 5) -> NDArray[np.int64]:
    """[documents] Characters of words in n-grams that occur earlier in the document: an upper bound
    of `_repeated_chars` for n and more words."""
    places, again = _grams(tokens, n)
    covered = np.zeros(tokens.ids.size, bool)
    for place in range(n):
        covered[places[again] + place] = True
    return tokens.total(np.where(covered, tokens.lexicon.facts.chars[tokens.ids], 0))


def _repeated_ngrams(
    words: list[int], sizes: list[int], length: int, rules: GopherRepetition
) -> Drop | None:
    """The n-gram rule that drops a document, by exact counts. `words` are numbers, `sizes` their
    characters. The top n-gram is the first of the most frequent ones."""
    chars = dict(zip(words, sizes, strict=True))
    for n, limit in enumerate(rules.max_top_ngrams, 2):
        grams = Counter(zip(*(words[start:] for start in range(n)), strict=False))
        for gram, count in grams.most_common(1):
            share = (sum(chars[word] for word in gram) + n - 1) * count / length
            if share > limit:
                return "max_top_ngrams", f"{share:.2f} of the characters are one {n}-gram"
    for n, limit in enumerate(rules.max_duplicate_ngrams, 5):
        share = _repeated_chars(words, chars, n) / length
        if share > limit:
            return "max_duplicate_ngrams", f"{share:.2f} of the characters in repeated {n}-grams"
    return None


def _repeated_chars(words: list[int], chars: dict[int, int], n: int) -> int:
    """Characters in repeated n-grams, found from left to right without overlap."""
    seen: set[tuple[int, ...]] = set()
    total = place = 0
    while place <= len(words) - n:
        gram = tuple(words[place : place + n])
        if gram in seen:
            total += sum(chars[word] for word in gram)
            place += n
        else:
            seen.add(gram)
            place += 1
    return total
