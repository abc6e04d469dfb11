"""Warns if a text is not made of the words that a model knows.

Text in another language, or tokenised in another way (`dog.` where the model knows `dog .`), can be
embedded and scored without an error, but with poor results. So the first words that a model gets
are compared with its vocabulary.
"""

import warnings
from collections.abc import Sequence
from pathlib import Path

WORDS = 10_000
"""Words of the first sentences that are compared."""
MIN_WORDS = 10
"""Of fewer words, the share of unknown ones means little, so there is no warning."""
MAX_UNKNOWN_SHARE = 1 / 3
"""Largest share of unknown words without a warning."""


class Watch:
    """Compares the first words that a model gets, and warns at most once."""

    def __init__(self, vocab: Path | None) -> None:
        """`vocab` is the file of the words that the model knows, if there is one."""
        self._vocab = vocab
        self._known: frozenset[str] = frozenset()
        self._count = 0
        self._unknown: list[str] = []

    def stop(self) -> None:
        """Compare no more."""
        self._vocab, self._known = None, frozenset()

    def see(self, sentences: Sequence[Sequence[str]], advice: str) -> None:
        """Compare these sentences, too, if they are among the first; `advice` ends the warning."""
        if self._vocab is None:
            return
        if not self._known:
            self._known = read_known(self._vocab)
        for sentence in sentences:
            self._count += len(sentence)
            self._unknown += [word for word in sentence if word not in self._known]
        warning = unknown_warning(self._count, self._unknown, advice)
        if warning:
            warnings.warn(warning, stacklevel=4)
        if warning or self._count >= WORDS:
            self.stop()


def read_known(vocab: Path) -> frozenset[str]:
    """The words of a vocabulary file; none if it cannot be read."""
    try:
        return frozenset(vocab.read_text(encoding="utf-8").split("\n"))
    except (OSError, UnicodeDecodeError):
        return frozenset()


def unknown_warning(count: int, unknown: Sequence[str], advice: str) -> str:
    """A warning if too many of `count` words are `unknown`, else an empty string."""
    if count < MIN_WORDS or len(unknown) <= MAX_UNKNOWN_SHARE * count:
        return ""
    examples = ", ".join(repr(word) for word in dict.fromkeys(unknown[:100]))
    examples = examples[:60].rpartition(", ")[0] or examples[:60]
    return (
        f"{len(unknown) / count:.0%} of the words are unknown to the model ({examples}, …); "
        f"{advice}"
    )
