"""Long documents cut into pieces before any rule is applied: `corpus.cut_documents`.

A document is the unit of shuffling, of finding copies and of holding out. Of a corpus of 15 novels,
the smallest held-out set is 6.6 % of the text. Pieces of a few pages avoid that, and keep nearly
all of the context that a window of 20 words can use.

A piece ends after a blank line, else after a line that ends a sentence, else after a line, a
sentence or a word. The cuts depend on the document alone, so copies are cut alike.
"""

import re

_ENDS = tuple(
    re.compile(pattern)
    for pattern in (
        r"\n[ \t\r]*\n\s*",
        r"[.!?…。！？][\"'”’»)\]]*[ \t\r]*\n\s*",
        r"\n\s*",
        r"[.!?…][\"'”’»)\]]*\s+|[。！？][”’」』）]*",
        r"\s+",
    )
)
"""Where a piece may end, the best first. Each expression takes linear time."""


def cut(text: str, limit: int) -> list[str]:
    """The text in pieces of at most `limit` characters and of about the same size.

    Only the last piece may be shorter than half of its neighbours.
    """
    pieces = []
    begin = 0
    while len(text) - begin > limit:
        remaining = len(text) - begin
        size = -(-remaining // -(-remaining // limit))
        end = _end(text, begin + size // 2, begin + size)
        pieces.append(text[begin:end])
        begin = end
    pieces.append(text[begin:])
    return [piece for piece in pieces if not piece.isspace()] if len(pieces) > 1 else pieces


def _end(text: str, first: int, last: int) -> int:
    """The last good end between two places."""
    for pattern in _ENDS:
        ends = [match.end() for match in pattern.finditer(text, first, last)]
        if ends:
            return ends[-1]
    return last
