"""Reads files that may be damaged or hostile, without trusting the sizes they claim.

A few bytes can claim anything: 10⁹ layers in a JSON number, 10¹² rows in an npy header, a terabyte
in a sparse file, brackets nested a million deep. So the size of a file is checked before it is
read, JSON that is not an object is a UserError, and an array must have the length its header says.

The limits here are far above what this program writes. The sizes in a model or a corpus have no
fixed limit: the code that reads them compares them with the sizes of the files.
"""

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from tokenize import TokenError
from typing import TYPE_CHECKING, Any

from elmwright.pipeline.errors import UserError
from elmwright.pipeline.storage.disk import explained
from elmwright.pipeline.storage.files import at
from elmwright.pipeline.storage.location import JSON_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

TEXT_BYTES = 1 << 30
"""Size limit of a vocabulary file: about a hundred million words."""
LINE_BYTES = 1 << 20
"""Size limit of a line in a vocabulary file."""
_HEADER_ERRORS = (
    ValueError,
    KeyError,
    TypeError,
    RecursionError,
    MemoryError,
    OSError,
    TokenError,
)
"""The exceptions of numpy for an invalid header, which it parses as Python."""
_PLAIN_ROW = re.compile(
    rb"\x93NUMPY\x01\x00(?P<length>..)\{'descr': '(?P<type>[<|][iu][1248])', "
    rb"'fortran_order': False, 'shape': \((?P<rows>\d{1,18}),\), \} *\n",
    re.DOTALL,
)
"""The header of a row of integers (an array of one dimension) as numpy has always written it. It is
matched here because numpy uses Python's parser, which in CPython 3.11 may fail with a SystemError
when several threads use it at once, and several threads read blocks."""
COPY_AGAIN = "copy it again from its source"


def read_small(path: str | Path, limit: int = JSON_BYTES) -> bytes:
    """The content of a file of at most `limit` bytes."""
    stat = at(path).stat()
    if stat is not None and stat.bytes > limit:
        raise UserError(
            "file-damaged",
            f"{path} has {stat.bytes:,} bytes, too many for such a file; {COPY_AGAIN}",
        )
    try:
        with explained(Path(path)):
            data = at(path).read_up_to(limit)
    except OSError as error:
        raise UserError(
            "file-unreadable", f"{path} cannot be read: {error.strerror or error}; {COPY_AGAIN}"
        ) from error
    if len(data) > limit:
        raise UserError(
            "file-damaged",
            f"{path} has more than {limit:,} bytes, too many for such a file; {COPY_AGAIN}",
        )
    return data


def parse_object(data: bytes, where: str | Path, advice: str = COPY_AGAIN) -> dict[str, Any]:
    """The JSON object in `data`; UserError if it is anything else."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UserError("file-damaged", f"{where} is not JSON ({error}); {advice}") from error
    if not isinstance(content, dict):
        raise UserError("file-damaged", f"{where} is not a JSON object; {advice}")
    return content


def read_object(path: str | Path, limit: int = JSON_BYTES) -> dict[str, Any]:
    """The object in a JSON file of at most `limit` bytes; UserError if it is anything else."""
    return parse_object(read_small(path, limit), path)


def read_words(path: str | Path) -> list[str]:
    """The lines of a UTF-8 file. Only a newline ends a line: words may contain other separators."""
    stat = at(path).stat()
    if stat is not None and stat.bytes > TEXT_BYTES:
        raise UserError(
            "file-damaged",
            f"{path} has {stat.bytes:,} bytes, too many for a list of words; {COPY_AGAIN}",
        )
    data = bytearray()
    with at(path).reading() as file:
        while piece := file.read(LINE_BYTES):
            if len(piece) == LINE_BYTES and b"\n" not in piece:
                raise UserError(
                    "file-damaged", f"{path} has a line of more than a megabyte; {COPY_AGAIN}"
                )
            data += piece
    try:
        return data.decode("utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise UserError(
            "file-unreadable",
            f"{path} is not UTF-8 ({error.reason} at byte {error.start}); convert it",
        ) from error


def read_row(data: bytes, kinds: str = "iu") -> "NDArray[Any]":
    """The row of integers in the bytes of an npy file; ValueError if it is anything else.

    `kinds` are numpy's letters for the types allowed. numpy itself would allocate the size in the
    header before looking at the bytes.
    """
    import numpy as np  # imported here, because `elmwright --help` must not wait for it

    if plain := _PLAIN_ROW.match(data):
        dtype, rows, begin = np.dtype(plain["type"].decode()), int(plain["rows"]), plain.end()
        if plain["length"] == (begin - 10).to_bytes(2, "little") and dtype.kind in kinds:
            if len(data) - begin != rows * dtype.itemsize:
                raise ValueError(f"not a numpy array: {len(data) - begin} bytes for {rows} rows")
            return np.frombuffer(data, dtype, rows, begin)
    file = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(file)
        readers: dict[tuple[int, int], Callable[[io.BytesIO], Any]] = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }
        shape, _, dtype = readers[version](file)
    except _HEADER_ERRORS as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"not a numpy array: {reason:.100}") from error
    if len(shape) != 1 or dtype.kind not in kinds or dtype.hasobject:
        raise ValueError("not a row of integers")
    size = len(data) - file.tell()
    if not is_int(shape[0]) or size != shape[0] * dtype.itemsize:
        raise ValueError(f"not a numpy array: {size} bytes for {shape[0]!r:.30} rows")
    return np.frombuffer(data, dtype, shape[0], file.tell())


def is_int(value: Any, least: int = 0, most: int = 2**63 - 1) -> bool:
    """Whether this is an int in a range, and not a bool."""
    return type(value) is int and least <= value <= most


def is_digest(value: Any) -> bool:
    """Whether this is a sha256 in hexadecimal, and so safe as the name of a file."""
    return isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef")
