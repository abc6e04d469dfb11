"""Where a path or URL becomes a location: `/data/x.txt`, `s3://bucket/x.txt`, `gs://bucket/x.txt`."""

from pathlib import Path

from elmwright.pipeline.storage.disk import DiskLocation
from elmwright.pipeline.storage.location import Location
from elmwright.pipeline.storage.object_store import StoreLocation


def at(path: str | Path) -> Location:
    """The file or folder of this path, on a disk or in an object store."""
    path = str(path)
    return StoreLocation(path) if path.startswith(("s3://", "gs://")) else DiskLocation(path)


def join(folder: str | Path, *names: str) -> str:
    """A path below a folder."""
    return "/".join([str(folder).rstrip("/"), *names])
