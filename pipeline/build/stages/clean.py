"""The first large stage of a build: raw files in, cleaned and tokenised *parts* out.

A stage is a plain function `stage(work, out, …)` without Ray, so it can be run and tested alone. It
reads files named relative to `work`, writes files whose names begin with `out`, and returns names
and counts. Its output is written atomically and is the same bytes every time, so a task that is
killed is simply run again.

`clean_chunk` is where most of the time goes. It knows nothing of other chunks, of held-out shares
or of the order of the sources, so its output stays valid when those change or a source is added.
For a chunk it writes, for n = 000, 001, …

- `out`-n.arrow, the texts (`tables.py`), and `out`-n.npy, for each document its 128-bit key,
  its place (file of the chunk, offset), its words and the bands of its MinHash signature;
- `out`.quarantine.jsonl, `out`.decontaminated.jsonl, and `out`-dropped-000.jsonl.zst if dropped
  documents are saved.
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
"""Broken records that a task lists one by one; all are counted."""


def read_batches(
    chunk: Chunk, config: CorpusConfig
) -> Iterator[tuple[list[tuple[int, SourceFile, Record]], list[str]]]:
    """Batches of records with their file and its rank in the chunk, and of the texts read."""
    records: list[tuple[int, SourceFile, Record]] = []
    texts: list[str] = []
    size = 0
    ranks: dict[str, int] = {}
    for piece in chunk:
        rank = ranks.setdefault(piece.file.path, len(ranks))
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
    """A part that was written: its files without their endings, and its documents."""

    name: str
    documents: int


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
    """Files of saved dropped documents."""
    words: int
    """Words read."""


@dataclass(frozen=True)
class _Row:
    """A document that stays."""

    file: int
    """Rank of its file in the chunk."""
    offset: int
    text: str
    lines: list[int]
    """Sentences of each of its lines."""
    words: int


@dataclass
class _State:
    """The state of `clean_chunk` between batches."""

    work: str
    out: str
    save_dropped: bool
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
    rows: list[_Row] = field(default_factory=list)
    keys: list[NDArray[np.uint64]] = field(default_factory=list)
    bands: list[NDArray[np.uint64]] = field(default_factory=list)
    size: int = 0
    parts: list[CleanPart] = field(default_factory=list)

    def judge(
        self,
        records: list[tuple[int, SourceFile, Record]],
        cleaned: Cleaned,
        hits: dict[int, str],
    ) -> list[int]:
        """Count every record under its rule. The numbers of those that stay are returned."""
        kept = []
        number = -1
        for rank, file, record in records:
            if record.text is None:
                self._put_aside(file, record)
                continue
            number += 1
            if record.repaired:
                self.repaired["encoding"] += 1
            if record.piece == 1:
                self.repaired["cut"] += 1
            sentences, words = cleaned.sentences_read[number], cleaned.words_read[number]
            self.funnel.add(READ, 1, sentences, words)
            if cleaned.languages[number]:
                self.languages[cleaned.languages[number]] += 1
            for rule, (lost_sentences, lost_words) in cleaned.lost[number].items():
                self.funnel.add(rule, 0, lost_sentences, lost_words)
                sentences -= lost_sentences
                words -= lost_words
            verdict = cleaned.verdicts[number]
            detail = cleaned.details[number]
            if number in hits:
                verdict, detail = DECONTAMINATE, hits[number]
                self.shared.append(SharedRow(file.name, record.offset, detail))
            if verdict:
                self.funnel.add(verdict, 1, sentences, words)
                self._drop(verdict, file, record, detail)
                continue
            kept.append(number)
            text = cleaned.texts[number]
            self.rows.append(_Row(rank, record.offset, text, cleaned.lines[number], words))
            self.size += len(text)
        return kept

    def _put_aside(self, file: SourceFile, record: Record) -> None:
        self.funnel.add(READ, 1, 0, 0)
        self.funnel.add(BROKEN, 1, 0, 0)
        self.reasons[record.problem] += 1
        if len(self.quarantine) < QUARANTINED:
            beginning = record.raw.decode("utf-8", "backslashreplace")
            self.quarantine.append(
                QuarantineRow(file.name, record.offset, record.problem, record.detail, beginning)
            )

    def _drop(self, rule: str, file: SourceFile, record: Record, detail: str) -> None:
        text = record.text or ""
        if self.save_dropped:
            self.dropped.append(DroppedRow(rule, detail, file.name, record.offset, text))
            self.dropped_size += len(text)
        key = xxhash.xxh3_64_intdigest(text[:4096].encode("utf-8", "replace"))
        gather(self.examples, rule, key, Example(file.name, record.offset, text, detail))

    def write_part(self) -> None:
        """Write the rows gathered so far as the next part."""
        keys = np.concatenate(self.keys)
        bands = np.concatenate(self.bands) if self.bands else np.zeros((len(keys), 0), np.uint64)
        columns = {"hi": "<u8", "lo": "<u8", "file": "<u4", "offset": "<u8", "words": "<u4"}
        index = np.zeros(len(keys), [*columns.items(), ("bands", "<u8", bands.shape[1:])])
        index["hi"], index["lo"], index["bands"] = keys[:, 0], keys[:, 1], bands
        for name in ("file", "offset", "words"):
            index[name] = [getattr(row, name) for row in self.rows]
        name = f"{self.out}-{len(self.parts):03d}"
        tables.save_npy(join(self.work, f"{name}.npy"), index)
        texts = tables.table_of_texts(
            [row.text for row in self.rows], [row.lines for row in self.rows]
        )
        tables.save_table(join(self.work, f"{name}.arrow"), texts)
        self.parts.append(CleanPart(name, len(keys)))
        self.rows, self.keys, self.bands, self.size = [], [], [], 0

    def write_dropped(self) -> None:
        """Write the dropped documents gathered so far."""
        name = f"{self.out}-dropped-{len(self.documents):03d}.jsonl.zst"
        write_documents(join(self.work, name), self.dropped)
        self.documents.append(name)
        self.dropped, self.dropped_size = [], 0

    def finish(self) -> CleanChunk:
        """Write what is left. The result of the stage is returned."""
        if self.rows:
            self.write_part()
        if self.dropped:
            self.write_dropped()
        for name, rows in (("quarantine", self.quarantine), ("decontaminated", self.shared)):
            if rows:
                at(join(self.work, f"{self.out}.{name}.jsonl")).write_bytes(_json_lines(rows))
        return CleanChunk(
            parts=tuple(self.parts),
            funnel=self.funnel.counts,
            examples=self.examples,
            reasons=self.reasons,
            languages=self.languages,
            repaired=self.repaired,
            shared=len(self.shared),
            documents=tuple(self.documents),
            words=self.funnel.counts.get(READ, ZERO)[2],
        )


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
    """Clean and tokenise a chunk. `given` says that it is of a held-out set given as files, `known`
    is a file of n-grams that no document may have."""
    cleaner = Cleaner(config, model=_local_copy(work, model), filters=not given)
    grams = ngrams.load_set(join(work, known)) if known else None
    state = _State(work, out, save_dropped)
    for records, texts in read_batches(chunk, config):
        cleaned = cleaner.clean(texts)
        state.repaired.update(cleaned.repaired)
        kept = state.judge(records, cleaned, _hits(cleaned, config, grams))
        if kept:
            state.keys.append(keys_of(cleaned.words[n] for n in kept))
            if signatures:
                passed = np.flatnonzero([verdict is None for verdict in cleaned.verdicts])
                bands = minhash.bands(cleaned.tokens, config.minhash)
                state.bands.append(bands[np.isin(passed, kept)])
        if state.size > tables.PART_BYTES:
            state.write_part()
        if state.dropped_size > tables.PART_BYTES:
            state.write_dropped()
    return state.finish()


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


def _json_lines(rows: Iterable[object]) -> bytes:
    """Dataclasses as JSON Lines."""
    text = "".join(f"{json.dumps(to_data(row), ensure_ascii=False)}\n" for row in rows)
    return text.encode("utf-8", "replace")


def write_documents(path: str, rows: Iterable[object]) -> None:
    """Write dataclasses as compressed JSON Lines."""
    at(path).write_bytes(pyarrow.compress(_json_lines(rows), codec="zstd", asbytes=True))
