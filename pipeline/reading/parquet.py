"""Documents out of Parquet: one column, some row groups, a few hundred rows at a time.

The column is read as bytes, because Parquet does not guarantee valid UTF-8. Memory is bounded by a
page and `ROWS` values. A column that expands like a decompression bomb is refused by its metadata.
"""

from collections.abc import Iterator
from typing import Any

from elmwright.pipeline.errors import UserError
from elmwright.pipeline.reading import decode
from elmwright.pipeline.reading.record import DAMAGED, NO_FIELD, Broken, Record, too_large
from elmwright.pipeline.reading.sources import Piece, SourceFile
from elmwright.pipeline.storage.files import at

ROWS = 256
"""Rows in memory at a time."""


def rows(piece: Piece, limit: int) -> Iterator[Record]:
    """The rows of the row groups of a piece."""
    import pyarrow as pa
    from pyarrow import parquet

    with at(piece.file.path).reading() as stream:
        watched = decode.WatchedFile(stream)
        row = 0
        try:
            table = parquet.ParquetFile(pa.PythonFile(watched, "r"))
            groups = table.metadata.num_row_groups
            numbers = range(piece.begin, groups if piece.end < 0 else piece.end)
            column = _column(table, piece.file)
            row = sum(table.metadata.row_group(n).num_rows for n in range(piece.begin))
            for number in numbers:
                _check_expansion(table.metadata.row_group(number).column(column), row)
                batches = table.iter_batches(ROWS, [number], [piece.file.text_field])
                for batch in batches:
                    watched.check()
                    yield from _documents(batch.column(0), row, piece.file.encoding, limit)
                    row += len(batch)
        except (pa.ArrowException, OSError, ValueError) as error:
            watched.check()
            raise Broken(DAMAGED, str(error)[:200], row) from error


def _column(table: Any, file: SourceFile) -> int:
    """The number of the text column."""
    import pyarrow as pa

    schema = table.schema_arrow
    kinds = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.string_view())
    if file.text_field in schema.names:
        kind = schema.field(file.text_field).type
        if (kind.value_type if pa.types.is_dictionary(kind) else kind) in kinds:
            paths = [table.schema.column(n).path for n in range(len(table.schema))]
            return paths.index(file.text_field)
        raise UserError(
            "source",
            f'the column "{file.text_field}" of {file.path} is {kind} and not text; set '
            "corpus.text_field to a column of text",
        )
    raise UserError(
        "source",
        f'{file.path} has no column "{file.text_field}"; set corpus.text_field to one of '
        f"{', '.join(schema.names[:30])}",
    )


def _check_expansion(column: Any, row: int) -> None:
    out, stored = column.total_uncompressed_size, column.total_compressed_size
    if out > decode.BOMB_BYTES and out > decode.BOMB_RATIO * stored:
        raise Broken("expands suspiciously", f"{stored} bytes give {out}", row)


def _documents(column: Any, row: int, encoding: str, limit: int) -> Iterator[Record]:
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    for offset, raw in enumerate(column.cast(pa.large_binary()).to_pylist(), row):
        if raw is None:
            yield Record(offset, None, NO_FIELD, "the value is missing")
        elif len(raw) > limit:
            yield too_large(offset, raw, len(raw))
        else:
            text, repaired = decode.decode(raw, encoding)
            yield Record(offset, text, repaired=repaired)
