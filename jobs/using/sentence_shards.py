"""`elmwright.shards`: the sentences of a corpus, for people who train something else on them."""

from pathlib import Path
from typing import TYPE_CHECKING

from elmwright.jobs.runbook.find_corpus import corpus_of
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.format.loader import BUFFER, sentence_pipeline

if TYPE_CHECKING:
    from webdataset import FluidWrapper


def shards(
    path: str | Path,
    split: str = "train",
    *,
    shuffle: int | bool = BUFFER,
    seed: int = 0,
    epoch: int = 0,
    documents: bool = False,
) -> "FluidWrapper":
    """A `webdataset` pipeline of the sentences of one split: `for words in shards("runs/demo")`.

    `path` is a corpus folder, a run (its folder, its name in `runs/` or its config), or the `s3://`
    or `gs://` URL of either. An item is a list of words; with `documents`, a dict of `words` and
    `document`, a number that is unique in the split. A sentence of more than
    `shards.block_steps` - 1 words comes in pieces, as it does in training. There is no padding.

    One pass gives every sentence once. Nodes (`RANK` and `WORLD_SIZE`, or `torch.distributed`) and
    the workers of a `DataLoader` share them out by blocks: the shares of two nodes differ by at
    most one block. A worker without a block gives nothing. More nodes than blocks are an error.

    `shuffle` is the size of the buffer of sentences, which comes after shuffled shards and blocks;
    0 or False keeps the order of the corpus. The order depends only on `seed`, `epoch` and how many
    share. Each pass over the same pipeline takes the next epoch. The workers of a `DataLoader`
    begin with `epoch` again unless they are persistent: make a new pipeline per epoch.
    """
    size = BUFFER if shuffle is True else int(shuffle)
    if size < 0 or epoch < 0:
        raise UserError("input", "shuffle and epoch must be 0 or more")
    return sentence_pipeline(
        corpus_of(str(path)), split, shuffle=size, seed=seed, epoch=epoch, documents=documents
    )
