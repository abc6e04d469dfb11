"""The block: the unit of training data, and the contract between the corpus and the trainer.

A block is a fixed number of prediction steps K. A sentence w1…wn is n+1 steps in each direction
(forward inputs `<S> w1…wn`, targets `w1…wn </S>`; backward inputs `</S> wn…w1`, targets
`wn…w1 <S>`), and a block holds whole sentences only, because a cut sentence would need its first
words in one direction and its last in the other. The few steps left over are padding of weight 0.

A block is self-contained: it has its own table of word types (surface forms), their vocabulary ids,
and the text as indices into that table. So training handles no strings, knows the distinct words of
a block without searching, and can use another vocabulary without new shards (`remap`).

On disk a block is one WebDataset sample of six members that numpy and json can read without our
code. It takes about 10 bytes per word for K = 1280, less for larger K, most of it surface forms. On
one core, packing handles at least 2 M words/s, and reading with streams about 1,400 blocks/s.
"""

import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise, repeat

import numpy as np
from numpy.typing import NDArray

from elmwright.pipeline.config import MAX_BLOCK_STEPS
from elmwright.pipeline.storage.untrusted import is_int, read_row

BOS, EOS, UNK = "<S>", "</S>", "<UNK>"
BOS_ID, EOS_ID, UNK_ID = 0, 1, 2
FORMAT = 1
MEMBERS = ("block.json", "documents.npy", "ids.npy", "lengths.npy", "tokens.npy", "types.txt")
"""The members of a block's sample, in their order in the tar."""

Ints = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Block:
    """Whole sentences in K prediction steps, with all that is needed to read them."""

    types: tuple[str, ...]
    """Surface forms of the words: `<S>`, `</S>`, then the others in order of first appearance."""
    ids: Ints
    """[types] Vocabulary id of each type; words outside the vocabulary have the id of `<UNK>`."""
    tokens: Ints
    """[words] The text, sentence after sentence, words only, as indices into `types`."""
    lengths: Ints
    """[sentences] Words of each sentence, at least 1."""
    documents: Ints
    """[sentences] Number of each sentence's document within the shard; never decreases."""
    steps: int
    """K: prediction steps in each direction, padding included."""

    @property
    def padding(self) -> int:
        """The number of steps at the end that predict nothing."""
        return self.steps - self.tokens.size - self.lengths.size


@dataclass(frozen=True, eq=False)
class Streams:
    """A block as the trainer reads it: arrays of K indices into the block's `types`."""

    forward_inputs: Ints
    """`<S> w1…wn`, one sentence after another."""
    forward_targets: Ints
    """`w1…wn </S>`."""
    backward_inputs: Ints
    """`</S> wn…w1`, with the sentences in the same order as the forward stream."""
    backward_targets: Ints
    """`wn…w1 <S>`."""
    weights: NDArray[np.float32]
    """1 for a real step, 0 for padding (where inputs and targets are 0); for both directions."""


def sentences(block: Block) -> Iterator[list[str]]:
    """The sentences of a block as lists of words, without `<S>`, `</S>` and padding."""
    words = [block.types[token] for token in block.tokens.tolist()]
    for begin, end in pairwise([0, *np.cumsum(block.lengths).tolist()]):
        yield words[begin:end]


def streams(block: Block) -> Streams:
    """The inputs and targets of both directions, from a block's sentences."""
    lengths = block.lengths.astype(np.int64)
    n_real = int(lengths.sum()) + lengths.size
    ends = np.cumsum(lengths + 1) - 1
    starts = ends - lengths
    first = np.cumsum(lengths) - lengths
    # In a sentence of the words first…first+n-1, word p is reversed to position 2·first + n-1 - p.
    reversed_position = np.repeat(2 * first + lengths - 1, lengths) - np.arange(block.tokens.size)
    reversed_tokens = block.tokens[reversed_position]

    def lay_out(words: Ints, marks: NDArray[np.int64], mark: int) -> Ints:
        stream = np.zeros(block.steps, np.int32)
        is_word = np.zeros(block.steps, bool)
        is_word[:n_real] = True
        is_word[marks] = False
        stream[is_word] = words
        stream[marks] = mark
        return stream

    weights = np.zeros(block.steps, np.float32)
    weights[:n_real] = 1
    return Streams(
        forward_inputs=lay_out(block.tokens, starts, BOS_ID),
        forward_targets=lay_out(block.tokens, ends, EOS_ID),
        backward_inputs=lay_out(reversed_tokens, starts, EOS_ID),
        backward_targets=lay_out(reversed_tokens, ends, BOS_ID),
        weights=weights,
    )


def remap(block: Block, word_id: Mapping[str, int]) -> Block:
    """The same block with the ids of another vocabulary."""
    ids = np.fromiter(map(word_id.get, block.types, repeat(UNK_ID)), np.int32, len(block.types))
    ids[:2] = BOS_ID, EOS_ID
    return replace(block, ids=ids)


def to_members(block: Block) -> dict[str, bytes]:
    """The members of a block's WebDataset sample; equal blocks give equal bytes."""
    small = len(block.types) <= np.iinfo(np.uint16).max + 1
    members = {
        "block.json": json.dumps({"format": FORMAT, "steps": block.steps}).encode(),
        "documents.npy": _npy(block.documents),
        "ids.npy": _npy(block.ids),
        "lengths.npy": _npy(block.lengths),
        "tokens.npy": _npy(block.tokens.astype(np.uint16) if small else block.tokens),
        "types.txt": "\n".join(block.types).encode(),
    }
    if members["types.txt"].count(b"\n") != len(block.types) - 1:
        raise ValueError("a word contains a line break")
    return members


def from_members(members: Mapping[str, bytes]) -> Block:
    """The block in the members of a WebDataset sample; ValueError if they are damaged."""
    missing = [name for name in MEMBERS if name not in members]
    if missing:
        raise ValueError(f"block lacks {', '.join(missing)}")
    try:
        head = json.loads(members["block.json"])
    except RecursionError as error:
        raise ValueError(f"block.json is not JSON: {error}") from error
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise ValueError(f"block is not of format {FORMAT}: {head!r:.50}")
    if not is_int(head.get("steps"), 2, MAX_BLOCK_STEPS):
        raise ValueError(f"block.json says {head.get('steps')!r:.50} steps")
    block = Block(
        types=tuple(members["types.txt"].decode().split("\n")),
        ids=_ints(members, "ids.npy"),
        tokens=_ints(members, "tokens.npy"),
        lengths=_ints(members, "lengths.npy"),
        documents=_ints(members, "documents.npy"),
        steps=head["steps"],
    )
    _check(block)
    return block


def _check(block: Block) -> None:
    """Raise ValueError if the parts of a block contradict each other."""
    n_types = len(block.types)
    if block.types[:2] != (BOS, EOS):
        raise ValueError(f"types do not begin with {BOS} and {EOS}")
    if len(set(block.types)) != n_types or "" in block.types:
        raise ValueError("types are empty or repeated")
    if block.ids.size != n_types:
        raise ValueError(f"{block.ids.size} ids for {n_types} types")
    if tuple(block.ids[:2]) != (BOS_ID, EOS_ID) or int(block.ids[2:].min(initial=UNK_ID)) < UNK_ID:
        raise ValueError("ids out of range")
    if block.lengths.size == 0 or int(block.lengths.min()) < 1:
        raise ValueError("a sentence has no words")
    if int(block.lengths.sum(dtype=np.int64)) != block.tokens.size:
        raise ValueError(f"sentences of {block.lengths.sum()} words but {block.tokens.size} tokens")
    if int(block.tokens.min()) < 2 or int(block.tokens.max()) >= n_types:
        raise ValueError("tokens point outside the types")
    if block.documents.size != block.lengths.size:
        raise ValueError(f"{block.documents.size} document numbers, {block.lengths.size} sentences")
    if int(block.documents[0]) < 0 or bool((np.diff(block.documents) < 0).any()):
        raise ValueError("document numbers decrease")
    if block.padding < 0:
        raise ValueError(f"more text than {block.steps} steps")


def _npy(array: NDArray[np.generic]) -> bytes:
    buffer = io.BytesIO()
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    np.lib.format.write_array(buffer, little, version=(1, 0), allow_pickle=False)
    return buffer.getvalue()


def _ints(members: Mapping[str, bytes], name: str) -> Ints:
    try:
        row: Ints = read_row(members[name]).astype(np.int32)
    except ValueError as error:
        raise ValueError(f"{name} is {error}") from error
    return row
