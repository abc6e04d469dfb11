"""Tables on disk between two stages, made so that a task can read only its range of rows.

Tables of numbers and tables of texts are stored as Arrow record batches. A *part* is a table of
cleaned documents of at most `PART_BYTES` of text. A cleaned document is one string: its lines are
sentences, its words are separated by one space. A table of which later stages read ranges is sorted
by one column, its key. The footer lists the first key of every batch, so a task reads the footer
and then the batches of its range: two requests to an object store, one if the table is small.

A table is whole or damaged: footer and batches carry their xxh3 hashes, and a file that was cut,
mixed up or changed, or that has other columns than expected, raises `DamagedError` with its name.

    record batches | schema, with key and index in its metadata | its size (8) | its xxh3 (8)

Batches and schema are Arrow IPC messages. The index has a row for each batch: its first key, where
it ends in the file, and its xxh3.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow
import xxhash
from numpy.typing import NDArray

from elmwright.pipeline.storage.files import at
from elmwright.pipeline.storage.untrusted import read_row

Table = NDArray[np.void]
"""Rows of numbers, as a structured array."""
Columns = dict[str, NDArray[Any]]
"""Columns of numbers."""

PART_BYTES = 64_000_000
RANGES = 4096
"""The most ranges that keys are divided into."""
ROWS_PER_REDUCER = 4_000_000
"""Bounds the memory of a reducer: 37 bytes per key, and sorting holds a few copies."""
END = 1 << 64
"""The end of the last range of keys."""

_TEXT = pyarrow.field("text", pyarrow.large_string())
_LINES = pyarrow.field("lines", pyarrow.large_list(pyarrow.uint32()))
_BATCHES = 128
"""The most record batches of a table of texts."""
_ROW_BATCHES = 1024
"""The most record batches of a table of rows. The index has 24 bytes for each, and is in the last
`_TAIL_BYTES`."""
_FEWEST_ROWS = 1024
"""Rows in a batch of rows, at least: each batch costs about 20 µs to write and to read."""
_TAIL_BYTES = 128 << 10
"""Bytes at the end of a file that are read first: the footer, and all of a small table."""


class DamagedError(ValueError):
    """A file of the work folder that was cut, mixed up or changed after it was written."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path

    def __str__(self) -> str:
        return f"{self.path} is damaged: {self.args[1]}"


def count_ranges(rows: int, rows_per_range: int = ROWS_PER_REDUCER) -> int:
    """How many ranges of keys to divide this many rows into: a power of two, at most `RANGES`."""
    return min(RANGES, 1 << max(0, -(-rows // rows_per_range) - 1).bit_length())


def hash_range(number: int, count: int) -> tuple[int, int]:
    """Begin and end of one of `count` equal ranges of all 64-bit hashes."""
    if not 0 <= number < count:
        raise ValueError(f"range {number} is not one of {count}")
    width = -(-END // count)
    return number * width, min((number + 1) * width, END)


def save_rows(path: str, rows: Table, key: str = "hi") -> None:
    """Write rows of numbers that are sorted by `key`, atomically."""
    keys = rows[key]
    if (keys[1:] < keys[:-1]).any():
        raise ValueError(f"{path}: the table is not sorted by {key}")
    size = max(_FEWEST_ROWS, -(-len(rows) // _ROW_BATCHES))
    field = _rows_field(rows.dtype)
    data = pyarrow.py_buffer(np.ascontiguousarray(rows).view(np.uint8))
    column = pyarrow.Array.from_buffers(field.type, len(rows), [None, data])
    whole = pyarrow.record_batch([column], pyarrow.schema([field]))
    batches = (whole.slice(begin, size) for begin in range(0, len(rows), size))
    _write(path, whole.schema, key, zip(keys[::size].tolist(), batches, strict=True))


def _rows_field(dtype: np.dtype[np.void]) -> Any:
    """The Arrow column of rows: their bytes, under a name that describes them.

    A reader takes the bytes as they are, while columns of numbers would be copied one by one.
    """
    return pyarrow.field(str(dtype.descr), pyarrow.binary(dtype.itemsize))


def load_rows(
    path: str, dtype: np.dtype[np.void], key: str = "", begin: int = 0, end: int = END
) -> Table:
    """The rows of a table of numbers, all or those whose `key` is in [begin, end)."""
    table = _read(path, key, begin, end, _rows_field(dtype))
    # numpy copies rows without columns seven times as fast.
    plain = np.dtype((np.void, dtype.itemsize))
    batches = [
        np.frombuffer(batch.column(0).buffers()[1], plain, batch.num_rows)
        for batch in table.to_batches()
    ]
    rows: Table = np.concatenate([np.zeros(0, plain), *batches])
    if key:
        # A copy, because a view would keep whole batches in memory.
        rows = rows[_places(rows.view(dtype)[key], begin, end)].copy()
    return rows.view(dtype)


def table_of_texts(texts: Sequence[str], lines: Sequence[Sequence[int]]) -> Any:
    """The Arrow table of a part: its texts, and the number of sentences in each line of a text."""
    columns = [pyarrow.array(texts, _TEXT.type), pyarrow.array(lines, _LINES.type)]
    return pyarrow.table(columns, pyarrow.schema([_TEXT, _LINES]))


def save_texts(
    path: str,
    columns: Mapping[str, NDArray[Any]],
    texts: Sequence[str],
    text_of: NDArray[np.int64],
    key: str,
) -> None:
    """Write numbers and texts that are sorted by the column `key`, atomically.

    Row n has the text `texts[text_of[n]]`, so several rows can have the same text.
    """

    def batch(begin: int, end: int) -> Any:
        numbers = {name: column[begin:end] for name, column in columns.items()}
        chosen = [texts[place] for place in text_of[begin:end].tolist()]
        return pyarrow.record_batch({**numbers, "text": pyarrow.array(chosen, _TEXT.type)})

    size = max(1, -(-len(text_of) // _BATCHES))
    begins = range(0, len(text_of), size)
    keyed = ((int(columns[key][begin]), batch(begin, begin + size)) for begin in begins)
    _write(path, batch(0, 0).schema, key, keyed)


def load_texts(
    path: str, key: str = "", begin: int = 0, end: int = END
) -> tuple[Columns, list[str]]:
    """Columns and texts of a table, all or those whose `key` is in [begin, end)."""
    table = load_table(path, key, begin, end)
    numbers = [name for name in table.column_names if name not in ("text", "lines")]
    return {name: table[name].to_numpy() for name in numbers}, table["text"].to_pylist()


def load_lines(path: str) -> list[list[int]]:
    """For every document of a part, the number of sentences in each of its lines."""
    lines: list[list[int]] = _read(path, "", 0, END, _LINES)["lines"].to_pylist()
    return lines


def save_table(path: str, table: Any) -> None:
    """Write an Arrow table that is not sorted, atomically."""
    batches = table.to_batches(max(1, -(-table.num_rows // _BATCHES)))
    _write(path, table.schema, "", ((0, batch) for batch in batches))


def load_table(path: str, key: str = "", begin: int = 0, end: int = END) -> Any:
    """A table of texts as an Arrow table: all rows, or those whose `key` is in [begin, end)."""
    table = _read(path, key, begin, end, _TEXT)
    if not key:
        return table
    places = _places(table[key].to_numpy(), begin, end)
    return table.slice(places.start, places.stop - places.start)


def _places(keys: NDArray[Any], begin: int, end: int) -> slice:
    """Where the keys in [begin, end) are among sorted keys."""
    first = int(np.searchsorted(keys, keys.dtype.type(begin)))
    # No 64-bit number can be the end of the last range.
    last = len(keys) if end >= END else int(np.searchsorted(keys, keys.dtype.type(end)))
    return slice(first, last)


def _write(path: str, schema: Any, key: str, batches: Iterable[tuple[int, Any]]) -> None:
    """Write record batches, each with its first key, and the footer."""
    index = []
    end = 0
    with at(path).writing() as file:
        for first, batch in batches:
            message = batch.serialize()
            end += message.size
            index.append((first, end, xxhash.xxh3_64_intdigest(message)))
            file.write(message)
        metadata = {"key": key, "index": np.array(index, "<u8").tobytes()}
        footer = schema.with_metadata(metadata).serialize()
        file.write(footer)
        file.write(np.array([footer.size, xxhash.xxh3_64_intdigest(footer)], "<u8").tobytes())


def _read(path: str, key: str, begin: int, end: int, column: Any) -> Any:
    """The batches of a table that may hold rows whose `key` is in [begin, end).

    A table that lacks the column `column` is damaged.
    """
    with at(path).arrow_file() as file:
        try:
            table = _read_batches(file, key, begin, end)
        except (pyarrow.ArrowException, ValueError, LookupError, OverflowError) as error:
            raise DamagedError(path, f"it is not a whole table ({error})") from error
    if column not in list(table.schema):
        raise DamagedError(path, f"it has no column {column.name!r} of type {column.type}")
    return table


def _read_batches(file: Any, key: str, begin: int, end: int) -> Any:
    tail_begin = max(0, file.size() - _TAIL_BYTES)
    file.seek(tail_begin)
    tail = file.read_buffer()
    size, digest = np.frombuffer(tail, "<u8", 2, tail.size - 16).tolist()
    footer = tail.slice(tail.size - 16 - size, size)
    schema = _parse(pyarrow.ipc.read_schema, footer, digest)
    metadata = schema.metadata or {}
    index = np.frombuffer(metadata[b"index"], "<u8").reshape(-1, 3)
    first, last = 0, len(index)
    if key:
        if metadata[b"key"] != key.encode():
            raise ValueError(f"it is not sorted by {key}")
        first = max(0, int(np.searchsorted(index[:, 0], np.uint64(begin))) - 1)
        last = last if end >= END else int(np.searchsorted(index[:, 0], np.uint64(end)))
    ends = [0, *index[:, 1].tolist()]
    if max(ends) > file.size():
        raise ValueError("it was cut")
    data_begin = ends[first]
    if data_begin >= tail_begin:
        data = tail.slice(data_begin - tail_begin)
    else:
        file.seek(data_begin)
        data = file.read_buffer(ends[last] - data_begin)
    schema = schema.remove_metadata()
    batches = []
    for number in range(first, last):
        message = data.slice(ends[number] - data_begin, ends[number + 1] - ends[number])
        batches.append(
            _parse(pyarrow.ipc.read_record_batch, message, int(index[number, 2]), schema)
        )
        batches[-1].validate()
    return pyarrow.Table.from_batches(batches, schema)


def _parse(parse: Callable[..., Any], message: Any, digest: int, *args: Any) -> Any:
    if xxhash.xxh3_64_intdigest(message) != digest:
        raise ValueError("it was changed or cut")
    try:
        return parse(message, *args)
    except OSError as error:  # of a message in memory: its content is wrong
        raise ValueError(str(error)) from error


def save_npy(path: str, rows: Table) -> None:
    """Write rows of numbers as .npy, atomically."""
    with at(path).writing() as file:
        np.lib.format.write_array(file, rows, version=(1, 0), allow_pickle=False)


def load_npy(path: str) -> Table:
    """The rows of numbers in a .npy file."""
    try:
        rows: Table = read_row(at(path).read_bytes(), "V")
    except ValueError as error:
        raise DamagedError(path, str(error)) from error
    return rows
