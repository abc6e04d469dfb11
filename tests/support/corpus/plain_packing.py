"""The plain way to pack sentences into blocks; `pipeline/format/packing.py` must agree with it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from elmwright.pipeline.format.block import BOS, BOS_ID, EOS, EOS_ID, UNK_ID, Block


def pack(
    sentences: Iterable[tuple[int, Sequence[str]]], word_id: Mapping[str, int], steps: int
) -> Iterator[Block]:
    """Fill blocks with (document number, words) in the order given, greedily.

    Whole sentences only: one that no longer fits opens the next block, and one of more than
    `steps` - 1 words is cut into pieces of that many. The last block is padded, never dropped. A
    sentence of no words is no sentence. The words `<S>` and `</S>` are refused: tokenising splits
    them (`words.py`), so that the marks cannot be forged by the text.
    """
    if steps < 2:
        raise ValueError("a block needs at least 2 steps")
    words: list[str] = []
    lengths: list[int] = []
    documents: list[int] = []
    for document, sentence in sentences:
        for begin in range(0, len(sentence), steps - 1):
            piece = sentence[begin : begin + steps - 1]
            if len(words) + len(lengths) + len(piece) + 1 > steps:
                yield _block(words, lengths, documents, word_id, steps)
                words, lengths, documents = [], [], []
            words.extend(piece)
            lengths.append(len(piece))
            documents.append(document)
    if lengths:
        yield _block(words, lengths, documents, word_id, steps)


def _block(
    words: list[str],
    lengths: list[int],
    documents: list[int],
    word_id: Mapping[str, int],
    steps: int,
) -> Block:
    distinct = dict.fromkeys(words)
    if BOS in distinct or EOS in distinct:
        raise ValueError(f"{BOS} and {EOS} are marks, not words")
    types = (BOS, EOS, *distinct)
    index = dict(zip(types, range(len(types)), strict=True))
    return Block(
        types=types,
        ids=np.array([BOS_ID, EOS_ID, *(word_id.get(w, UNK_ID) for w in distinct)], np.int32),
        tokens=np.fromiter(map(index.__getitem__, words), np.int32, len(words)),
        lengths=np.array(lengths, np.int32),
        documents=np.array(documents, np.int32),
        steps=steps,
    )
