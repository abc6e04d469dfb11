"""Blocks of made-up words."""

from elmwright.pipeline.format.block import Block
from tests.support.corpus.plain_packing import pack


def some_blocks(count: int = 30) -> list[Block]:
    sentences = [(n // 3, [f"w{n * k % 41}" for k in range(1, n % 9 + 2)]) for n in range(count)]
    return list(pack(sentences, {f"w{n}": n + 3 for n in range(30)}, 24))
