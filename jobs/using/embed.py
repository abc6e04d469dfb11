"""`elmwright embed`: the layer representations of a text, of any size, in a file.

The text is cut after line ends into pieces of 256 KB. Each becomes a part file beside the output,
atomically; when all are there they are joined, in order, and the output takes its name. So one
mechanism serves two purposes: several Ray workers make parts at the same time, and a command that
was killed finds its parts and resumes, if model, text and options are still the same. The price is
room on the disk for the vectors twice. (However it was made, a file holds the same vectors up to
rounding, about 1e-6: word types are encoded with those they are met with.)

A part is nothing but float32 numbers, sentence after sentence: which words they belong to is in the
text, which the join reads again.

With `carry_state` a sentence depends on those before it: the text is one piece then, made by one
process, and begun anew if it was killed.
"""

import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from elmwright.jobs.environment.machine_use import cores, starting_ray
from elmwright.jobs.registry.resolve import resolve
from elmwright.jobs.rundir.work_folder import alone_in
from elmwright.jobs.terminal.signals import stop_signals
from elmwright.jobs.using.argument_checks import check_output
from elmwright.jobs.using.embed_output import Vectors, output_format, vectors_file
from elmwright.jobs.using.layer_choice import choose_layers
from elmwright.jobs.using.sentences import (
    Piece,
    batches,
    is_stream,
    pieces,
    read_sentences,
    text_file,
)
from elmwright.jobs.using.unknown_words import warn_of_unknown
from elmwright.pipeline.errors import Failed, Interrupted, UserError
from elmwright.pipeline.progress import Advance, Progress, plural, silent
from elmwright.pipeline.records import to_data
from elmwright.pipeline.storage.disk import explained, sync_to_disk
from elmwright.pipeline.storage.files import at

PART_BYTES = 1 << 18
"""Text of a part, about 45,000 words: what a kill costs each worker at most."""


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
    table: str = ""
    """A file of `elmwright fill-cache`."""


class Embedder:
    """A model that makes parts: one in this process, or one in each Ray worker."""

    def __init__(self, folder: str, recipe: Recipe, threads: int = 0) -> None:
        import torch

        from elmwright.model.inference.elmo import Elmo

        if threads:
            torch.set_num_threads(threads)
        self.recipe = recipe
        self.elmo = Elmo.from_pretrained(
            folder, device=recipe.device, carry_state=recipe.carry_state
        )
        self.elmo.eval()
        if recipe.table:
            from elmwright.jobs.using.fill_cache import use_table

            use_table(self.elmo, Path(recipe.table))
        n_layers = self.elmo.bilm.config.n_layers + 1
        if recipe.layers == "mix" and len(recipe.mix) != n_layers:
            raise UserError(
                "argument", f"--mix has {len(recipe.mix)} numbers, the model {n_layers} layers"
            )
        self.n_layers = n_layers if recipe.layers == "all" else 1

    def digest(self) -> str:
        """The sha256 of the weights, wherever they were read from."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.elmo.bilm.state_dict().items()):
            digest.update(f"{name}{tuple(tensor.shape)}".encode())
            digest.update(tensor.cpu().contiguous().numpy().data)
        return digest.hexdigest()

    def embed_piece(
        self, text: Path, piece: Piece, part: Path, advance: Advance = lambda _n, _detail="": None
    ) -> int:
        """Write the part file of a piece; the bytes of text it had."""
        size, start, words = self.recipe.batch_size, time.monotonic(), 0
        exactly = size if self.recipe.carry_state else None
        with at(part).writing() as file:
            for batch, read in batches(read_sentences(text, piece), exactly):
                for vectors in self.elmo.embed(batch, batch_size=size):
                    file.write(np.ascontiguousarray(_chosen(vectors, self.recipe)).data)
                words += sum(map(len, batch))
                advance(read, f"{words / (time.monotonic() - start):,.0f} words/s")
        return piece.end - piece.start


def _chosen(vectors: Vectors, recipe: Recipe) -> Vectors:
    """(layers + 1, words, width) → the layers asked for, or their mix."""
    if recipe.layers == "mix":
        return np.asarray(np.tensordot(np.array([recipe.mix], np.float32), vectors, 1), np.float32)
    return choose_layers(vectors, recipe.layers)


def embed_file(
    model: str,
    source: str,
    output: Path,
    *,
    layers: str = "all",
    mix: Sequence[float] | None = None,
    gamma: float = 1.0,
    batch_size: int = 32,
    carry_state: bool = False,
    force: bool = False,
    kind: str | None = None,
    workers: int = 1,
    device: str = "cpu",
    table: str = "",
    progress: Progress = silent,
) -> str:
    """Embed every line of `source` into `output`; a sentence about what was written."""
    kind = output_format(output, kind)
    check_output(output, force)
    if batch_size < 1 or workers < 1:
        raise UserError("argument", "--batch-size and --workers must be at least 1")
    if carry_state and workers > 1:
        raise UserError(
            "argument", "--carry-state reads line after line, so it cannot use --workers"
        )
    if mix is not None:
        layers, mix = "mix", tuple(gamma * share for share in mix)
    folder = str(resolve(model))
    from elmwright.jobs.using.pretrained import choose_device

    table = str(Path(table).absolute()) if table else ""
    recipe = Recipe(layers, tuple(mix or ()), batch_size, carry_state, choose_device(device), table)
    embedder = Embedder(folder, recipe)
    once = is_stream(source)  # cannot be read again, so its parts would be of no use
    with _work_folder(output, keep=not once) as work, text_file(source, work) as text:
        warn_of_unknown(Path(folder), text)
        whole = None if carry_state else PART_BYTES
        parts = {work / f"part-{n:06}": piece for n, piece in enumerate(pieces(text, whole))}
        _keep_or_clear(work, None if once else _key(embedder, text))
        with progress("embedding", text.stat().st_size, "bytes") as advance:
            left = {}
            for part, piece in parts.items():
                if part.exists():
                    advance(piece.end - piece.start)
                else:
                    left[part] = piece
            if workers == 1:
                for part, piece in left.items():
                    embedder.embed_piece(text, piece, part, advance)
            elif left:
                _embed_on_ray(folder, recipe, text, left, workers, advance)
        shape = embedder.n_layers, embedder.elmo.width
        lines, words = _join(text, parts, shape, work / "joined", kind)
        with explained(output):
            sync_to_disk(work / "joined")
            os.replace(work / "joined", output)
        shutil.rmtree(work)
    return f"wrote {output}: {plural(lines, 'sentence')}, {plural(words, 'word')}"


@contextmanager
def _work_folder(output: Path, keep: bool = True) -> Iterator[Path]:
    """The folder of parts, for this process alone; it stays if there are parts to resume from."""
    work = output.absolute().with_name(f".{output.name}.parts")
    with alone_in(work, output):
        try:
            yield work
        finally:
            if work.is_dir() and not (keep and any(work.glob("part-*"))):
                shutil.rmtree(work)


@dataclass(frozen=True)
class PartsKey:
    """All that the parts of an interrupted command depend on."""

    model: str
    """Digest of its files."""
    text: str
    """The path of the text."""
    size: int
    mtime_ns: int
    recipe: Recipe
    part_bytes: int


def _key(embedder: Embedder, text: Path) -> PartsKey:
    status = text.stat()
    return PartsKey(
        model=embedder.digest(),
        text=str(text.absolute()),
        size=status.st_size,
        mtime_ns=status.st_mtime_ns,
        recipe=embedder.recipe,
        part_bytes=PART_BYTES,
    )


def _keep_or_clear(work: Path, key: PartsKey | None) -> None:
    """Parts of the same text, model and options stay; all others go."""
    note = work / "key.json"
    if key is not None and at(note).read_json() == to_data(key):
        return
    note.unlink(missing_ok=True)  # first: it must not vouch for what comes next
    for part in work.glob("part-*"):
        part.unlink()
    if key is not None:
        at(note).write_bytes(json.dumps(to_data(key), indent=1).encode())


def _join(
    text: Path, parts: dict[Path, Piece], shape: tuple[int, int], joined: Path, kind: str
) -> tuple[int, int]:
    """Parts → one file; its sentences and words."""
    line = words = 0
    n_layers, width = shape
    with explained(joined), vectors_file(joined, kind) as add:
        for part, piece in parts.items():
            with open(part, "rb") as file:
                for sentence, _ in read_sentences(text, piece):
                    data = file.read(4 * n_layers * len(sentence) * width)
                    if len(data) != 4 * n_layers * len(sentence) * width:
                        raise Failed(f"{part} is too short for its text; remove {part.parent}")
                    vectors = np.frombuffer(data, np.float32)
                    add(line, sentence, vectors.reshape(n_layers, len(sentence), width))
                    line += 1
                    words += len(sentence)
                if file.read(1):
                    raise Failed(f"{part} is too long for its text; remove {part.parent}")
    return line, words


def _embed_on_ray(
    folder: str, recipe: Recipe, text: Path, left: dict[Path, Piece], workers: int, advance: Advance
) -> None:
    """Parts made by several processes of this machine, each with the model in its memory."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray
    from ray.exceptions import RayActorError, RayTaskError
    from ray.util import ActorPool

    gpus = 1 if recipe.device.startswith("cuda") else 0
    if gpus:
        import torch

        workers = min(workers, torch.cuda.device_count())
    workers = min(workers, len(left))
    threads = max(1, cores() // workers)
    try:
        with starting_ray():
            ray.init(
                address="local",
                num_cpus=workers,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.WARNING,
                object_store_memory=128 * 2**20,
            )
    except (SystemExit, KeyboardInterrupt):
        # SystemExit: Ray's own SIGTERM handler, before we take the signal back.
        ray.shutdown()
        raise Interrupted("while Ray was starting; the same command resumes") from None
    except Exception as error:  # Ray raises no narrower one when its own start times out
        reason = str(error).splitlines()[0]
        raise Failed(f"Ray did not start ({reason}); --workers 1 does without it") from error
    with stop_signals() as stop:
        stop.take()  # Ray has taken SIGTERM, and would end with its number as exit code
    try:
        actor = ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=2, max_task_retries=2)(Embedder)
        pool = ActorPool([actor.remote(folder, recipe, threads) for _ in range(workers)])
        done = pool.map_unordered(
            lambda maker, item: maker.embed_piece.remote(text.absolute(), item[1], item[0]),
            list(left.items()),
        )
        for size in done:
            advance(size)
    except RayTaskError as error:
        if isinstance(error.cause, UserError):
            raise error.cause from error
        raise
    except RayActorError as error:
        raise Failed(
            "the workers died again and again, perhaps for lack of memory; the same command "
            "resumes from what is done, best with fewer --workers"
        ) from error
    finally:
        ray.shutdown()
