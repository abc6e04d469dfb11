"""The first large stage of a build: raw files in, cleaned and tokenised *parts* out.

No Ray here: a stage is a plain function `stage(work, out, …)` that can be run and tested alone. It
reads files named relative to `work`, writes files whose names begin with `out`, and returns names
and counts. Its output is written atomically and is the same bytes every time, so that a task that
is killed is simply run again.

`clean_chunk` is where most of the time goes. It knows nothing of other chunks, of held-out shares
or of the order of the sources: so its output stays good when those change, or when a source is
added. For a chunk it writes, for n = 000, 001, …

- `out`-n.arrow, the texts (`tables.py`), and `out`-n.npy, for each document its 128-bit key,
  its place (file of the chunk, offset), its words and the bands of its MinHash signature;
- `out`.quarantine.jsonl, `out`.decontaminated.jsonl and, if asked for, `out`-dropped-000.jsonl.zst.
"""

import atexit
import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow
import xxhash
from numpy.typing import NDArray

from elmwright.pipeline.cleaning.cleaner import Cleaned, Cleaner
from elmwright.pipeline.cleaning.funnel import BROKEN, DECONTAMINATE, READ, ZERO, Counts, Funnel
from elmwright.pipeline.config import CorpusConfig
from elmwright.pipeline.dedup import minhash, ngrams, tables
from elmwright.pipeline.dedup.keys import keys_of
from elmwright.pipeline.reading.readers import Record, read
from elmwright.pipeline.reading.sources import Chunk, SourceFile
from elmwright.pipeline.records import to_data
from elmwright.pipeline.report.statistics import Example, Gathered, gather
from elmwright.pipeline.storage.files import at, join

BATCH_BYTES = 2_000_000
"""Text that is cleaned at a time: enough for numpy, small enough for the caches."""
BATCH_DOCUMENTS = 4096
QUARANTINED = 10_000
"""Broken records a task lists one by one; all are counted."""


def index_dtype(bands: int) -> np.dtype[np.void]:
    """What is known of every document of a part."""
    return np.dtype(
        [
            ("hi", "<u8"),
            ("lo", "<u8"),
            ("file", "<u4"),
            ("offset", "<u8"),
            ("words", "<u4"),
            ("bands", "<u8", (bands,)),
        ]
    )


def read_batches(
    chunk: Chunk, config: CorpusConfig
) -> Iterator[tuple[list[tuple[int, SourceFile, Record]], list[str]]]:
    """Records with their file and its rank in the chunk, a batch at a time, and the good texts."""
    records: list[tuple[int, SourceFile, Record]] = []
    texts: list[str] = []
    size = 0
    rank = -1
    previous = ""
    for piece in chunk:
        rank += piece.file.path != previous
        previous = piece.file.path
        for record in read(piece, config):
            records.append((rank, piece.file, record))
            if record.text is not None:
                texts.append(record.text)
                size += len(record.text)
            if size > BATCH_BYTES or len(records) >= BATCH_DOCUMENTS:
                yield records, texts
                records, texts, size = [], [], 0
    if records:
        yield records, texts


@dataclass(frozen=True)
class QuarantineRow:
    """A line of quarantine.jsonl: a record that could not be read."""

    file: str
    offset: int
    problem: str
    detail: str
    beginning: str


@dataclass(frozen=True)
class SharedRow:
    """A line of decontaminated.jsonl: a document that shares an n-gram with an evaluation file."""

    file: str
    offset: int
    ngram: str


@dataclass(frozen=True)
class DroppedRow:
    """A line of a list of documents that cleaning dropped."""

    rule: str
    detail: str
    file: str
    offset: int
    text: str


@dataclass(frozen=True)
class CleanPart:
    """A part that was written: its files without their endings, and its counts."""

    name: str
    documents: int
    words: int


@dataclass(frozen=True)
class CleanChunk:
    """A cleaned chunk: its parts and its counts."""

    parts: tuple[CleanPart, ...]
    funnel: Counts
    examples: Gathered
    """Some of the dropped documents."""
    reasons: Mapping[str, int]
    """Broken records, by reason."""
    languages: Mapping[str, int]
    """Documents by language."""
    repaired: Mapping[str, int]
    """Documents changed, by repair."""
    shared: int
    """Documents that share an n-gram with an evaluation file."""
    documents: tuple[str, ...]
    """Files of dropped documents, if asked for."""
    words: int
    """Words read."""


@dataclass
class _Chunk:
    """The state of `clean_chunk` between batches."""

    funnel: Funnel = field(default_factory=Funnel)
    examples: Gathered = field(default_factory=dict)
    quarantine: list[QuarantineRow] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
    shared: list[SharedRow] = field(default_factory=list)
    dropped: list[DroppedRow] = field(default_factory=list)
    dropped_size: int = 0
    documents: list[str] = field(default_factory=list)
    languages: Counter[str] = field(default_factory=Counter)
    repaired: Counter[str] = field(default_factory=Counter)
    rows: list[tuple[int, int, str, list[int], int]] = field(default_factory=list)
    keys: list[NDArray[np.uint64]] = field(default_factory=list)
    bands: list[NDArray[np.uint64]] = field(default_factory=list)
    size: int = 0
    parts: list[CleanPart] = field(default_factory=list)


def clean_chunk(
    work: str,
    out: str,
    chunk: Chunk,
    config: CorpusConfig,
    *,
    given: bool,
    model: str | None,
    known: str | None,
    signatures: bool,
    save_dropped: bool,
) -> CleanChunk:
    """Clean and tokenise a chunk; `given` says that it is of a held-out set given as files."""
    pieces = _local_copy(work, model)
    cleaner = Cleaner(config, model=pieces, filters=not given)
    grams = ngrams.load_set(join(work, known)) if known and not given else None
    state = _Chunk()
    for records, texts in read_batches(chunk, config):
        cleaned = cleaner.clean(texts)
        state.repaired.update(cleaned.repaired)
        hits = _hits(cleaned, config, grams)
        kept = _judge(state, records, cleaned, hits, save_dropped)
        if kept:
            state.keys.append(keys_of(cleaned.words[n] for n in kept))
            if signatures:
                known_rows = np.flatnonzero([v is None for v in cleaned.verdicts])
                chosen = np.isin(known_rows, kept)
                state.bands.append(minhash.bands(cleaned.tokens, config.minhash)[chosen])
        if state.size > tables.PART_BYTES:
            _write_part(work, out, state)
        if state.dropped_size > tables.PART_BYTES:
            _write_dropped(work, out, state)
    if state.rows:
        _write_part(work, out, state)
    _write_lists(work, out, state)
    return CleanChunk(
        parts=tuple(state.parts),
        funnel=state.funnel.counts,
        examples=state.examples,
        reasons=state.reasons,
        languages=state.languages,
        repaired=state.repaired,
        shared=len(state.shared),
        documents=tuple(state.documents),
        words=state.funnel.counts.get(READ, ZERO)[2],
    )


def _local_copy(work: str, model: str | None) -> Path | None:
    """The path of the sentencepiece model on this machine."""
    if model is None:
        return None
    path = join(work, model)
    if not at(path).is_url:
        return Path(path)
    local = _scratch() / Path(model).name
    if not local.exists():
        at(local).copy_from(at(path))
    return local


@lru_cache(maxsize=1)
def _scratch() -> Path:
    """A folder of this process alone, gone with it."""
    folder = tempfile.mkdtemp(prefix="elmwright-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _hits(
    cleaned: Cleaned, config: CorpusConfig, grams: NDArray[np.uint64] | None
) -> dict[int, str]:
    """Documents that share an n-gram with an evaluation file, and the n-gram."""
    if grams is None or not len(grams):
        return {}
    n = config.decontaminate_ngram
    first = ngrams.first_hit(cleaned.tokens, n, grams)
    kept = [number for number, verdict in enumerate(cleaned.verdicts) if verdict is None]
    begins = cleaned.tokens.offsets
    hits = {}
    for place in np.flatnonzero(first >= 0).tolist():
        number = kept[place]
        begin = int(first[place] - begins[place])
        words = cleaned.words[number].replace("\n", " ").split(" ")
        hits[number] = " ".join(words[begin : begin + n + n // 2])
    return hits


def _judge(
    state: _Chunk,
    records: list[tuple[int, SourceFile, Record]],
    cleaned: Cleaned,
    hits: dict[int, str],
    save_dropped: bool,
) -> list[int]:
    """Count every record under its rule; the numbers of those that stay."""
    kept = []
    number = -1
    funnel = state.funnel
    for rank, file, record in records:
        if record.text is None:
            funnel.add(READ, 1, 0, 0)
            funnel.add(BROKEN, 1, 0, 0)
            _put_aside(state, file, record)
            continue
        number += 1
        if record.repaired:
            state.repaired["encoding"] += 1
        if record.piece == 1:
            state.repaired["cut"] += 1
        sentences, n_words = cleaned.sentences_read[number], cleaned.words_read[number]
        funnel.add(READ, 1, sentences, n_words)
        if cleaned.languages[number]:
            state.languages[cleaned.languages[number]] += 1
        for rule, (lost_sentences, lost_words) in cleaned.lost[number].items():
            funnel.add(rule, 0, lost_sentences, lost_words)
            sentences -= lost_sentences
            n_words -= lost_words
        verdict = cleaned.verdicts[number]
        detail = cleaned.details[number]
        if number in hits:
            verdict, detail = DECONTAMINATE, hits[number]
            state.shared.append(SharedRow(file.name, record.offset, detail))
        if verdict:
            funnel.add(verdict, 1, sentences, n_words)
            _remember(state, verdict, file, record, detail, save_dropped)
            continue
        kept.append(number)
        state.rows.append(
            (rank, record.offset, cleaned.texts[number], cleaned.lines[number], n_words)
        )
        state.size += len(cleaned.texts[number])
    return kept


def _put_aside(state: _Chunk, file: SourceFile, record: Record) -> None:
    state.reasons[record.problem] += 1
    if len(state.quarantine) >= QUARANTINED:
        return
    beginning = record.raw.decode("utf-8", "backslashreplace")
    state.quarantine.append(
        QuarantineRow(file.name, record.offset, record.problem, record.detail, beginning)
    )


def _remember(
    state: _Chunk, rule: str, file: SourceFile, record: Record, detail: str, save: bool
) -> None:
    """Keep a dropped document as an example, if its hash is among the smallest."""
    text = record.text or ""
    if save:
        state.dropped.append(DroppedRow(rule, detail, file.name, record.offset, text))
        state.dropped_size += len(text)
    key = xxhash.xxh3_64_intdigest(text[:4096].encode("utf-8", "replace"))
    gather(state.examples, rule, key, Example(file.name, record.offset, text, detail))


def _write_part(work: str, out: str, state: _Chunk) -> None:
    keys = np.concatenate(state.keys)
    bands = np.concatenate(state.bands) if state.bands else np.zeros((len(keys), 0), np.uint64)
    index = np.zeros(len(keys), index_dtype(bands.shape[1]))
    index["hi"], index["lo"], index["bands"] = keys[:, 0], keys[:, 1], bands
    for place, name in ((0, "file"), (1, "offset"), (4, "words")):
        index[name] = [row[place] for row in state.rows]
    name = f"{out}-{len(state.parts):03d}"
    tables.save_index(join(work, f"{name}.npy"), index)
    texts, lines = [row[2] for row in state.rows], [row[3] for row in state.rows]
    tables.save_table(join(work, f"{name}.arrow"), tables.table_of_texts(texts, lines))
    words_kept = int(index["words"].sum())
    state.parts.append(CleanPart(name, len(keys), words_kept))
    state.rows, state.keys, state.bands, state.size = [], [], [], 0


def _write_lists(work: str, out: str, state: _Chunk) -> None:
    if state.quarantine:
        path = join(work, f"{out}.quarantine.jsonl")
        at(path).write_bytes(_json_lines(state.quarantine))
    if state.shared:
        path = join(work, f"{out}.decontaminated.jsonl")
        at(path).write_bytes(_json_lines(state.shared))
    if state.dropped:
        _write_dropped(work, out, state)


def _write_dropped(work: str, out: str, state: _Chunk) -> None:
    name = f"{out}-dropped-{len(state.documents):03d}.jsonl.zst"
    write_documents(join(work, name), state.dropped)
    state.documents.append(name)
    state.dropped, state.dropped_size = [], 0


def _json_lines(rows: Iterable[object]) -> bytes:
    """Dataclasses as JSON Lines."""
    text = "".join(f"{json.dumps(to_data(row), ensure_ascii=False)}\n" for row in rows)
    return text.encode("utf-8", "replace")


def write_documents(path: str, rows: Iterable[object]) -> None:
    """Write dataclasses as compressed JSON Lines."""
    at(path).write_bytes(pyarrow.compress(_json_lines(rows), codec="zstd", asbytes=True))
