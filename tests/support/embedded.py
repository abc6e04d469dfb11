"""A few lines of text, and a reader of their vectors that shares no code with what writes them."""

from pathlib import Path

import h5py
import numpy as np
from pyarrow import parquet

LINES = ["The cat sees the dog .", "", "bird", "café \u3000 naïve 東京", "The old house"]


def read_vectors(path: Path) -> list[np.ndarray]:
    """The vectors of each sentence, in any format, by other libraries."""
    if path.suffix == ".hdf5":
        with h5py.File(path) as file:
            return [file[str(line)][()] for line in range(len(file))]
    if path.suffix == ".npz":
        with np.load(path) as file:
            return [file[str(line)] for line in range(len(file.files))]
    rows = parquet.read_table(path).to_pylist()
    assert [row["line"] for row in rows] == list(range(len(rows)))
    return [np.array(row["vectors"], np.float32).reshape(row["shape"]) for row in rows]
