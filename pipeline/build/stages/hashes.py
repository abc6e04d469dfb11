"""The hash by which documents and sentences are shuffled, held out, sampled and weighted.

Every such decision is a function of the text's key, the run's seed and a purpose, never of the
order of arrival: so any number of workers gives the same corpus, and one decision says nothing
about another.
"""

import numpy as np
from numpy.typing import NDArray

from elmwright.pipeline.format.lanes import hash64

SHUFFLE, HELDOUT, SAMPLE, WEIGHT = 1, 2, 3, 4
"""Keep apart the hashes of the same keys for different ends."""


def mix(keys: NDArray[np.uint64], seed: int, purpose: int) -> NDArray[np.uint64]:
    """A 64-bit hash of each 128-bit key, for one purpose."""
    return hash64(hash64(keys[:, 0], seed, purpose) ^ keys[:, 1])
