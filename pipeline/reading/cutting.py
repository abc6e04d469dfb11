"""Long documents cut into pieces, before anything else looks at them: `corpus.cut_documents`.

A document is the unit of shuffling, of finding copies and of holding out. Where it is a whole
novel, one in a hundred held out is one novel or none: of 15 novels, 6.6 % of the text. Pieces of a
few pages mend that, and keep nearly all of the context that a window of 20 words can use.

A piece ends where a reader would pause: after a blank line, else after a line that ends a sentence,
else after a line, a sentence or a word. Where it ends depends on the document alone, so copies of a
document are cut alike.
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
"""Where a piece may end, the best first; each expression is linear."""


def cut(text: str, limit: int) -> list[str]:
    """The text in pieces of at most `limit` characters, of about the same size; joined, the text.

    No piece is shorter than half of what its neighbours are, but for the last.
    """
    pieces = []
    begin = 0
    while len(text) - begin > limit:
        left = len(text) - begin
        size = -(-left // -(-left // limit))
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
