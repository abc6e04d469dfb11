"""Words as other libraries give them: what a model cannot have seen in its corpus."""

from collections.abc import Sequence

from elmwright.pipeline.errors import UserError


def inner_space(words: Sequence[str]) -> str:
    """What is wrong with the first word that has a space in it, or nothing if none has."""
    for place, word in enumerate(words):
        if any(character.isspace() for character in word):
            return (
                f"word {place} is {word!r:.60}, with a space inside, which no word of a corpus has"
            )
    return ""


def check_words(words: Sequence[str], cure: str) -> None:
    """Refuse a sentence with such a word; `cure` says what to do."""
    if problem := inner_space(words):
        raise UserError("input", f"{problem}; {cure}")
