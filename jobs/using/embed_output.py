"""Writes files of vectors, sentence by sentence.

    .hdf5      dataset "0", "1", … (line numbers): (layers, words, width), as in bilm-tf
    .parquet   a row per sentence: line, tokens, shape [layers, words, width], vectors
    .npz       array "0", "1", …: the same arrays for `numpy.load`, without pickle

Numbers are float32, or float16 in half the space. The same vectors give the same bytes. HDF5 and
Parquet are written in bounded memory. npz, a zip, keeps a directory of its entries (about half a
kilobyte per sentence) until it is closed, so corpora belong in the other two.
"""

import zipfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from elmwright.pipeline.errors import UserError

Vectors = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.float32] | npt.NDArray[np.float16]
Add = Callable[[int, list[str], Numbers], None]
"""Line number, words, vectors (layers, words, width)."""

SUFFIXES = {".hdf5": "hdf5", ".h5": "hdf5", ".parquet": "parquet", ".npz": "npz"}
FORMATS = ("hdf5", "parquet", "npz")
DTYPES = ("float32", "float16")
ROW_GROUP_FLOATS = 1 << 22
"""Numbers in a Parquet row group: 16 MB, unless a single sentence has more."""


def output_format(path: Path, kind: str | None) -> str:
    """The format `kind`, or by default the one of the path's suffix."""
    kind = kind or SUFFIXES.get(path.suffix.lower())
    if kind is None:
        endings = ", ".join(SUFFIXES)
        raise UserError(
            "argument", f"{path.name} ends in none of {endings}; add --format {'|'.join(FORMATS)}"
        )
    return kind


def as_type(vectors: Vectors, dtype: str) -> Numbers:
    """The vectors in another type; UserError if one of its numbers is too large for that."""
    with np.errstate(over="ignore"):
        numbers: Numbers = vectors.astype(dtype, copy=False)
    if dtype != "float32" and not np.isfinite(numbers).all():
        raise UserError(
            "argument", f"a vector has a number that {dtype} cannot hold; leave out --dtype"
        )
    return numbers


def vectors_file(path: Path, kind: str, dtype: str = "float32") -> AbstractContextManager[Add]:
    """Create a file of vectors; the context is a function that adds a sentence."""
    if kind == "parquet":
        return _parquet(path, dtype)
    return {"hdf5": _hdf5, "npz": _npz}[kind](path)


@contextmanager
def _hdf5(path: Path) -> Iterator[Add]:
    import h5py

    with h5py.File(path, "w") as file:

        def add(line: int, _tokens: list[str], vectors: Numbers) -> None:
            file.create_dataset(str(line), data=vectors, track_times=False)

        yield add


@contextmanager
def _npz(path: Path) -> Iterator[Add]:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as file:

        def add(line: int, _tokens: list[str], vectors: Numbers) -> None:
            entry = zipfile.ZipInfo(f"{line}.npy")  # dated 1980: the same bytes every time
            with file.open(entry, "w", force_zip64=True) as member:
                np.lib.format.write_array(member, vectors, allow_pickle=False)

        yield add


@contextmanager
def _parquet(path: Path, dtype: str) -> Iterator[Add]:
    import pyarrow as pa
    from pyarrow import parquet

    schema = pa.schema(
        [
            ("line", pa.int64()),
            ("tokens", pa.list_(pa.string())),
            ("shape", pa.list_(pa.int32())),
            ("vectors", pa.list_(pa.from_numpy_dtype(np.dtype(dtype)))),
        ]
    )
    rows: list[tuple[int, list[str], Numbers]] = []

    def table() -> Any:
        ends = np.cumsum([0, *(vectors.size for _, _, vectors in rows)])
        flat = np.concatenate([vectors.ravel() for _, _, vectors in rows])
        columns = [
            pa.array([line for line, _, _ in rows], pa.int64()),
            pa.array([tokens for _, tokens, _ in rows], pa.list_(pa.string())),
            pa.array([vectors.shape for _, _, vectors in rows], pa.list_(pa.int32())),
            pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.array(flat)),
        ]
        return pa.Table.from_arrays(columns, schema=schema)

    # Vectors do not compress, and their values do not repeat.
    options = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    with parquet.ParquetWriter(path, schema, **options) as file:

        def add(line: int, tokens: list[str], vectors: Numbers) -> None:
            rows.append((line, tokens, vectors))
            if sum(vectors.size for _, _, vectors in rows) >= ROW_GROUP_FLOATS or (
                len(rows) >= 4096
            ):
                file.write_table(table())
                rows.clear()

        yield add
        if rows:
            file.write_table(table())
