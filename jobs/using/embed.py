"""`elmwright embed`: writes the layer representations of a text of any size to a file.

The text is cut at line ends into pieces of 256 KB. The vectors of each piece are written to a part
file beside the output. When all parts exist they are joined, in order, and the result is renamed to
the output. So several Ray workers can make parts at the same time, and a command that was killed
resumes from its parts if model, text and options are unchanged. This needs disk space for the
vectors twice. (Parts that were made with another number of threads differ by rounding.)

A part contains only numbers of the output's type, sentence after sentence. Their words are in the
text, which is read again when the parts are joined.

With `carry_state` a sentence depends on those before it, so the text is one piece, made by one
process, and a killed command starts again from the beginning.
"""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from elmwright.jobs.cluster.local_ray import start_local_ray
from elmwright.jobs.environment.machine_use import cores
from elmwright.jobs.registry.resolve import resolve
from elmwright.jobs.rundir.work_folder import alone_in
from elmwright.jobs.terminal.signals import stop_signals
from elmwright.jobs.using.argument_checks import check_output
from elmwright.jobs.using.embed_output import Vectors, as_type, output_format, vectors_file
from elmwright.jobs.using.layer_choice import choose_layers
from elmwright.jobs.using.text.sentences import (
    Piece,
    batches,
    is_stream,
    pieces,
    read_sentences,
    text_file,
)
from elmwright.jobs.using.text.text_lines import Reading, line_reader, split_file, warn_of_text
from elmwright.model.config import Precision
from elmwright.model.text.text_input import Pool
from elmwright.pipeline.errors import Failed, Interrupted, UserError
from elmwright.pipeline.progress import Advance, Progress, plural, silent
from elmwright.pipeline.records import to_data
from elmwright.pipeline.storage.disk import explained, sync_to_disk
from elmwright.pipeline.storage.files import at

PART_BYTES = 1 << 18
"""Bytes of text per part, about 45,000 words: the most that a kill costs each worker."""


@dataclass(frozen=True)
class Recipe:
    """How vectors are made from sentences."""

    layers: str = "all"
    """`all`, `top`, `mean`, or `mix`."""
    mix: tuple[float, ...] = ()
    """With `mix`: the weight of each layer, γ included."""
    batch_size: int = 32
    """Sentences run at a time."""
    carry_state: bool = False
    """Whether line n continues the states of line n − batch_size."""
    device: str = "cpu"
    """Where to compute."""
    dtype: str = "float32"
    """The type of the numbers in the output: one of `DTYPES`."""
    precision: Precision = "fp32"
    """What products of matrices read."""
    table: str = ""
    """A file of `elmwright fill-cache`."""
    reading: Reading = field(default_factory=Reading)
    """How lines become words."""
    pool: Pool | None = None
    """With tokenised lines: how the vectors of pieces become one for each word."""


class Embedder:
    """A model that makes parts: one in this process, or one in each Ray worker."""

    def __init__(self, folder: str, recipe: Recipe, threads: int = 0) -> None:
        import torch

        from elmwright.jobs.using.fill_cache import use_table
        from elmwright.model.inference.elmo import Elmo

        if threads:
            torch.set_num_threads(threads)
        self.recipe = recipe
        self.elmo = Elmo.from_pretrained(
            folder,
            device=recipe.device,
            carry_state=recipe.carry_state,
            precision=recipe.precision,
        )
        self.elmo.eval()
        self.elmo.text.watch.stop()  # the text is compared with the vocabulary beforehand
        self.elmo.pool = recipe.pool
        self.words = line_reader(self.elmo.text, recipe.reading)
        if recipe.table:
            use_table(self.elmo, Path(recipe.table))
        n_layers = self.elmo.bilm.config.n_layers + 1
        if recipe.layers == "mix" and len(recipe.mix) != n_layers:
            raise UserError(
                "argument", f"--mix has {len(recipe.mix)} numbers, the model {n_layers} layers"
            )
        self.n_layers = n_layers if recipe.layers == "all" else 1

    def embed_piece(
        self, text: Path, piece: Piece, part: Path, advance: Advance = lambda _n, _detail="": None
    ) -> int:
        """Write the part file of a piece, and return its size in bytes of text."""
        size, start, words = self.recipe.batch_size, time.monotonic(), 0
        exactly = size if self.recipe.carry_state else None
        with at(part).writing() as file:
            for batch, read in batches(read_sentences(text, piece, self.words), exactly):
                for vectors in self.elmo.embed(batch, batch_size=size):
                    numbers = as_type(_combine(vectors, self.recipe), self.recipe.dtype)
                    file.write(np.ascontiguousarray(numbers).data)
                words += sum(map(len, batch))
                advance(read, f"{words / (time.monotonic() - start):,.0f} words/s")
        return piece.end - piece.start


def _combine(vectors: Vectors, recipe: Recipe) -> Vectors:
    """(layers + 1, words, width) → the chosen layers, or their mix."""
    if recipe.layers == "mix":
        return np.asarray(np.tensordot(np.array([recipe.mix], np.float32), vectors, 1), np.float32)
    return choose_layers(vectors, recipe.layers)


def embed_file(
    model: str,
    source: str,
    output: Path,
    recipe: Recipe = Recipe(),  # noqa: B008 - it is frozen
    *,
    kind: str | None = None,
    workers: int = 1,
    force: bool = False,
    progress: Progress = silent,
) -> str:
    """Embed every sentence of `source` into `output`, and return a sentence about the result."""
    kind = output_format(output, kind)
    check_output(output, force)
    if recipe.batch_size < 1 or workers < 1:
        raise UserError("argument", "--batch-size and --workers must be at least 1")
    if recipe.carry_state and workers > 1:
        raise UserError(
            "argument", "--carry-state reads line after line, so it cannot use --workers"
        )
    recipe.reading.check()
    if recipe.pool and not recipe.reading.tokenized:
        raise UserError(
            "argument",
            "--pool makes one vector for each given word; add --tokenized, which says "
            "that words are separated by spaces",
        )
    folder = str(resolve(model))
    from elmwright.jobs.using.fill_cache import tensors_digest
    from elmwright.jobs.using.pretrained import choose_device

    table = str(Path(recipe.table).absolute()) if recipe.table else ""
    recipe = replace(recipe, device=choose_device(recipe.device), table=table)
    embedder = Embedder(folder, recipe)
    can_resume = not is_stream(source)  # a stream cannot be read again
    with _work_folder(output, can_resume) as work, text_file(source, work) as given:
        text = given
        if recipe.reading.split:
            text = split_file(embedder.elmo.text, given, work / "sentences.txt")
        warn_of_text(Path(folder), embedder.elmo.text, text, recipe.reading)
        size = None if recipe.carry_state else PART_BYTES
        # Before the parts are cleared: it refuses a text that is missing or empty.
        parts = {work / f"part-{n:06}": piece for n, piece in enumerate(pieces(text, size))}
        status, key = given.stat(), None
        if can_resume:
            digest = tensors_digest(embedder.elmo.bilm.state_dict())
            path, how = str(given.absolute()), to_data(embedder.elmo.text.tokenisation)
            times = status.st_size, status.st_mtime_ns
            key = PartsKey(digest, path, *times, recipe, how, PART_BYTES)
        _clear_other_parts(work, key)
        with progress("embedding", text.stat().st_size, "bytes") as advance:
            missing = {}
            for part, piece in parts.items():
                if part.exists():
                    advance(piece.end - piece.start)
                else:
                    missing[part] = piece
            if workers == 1:
                for part, piece in missing.items():
                    embedder.embed_piece(text, piece, part, advance)
            elif missing:
                _embed_on_ray(folder, recipe, text, missing, workers, advance)
        shape = embedder.n_layers, embedder.elmo.width
        lines, words = _join(
            text, embedder.words, parts, shape, work / "joined", kind, recipe.dtype
        )
        with explained(output):
            sync_to_disk(work / "joined")
            os.replace(work / "joined", output)
        shutil.rmtree(work)
    return f"wrote {output}: {plural(lines, 'sentence')}, {plural(words, 'word')}"


@contextmanager
def _work_folder(output: Path, can_resume: bool) -> Iterator[Path]:
    """The folder of parts, locked. It is kept on failure if parts can be resumed from."""
    work = output.absolute().with_name(f".{output.name}.parts")
    with alone_in(work, output):
        try:
            yield work
        finally:
            if work.is_dir() and not (can_resume and any(work.glob("part-*"))):
                shutil.rmtree(work)


@dataclass(frozen=True)
class PartsKey:
    """Everything that the parts of an interrupted command depend on."""

    model: str
    """Digest of its weights."""
    text: str
    """The path of the text."""
    size: int
    mtime_ns: int
    recipe: Recipe
    tokenisation: dict[str, Any] | None
    part_bytes: int


def _clear_other_parts(work: Path, key: PartsKey | None) -> None:
    """Remove the parts of another text or model, or of other options."""
    note = work / "key.json"
    if key is not None and at(note).read_json() == to_data(key):
        return
    note.unlink(missing_ok=True)  # first, or it would vouch for later parts
    for part in work.glob("part-*"):
        part.unlink()
    if key is not None:
        at(note).write_bytes(json.dumps(to_data(key), indent=1).encode())


def _join(
    text: Path,
    words_of: Callable[[str], list[str]],
    parts: dict[Path, Piece],
    shape: tuple[int, int],
    joined: Path,
    kind: str,
    dtype: str,
) -> tuple[int, int]:
    """Join parts into one file; return the numbers of sentences and words."""
    line = words = 0
    n_layers, width = shape
    size = np.dtype(dtype).itemsize
    with explained(joined), vectors_file(joined, kind, dtype) as add:
        for part, piece in parts.items():
            with open(part, "rb") as file:
                for sentence, _ in read_sentences(text, piece, words_of):
                    data = file.read(size * n_layers * len(sentence) * width)
                    if len(data) != size * n_layers * len(sentence) * width:
                        raise Failed(f"{part} is too short for its text; remove {part.parent}")
                    vectors = np.frombuffer(data, dtype)
                    add(line, sentence, vectors.reshape(n_layers, len(sentence), width))
                    line += 1
                    words += len(sentence)
                if file.read(1):
                    raise Failed(f"{part} is too long for its text; remove {part.parent}")
    return line, words


def _embed_on_ray(
    folder: str,
    recipe: Recipe,
    text: Path,
    missing: dict[Path, Piece],
    workers: int,
    advance: Advance,
) -> None:
    """Make parts with several processes on this machine, each with its own copy of the model."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray
    from ray.exceptions import RayActorError, RayTaskError
    from ray.util import ActorPool

    gpus = 1 if recipe.device.startswith("cuda") else 0
    if gpus:
        import torch

        workers = min(workers, torch.cuda.device_count())
    workers = min(workers, len(missing))
    threads = max(1, cores() // workers)
    try:
        start_local_ray(workers)
    except (SystemExit, KeyboardInterrupt):
        # SystemExit comes from Ray's own SIGTERM handler, before we take the signal back.
        ray.shutdown()
        raise Interrupted("while Ray was starting; the same command resumes") from None
    except Interrupted as error:
        # Not resumable: a scheduler would start it again for ever.
        reason = str(error).removeprefix("because ")
        raise Failed(f"{reason}, or use --workers 1, which needs no Ray") from error
    with stop_signals() as stop:
        stop.take()  # Ray has taken SIGTERM, and would exit with its number
    try:
        actor = ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=2, max_task_retries=2)(Embedder)
        pool = ActorPool([actor.remote(folder, recipe, threads) for _ in range(workers)])
        done = pool.map_unordered(
            lambda worker, item: worker.embed_piece.remote(text.absolute(), item[1], item[0]),
            list(missing.items()),
        )
        for size in done:
            advance(size)
    except RayTaskError as error:
        if isinstance(error.cause, UserError):
            raise error.cause from error
        raise
    except RayActorError as error:
        raise Failed(
            "the workers died repeatedly, perhaps for lack of memory; run the same command again "
            "with fewer --workers, and it resumes from the finished parts"
        ) from error
    finally:
        ray.shutdown()
