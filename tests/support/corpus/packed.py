"""Ways to pack a file, and a disk that fails."""

import bz2
import gzip
import io
import lzma
from collections.abc import Callable

import pyarrow as pa


def zstd(data: bytes) -> bytes:
    return bytes(pa.compress(data, codec="zstd", asbytes=True))


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstd,
}


class Cut(io.BytesIO):
    """A file on a disk that fails after some bytes."""

    def read(self, size: int | None = -1, /) -> bytes:
        if self.tell() > 50_000:
            raise OSError(5, "Input/output error")
        return super().read(min(size or 0, 30_000) if size and size > 0 else 30_000)
