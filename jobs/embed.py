"""`elmwright embed`: the layer representations of a text, as bilm-tf dumps them.

One HDF5 dataset a sentence, key = line number from 0, shape (layers, words, 2 × projection_dim).
Sentences are read, embedded and written a batch at a time: the size of the input does not matter.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from elmwright.jobs.models import resolve
from elmwright.pipeline.errors import UserError


def embed_file(
    model: str,
    source: str,
    output: Path,
    *,
    layers: str,
    batch_size: int,
    carry_state: bool,
    force: bool,
) -> None:
    """Embed every line of `source` into the HDF5 file `output`."""
    if output.exists() and not force:
        raise UserError(f"{output} exists already; choose another name or add --force")
    if output.is_dir():
        raise UserError(f"{output} is a folder; name a file to write")
    if batch_size < 1:
        raise UserError("--batch-size must be at least 1")
    if not output.absolute().parent.is_dir():
        raise UserError(f"there is no folder {output.absolute().parent} to write {output.name} in")
    folder = resolve(model)
    import h5py

    from elmwright.model.elmo import Elmo

    elmo = Elmo.from_pretrained(folder, carry_state=carry_state)
    elmo.eval()
    beside = output.with_name(f".{output.name}.{os.getpid()}")
    lines = words = 0
    try:
        with _open(source) as text, h5py.File(beside, "w") as file:
            for batch in _batches(text, batch_size):
                vectors = elmo.embed(batch, batch_size=batch_size)
                for vector in vectors:
                    words += vector.shape[1]
                    if layers == "top":
                        vector = vector[-1:]  # noqa: PLW2901
                    elif layers == "mean":
                        vector = vector.mean(axis=0, keepdims=True)  # noqa: PLW2901
                    file.create_dataset(str(lines), data=vector, track_times=False)
                    lines += 1
        if lines == 0:
            raise UserError(f"{source} is empty; give one tokenised sentence a line")
        os.replace(beside, output)
    except UnicodeDecodeError as error:
        raise UserError(f"{source} is not UTF-8 ({error.reason}); convert it first") from error
    finally:
        beside.unlink(missing_ok=True)
    print(f"wrote {output}: {lines:,} sentences, {words:,} words")


@contextmanager
def _open(source: str) -> Iterator[TextIO]:
    if source == "-":
        sys.stdin.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
        yield sys.stdin
        return
    try:
        file = open(source, encoding="utf-8")  # noqa: SIM115 - closed below
    except OSError as error:
        raise UserError(f"{source} cannot be read: {error.strerror}") from error
    with file:
        yield file


def _batches(text: TextIO, size: int) -> Iterator[list[list[str]]]:
    batch: list[list[str]] = []
    for line in text:
        batch.append(line.split())
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch
