"""Words as rows of character ids, the input of the token encoder.

A word is its UTF-8 bytes, cut to `max_chars - 2`, framed by begin- and end-of-word and padded. Ids
are the *stored* ones of the published models everywhere in Elmwright: byte + 1, and 0 for "no word
at all" (a padding position of a batch), 262 symbols. A training run of bilm-tf numbers them from 0
without the mask (261 symbols). Only `bilm_format.py` deals with that difference.

Characters that UTF-8 cannot encode (lone surrogates) are left out of a word, as in both reference
implementations. Whole lists are converted without a Python loop over characters: about 1.5 M
words/s on one core.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

CharIds = npt.NDArray[np.int16]

BOS, EOS, BOW, EOW, PAD = 257, 258, 259, 260, 261
N_CHARS = 262
"""Symbols in the stored numbering, the mask (0) included."""

BEGIN_SENTENCE, END_SENTENCE = "<S>", "</S>"
SENTENCE_MARKS = {BEGIN_SENTENCE: BOS, END_SENTENCE: EOS}


def char_ids(words: Sequence[str], max_chars: int, widest: int | None = None) -> CharIds:
    """One row of `max_chars` ids for each word; `<S>` and `</S>` become the sentence marks.

    With `widest`, the width of the encoder's widest filter, rows are only as long as the longest
    word needs. The encoder computes the same from them, and a model that allows long words costs no
    more than the words of the text.
    """
    if max_chars < 3:
        raise ValueError(f"max_chars is {max_chars}; a word needs at least 3 (begin, byte, end)")
    encoded = [word.encode("utf-8", "ignore")[: max_chars - 2] for word in words]
    sizes = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded))
    length = max_chars
    if widest is not None:
        length = min(max_chars, max(int(sizes.max(initial=1)), 1) + 2 + widest)
    ids = np.full((len(encoded), length), PAD, dtype=np.int16)
    ids[:, 0] = BOW

    row = np.repeat(np.arange(len(encoded)), sizes)
    within = np.arange(len(row)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    ids[row, within + 1] = np.frombuffer(b"".join(encoded), dtype=np.uint8).astype(np.int16) + 1
    ids[np.arange(len(encoded)), sizes + 1] = EOW

    for position, word in enumerate(words):
        if word in SENTENCE_MARKS:
            ids[position] = PAD
            ids[position, :3] = BOW, SENTENCE_MARKS[word], EOW
    return ids
