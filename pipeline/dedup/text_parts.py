"""Tables of text between two stages: Arrow IPC, in buckets, so that a range is read alone.

A *part* is a table of cleaned documents of at most `PART_BYTES` of text. A cleaned document is one
string: its lines are sentences, its words are separated by one space. Tables that a later stage
takes ranges of are sorted by a 64-bit column and written as `BUCKETS` record batches by its top
bits: whoever needs a range reads only the batches it lies in, from a disk or an object store.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow
from numpy.typing import NDArray

from elmwright.pipeline.storage.files import at
from elmwright.pipeline.storage.untrusted import read_row

PART_BYTES = 64_000_000
BUCKETS = 64
TOP = 58
"""Bits below those that choose the bucket."""

LINES = "lines"

Columns = dict[str, NDArray[Any]]
"""Columns of numbers."""


def table_of(
    columns: Mapping[str, NDArray[Any]],
    texts: Sequence[str],
    lines: Sequence[Sequence[int]] | None = None,
) -> Any:
    """An Arrow table of numbers, a column `text` and, if given, a column of lists `lines`."""
    arrays = {name: pyarrow.array(np.ascontiguousarray(c)) for name, c in columns.items()}
    arrays["text"] = pyarrow.array(texts, pyarrow.large_string())
    if lines is not None:
        arrays[LINES] = pyarrow.array(lines, pyarrow.large_list(pyarrow.uint32()))
    return pyarrow.table(arrays)


def save(path: str, table: Any) -> None:
    """Write a table as it is."""
    with at(path).writing() as file, pyarrow.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def save_buckets(
    path: str,
    columns: Mapping[str, NDArray[Any]],
    texts: Sequence[str],
    text_of: NDArray[np.int64],
    key: str,
) -> None:
    """Write a table sorted by the 64-bit column `key`, a record batch for each bucket.

    Row n has the text `texts[text_of[n]]`; a text that many rows share is held once.
    """
    edges = np.searchsorted(columns[key], np.arange(1, BUCKETS, dtype=np.uint64) << np.uint64(TOP))
    schema = table_of({name: column[:0] for name, column in columns.items()}, []).schema
    with at(path).writing() as file, pyarrow.ipc.new_file(file, schema) as writer:
        for begin, end in pairwise([0, *edges.tolist(), len(text_of)]):
            mine = {name: column[begin:end] for name, column in columns.items()}
            of = [texts[place] for place in text_of[begin:end].tolist()]
            (batch,) = table_of(mine, of).to_batches() or [_no_rows(schema)]
            writer.write_batch(batch)


def _no_rows(schema: Any) -> Any:
    return pyarrow.RecordBatch.from_pylist([], schema=schema)


def load(path: str) -> tuple[Columns, list[str]]:
    """All columns and texts of a table."""
    with at(path).arrow_file() as file:
        return _columns(pyarrow.ipc.open_file(file).read_all())


def load_between(path: str, key: str, begin: int, end: int) -> tuple[Columns, list[str]]:
    """The rows of a sorted table whose `key` is in [begin, end)."""
    return _columns(table_between(path, key, begin, end))


def table_between(path: str, key: str, begin: int, end: int) -> Any:
    """The same as an Arrow table."""
    with at(path).arrow_file() as file:
        reader = pyarrow.ipc.open_file(file)
        buckets = range(begin >> TOP, min(BUCKETS - 1, (end - 1) >> TOP) + 1)
        table = pyarrow.Table.from_batches([reader.get_batch(n) for n in buckets], reader.schema)
        column = table[key].combine_chunks().to_numpy()
        first = int(np.searchsorted(column, np.uint64(begin)))
        # The end of the last range is 2**64, which no 64-bit number can be.
        whole = end >= 1 << 64
        last = len(column) if whole else int(np.searchsorted(column, np.uint64(end)))
        return table.slice(first, last - first)


def _columns(table: Any) -> tuple[Columns, list[str]]:
    columns = {n: table[n].to_numpy() for n in table.column_names if n not in ("text", LINES)}
    return columns, table["text"].to_pylist()


def load_lines(path: str) -> list[list[int]]:
    """For every document of a part, the number of sentences of each of its lines."""
    with at(path).arrow_file() as file:
        lines: list[list[int]] = pyarrow.ipc.open_file(file).read_all()[LINES].to_pylist()
        return lines


def save_index(path: str, index: NDArray[np.void]) -> None:
    """Write a structured array as .npy."""
    with at(path).writing() as file:
        np.lib.format.write_array(file, index, version=(1, 0), allow_pickle=False)


def load_index(path: str) -> NDArray[np.void]:
    """Read a structured array."""
    try:
        index: NDArray[np.void] = read_row(at(path).read_bytes(), "V")
    except ValueError as error:
        raise ValueError(f"{path} is {error}") from error
    return index
