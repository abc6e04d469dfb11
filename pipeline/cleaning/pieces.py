"""What sentencepiece's pieces say of the text: its characters, and the text itself.

A piece writes the space before a word as `▁`, also before the first word. A model with
`byte_fallback` spells a character that it does not know in pieces such as `<0xEC>`, one per byte.
"""

import re
from collections.abc import Sequence

SPACE = "▁"
WITHOUT_SPACES = frozenset({"zh", "ja", "th", "lo", "km", "my", "bo", "dz"})
"""Languages that are written without spaces between words."""
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_BYTES = re.compile(r"(?:<0x[0-9A-F]{2}>)+")


def characters(piece: str) -> int:
    """Characters of the text that a piece stands for. A space, which is `▁`, is one of them, and a
    character that is spelled in bytes counts with its first byte."""
    match = _BYTE.fullmatch(piece)
    if match is None:
        return len(piece)
    return int(not 0x80 <= int(match[1], 16) < 0xC0)


def text_of(pieces: Sequence[str]) -> str:
    """The sentence that pieces spell."""
    text = _BYTES.sub(_decoded, "".join(pieces))
    return " ".join(text.replace(SPACE, " ").split())


def _decoded(match: re.Match[str]) -> str:
    return bytes(int(byte, 16) for byte in _BYTE.findall(match[0])).decode("utf-8", "replace")
