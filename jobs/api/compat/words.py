"""Words as other libraries give them: what a model cannot have seen in its corpus."""

from collections.abc import Sequence


def inner_space(words: Sequence[str]) -> str:
    """A sentence about the first word that has a space in it, or nothing if none has."""
    for place, word in enumerate(words):
        if any(character.isspace() for character in word):
            return (
                f"word {place} is {word!r:.60}, with a space inside, which the words of a corpus "
                "never have; give its parts as words of their own"
            )
    return ""
