"""The hash by which documents and sentences are shuffled, held out, sampled and weighted.

Every such decision is a function of the text's key, the run's seed and a purpose, never of the
order of arrival. So any number of workers gives the same corpus, and decisions are independent of
each other.
"""

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from elmwright.pipeline.format.lanes import hash64


class Purpose(IntEnum):
    """What a hash decides about. Hashes of the same key for two purposes are independent."""

    SHUFFLE = 1
    HELDOUT = 2
    SAMPLE = 3
    WEIGHT = 4


def mix(keys: NDArray[np.uint64], seed: int, purpose: Purpose) -> NDArray[np.uint64]:
    """A 64-bit hash of each 128-bit key, for one purpose."""
    return hash64(hash64(keys[:, 0], seed, purpose) ^ keys[:, 1])
