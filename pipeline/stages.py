"""What the tasks of a corpus build do: each takes paths, writes paths, and returns counts.

No Ray here: a stage is a plain function that can be run and tested alone. Its output files are
written atomically and are the same bytes every time, so a task that is killed is simply run again.

A *part* is a table of cleaned documents (Arrow IPC, memory-mapped) of at most `PART_BYTES` of text.
A cleaned document is one string: its lines are sentences, its words are separated by one space.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmwright.pipeline import clean, dedup, vocab, words
from elmwright.pipeline.block import pack
from elmwright.pipeline.config import CorpusConfig, VocabConfig
from elmwright.pipeline.lanes import hash64
from elmwright.pipeline.shards import ShardReader, write_shard
from elmwright.pipeline.sources import Chunk, read
from elmwright.pipeline.storage import atomic_file, sha256_file, write_atomic

Report = dict[str, Any]
"""What a stage returns: counts and names, small, JSON."""

Columns = dict[str, NDArray[Any]]
"""Columns of a table, without its texts."""

HELDOUT = "heldout"
"""The split that is taken off by content hash."""
PART_BYTES = 64_000_000
LONG_WORD = 48
"""UTF-8 bytes of a word that a model with max_chars = 50 can read (two are marks)."""
SAMPLE = 200_000
"""Sentences a sentencepiece model is trained on, at most."""
SAMPLE_BYTES = 4000
"""Longer sentences are left out of the sample: sentencepiece would skip them."""
_SHUFFLE, _HELDOUT, _SAMPLE = 1, 2, 3
"""Keep apart the hashes of the same keys for different ends."""


def digest_files(paths: Sequence[str]) -> Report:
    """sha256 of each input file."""
    return {"sha256": [sha256_file(Path(path)) for path in paths]}


def read_sentences(chunk: Chunk, config: CorpusConfig) -> Iterator[tuple[int, int, list[str]]]:
    """(file, offset, sentences) of every document; no sentences where the record is broken."""
    for piece in chunk:
        for offset, text in read(piece, config):
            found: list[str] = []
            if text is not None:
                normal = clean.normalise(text)
                found = list(words.find_sentences(normal, config.sentences, config.language))
            yield piece.file.number, offset, found if text is not None else [clean.BROKEN]


def sample_chunk(chunk: Chunk, config: CorpusConfig, seed: int, limit: int, out: str) -> Report:
    """The sentences of a chunk with the smallest hashes, for training sentencepiece."""
    smallest: dict[int, str] = {}

    def shrink() -> dict[int, str]:
        return {number: smallest[number] for number in sorted(smallest)[:SAMPLE]}

    for _, _, sentences in read_sentences(chunk, config):
        key = dedup.keys_of(["\n".join(sentences)])
        if not sentences or sentences == [clean.BROKEN] or _is_heldout(key, seed, limit)[0]:
            continue
        fitting = [s for s in sentences if len(s.encode()) <= SAMPLE_BYTES]
        if fitting:
            hashes = _mix(dedup.keys_of(fitting), seed, _SAMPLE)
            smallest.update(zip(hashes.tolist(), fitting, strict=True))
        if len(smallest) > 2 * SAMPLE:
            smallest = shrink()
    smallest = shrink()
    write_atomic(
        Path(out), "".join(f"{number:020d} {text}\n" for number, text in smallest.items()).encode()
    )
    return {"sentences": len(smallest)}


def train_pieces(samples: Sequence[str], config: CorpusConfig, out: str) -> Report:
    """Train the sentencepiece model on the smallest hashes of all samples."""
    import heapq

    lines = {
        line for path in samples for line in Path(path).read_bytes().decode().split("\n") if line
    }
    chosen = heapq.nsmallest(SAMPLE, lines)
    sentences = (line.partition(" ")[2] for line in chosen)
    model = words.train_sentencepiece(sentences, config.sentencepiece_size, config.language)
    write_atomic(Path(out), model)
    return {"sentences": len(chosen)}


def clean_chunk(
    chunk: Chunk, config: CorpusConfig, seed: int, model: str | None, out: str
) -> Report:
    """Clean and tokenise a chunk into parts `out`-000.arrow, … with their tables of keys."""
    tokenise = words.tokeniser(config, Path(model) if model else None)
    # A held-out set given as files is taken as it is.
    rules = config if chunk[0].file.split == "train" else CorpusConfig()
    funnel = Funnel()
    parts: list[Report] = []
    rows: list[tuple[int, int, str, str]] = []
    size = 0
    for file, offset, raw in read_sentences(chunk, config):
        if raw == [clean.BROKEN]:
            funnel.add("read", 1, 0, 0)
            funnel.add(clean.BROKEN, 1, 0, 0)
            continue
        sentences = [line for line in map(tokenise, raw) if line]
        total = clean.count_words(sentences)
        funnel.add("read", 1, len(sentences), total)
        kept = clean.drop_short_sentences(sentences, rules)
        n_words = clean.count_words(kept)
        funnel.add(clean.SENTENCE_RULE, 0, len(sentences) - len(kept), total - n_words)
        verdict = clean.judge(kept, rules)
        if verdict:
            funnel.add(verdict, 1, len(kept), n_words)
            continue
        text = "\n".join(kept)
        # Pieces are only known once the model is trained; which documents it may see is needed
        # before. So with sentencepiece the key is that of the text, else that of the words.
        rows.append((file, offset, "\n".join(raw) if model else text, text))
        size += len(text)
        if size > PART_BYTES:
            parts.append(_write_part(rows, seed, f"{out}-{len(parts):03d}"))
            rows, size = [], 0
    if rows:
        parts.append(_write_part(rows, seed, f"{out}-{len(parts):03d}"))
    return {"parts": parts, "funnel": funnel.steps, "split": chunk[0].file.split}


def _write_part(rows: list[tuple[int, int, str, str]], seed: int, out: str) -> Report:
    keys = dedup.keys_of(row[2] for row in rows)
    table = np.zeros(len(rows), dedup.KEY)
    table["hi"], table["lo"] = keys[:, 0], keys[:, 1]
    table["file"] = [row[0] for row in rows]
    table["offset"] = [row[1] for row in rows]
    table["row"] = np.arange(len(rows))
    _save_arrow(Path(f"{out}.arrow"), _columns(table), [row[3] for row in rows])
    dedup.save_table(Path(f"{out}.keys.npy"), dedup.sort_table(table, dedup.ORDER))
    smallest = int(_mix(keys, seed, _HELDOUT).min())
    return {"name": out, "documents": len(rows), "smallest": smallest}


def sentence_keys(
    part: int, name: str, losers: Sequence[str], *, side: str, seed: int, limit: int, out: str
) -> Report:
    """The keys of all sentences of a part whose documents are still in, sorted."""
    table, texts = _load_arrow(Path(f"{name}.arrow"))
    dead = set(dedup.losers_of(part, losers)["row"].tolist())
    heldout = _sides(table, side, seed, limit)
    columns: list[NDArray[Any]] = []
    for row, text in enumerate(texts):
        if row in dead:
            continue
        keys = dedup.keys_of(text.split("\n"))
        rows = np.zeros(len(keys), dedup.KEY)
        rows["hi"], rows["lo"], rows["heldout"] = keys[:, 0], keys[:, 1], heldout[row]
        rows["file"], rows["offset"], rows["row"] = table["file"][row], table["offset"][row], row
        rows["sentence"] = np.arange(len(keys))
        columns.append(rows)
    joined = np.concatenate(columns) if columns else np.zeros(0, dedup.KEY)
    dedup.save_table(Path(out), dedup.sort_table(joined, dedup.ORDER))
    return {"keys": len(joined)}


def keep_part(
    part: int,
    name: str,
    document_losers: Sequence[str],
    sentence_losers: Sequence[str],
    config: CorpusConfig,
    *,
    side: str,
    seed: int,
    limit: int,
    by_sentence: bool,
    steps: int,
    out: str,
) -> Report:
    """Drop what lost, sort what is left by its shuffle hash, and count the words of train."""
    table, texts = _load_arrow(Path(f"{name}.arrow"))
    dead = set(dedup.losers_of(part, document_losers)["row"].tolist())
    lost: dict[int, dict[int, str]] = {}
    for loser in dedup.losers_of(part, sentence_losers):
        rule = dedup.RULES[int(loser["rule"])]
        lost.setdefault(int(loser["row"]), {})[int(loser["sentence"])] = rule
    heldout = _sides(table, side, seed, limit)
    name_of = {0: "train", 1: HELDOUT if side == "train" else side}
    funnel = Funnel()
    rows: dict[str, list[tuple[int, int, str]]] = {split: [] for split in name_of.values()}
    counted: Counter[str] = Counter()
    for row, text in enumerate(texts):
        lines = text.split("\n")
        if row in dead:
            funnel.add(dedup.DOCUMENT, 1, len(lines), clean.count_words(lines))
            continue
        if row in lost:
            for sentence, rule in lost[row].items():
                funnel.add(rule, 0, 1, clean.count_words([lines[sentence]]))
            lines = [line for sentence, line in enumerate(lines) if sentence not in lost[row]]
            if not lines:
                funnel.add(next(iter(lost[row].values())), 1, 0, 0)
                continue
        if side == "train":
            funnel.add("kept", 1, len(lines), clean.count_words(lines))
        split = name_of[int(heldout[row])]
        if split == "train":
            counted.update(" ".join(lines).split(" "))
        pieces = lines if by_sentence else ["\n".join(lines)]
        rows[split].extend((row, number, piece) for number, piece in enumerate(pieces))
    # Equal texts have equal keys; where copies stay in, their place keeps them from gathering.
    copies = config.dedup == "none" or (by_sentence and config.dedup == "document")
    splits = {}
    for split, kept in rows.items():
        if kept:
            path = f"{out}.{split}.arrow"
            _save_shuffled(Path(path), table, kept, seed, copies=copies, rekey=by_sentence)
            splits[split] = {"path": path, **_sizes([text for _, _, text in kept], steps)}
    _save_counts(Path(f"{out}.words.arrow"), counted)
    return {"splits": splits, "funnel": funnel.steps, "words": f"{out}.words.arrow"}


def _sizes(texts: Sequence[str], steps: int) -> dict[str, int]:
    """Documents, sentences as they will be packed (long ones in pieces), words."""
    lengths = [line.count(" ") + 1 for text in texts for line in text.split("\n")]
    pieces = sum(-(-length // (steps - 1)) for length in lengths)
    return {"documents": len(texts), "sentences": pieces, "words": sum(lengths)}


def _save_shuffled(
    path: Path,
    table: Columns,
    kept: list[tuple[int, int, str]],
    seed: int,
    *,
    copies: bool,
    rekey: bool,
) -> None:
    places = np.zeros(len(kept), dedup.KEY)
    rows = [row for row, _, _ in kept]
    for column in ("hi", "lo", "file", "offset"):
        places[column] = table[column][rows]
    places["sentence"] = [number for _, number, _ in kept]
    keys = np.stack([places["hi"], places["lo"]], axis=1)
    if rekey:
        keys = dedup.keys_of(text for _, _, text in kept)
        places["hi"], places["lo"] = keys[:, 0], keys[:, 1]
    order = _mix(keys, seed, _SHUFFLE)
    if copies:
        for column in ("file", "offset", "sentence"):
            order = hash64(order ^ places[column].astype(np.uint64))
    columns = {"order": order, **_columns(places), "sentence": places["sentence"]}
    sorting = _sorting(columns)
    texts = [kept[int(row)][2] for row in sorting]
    _save_arrow(path, {name: column[sorting] for name, column in columns.items()}, texts)


def _sorting(columns: Columns) -> NDArray[np.int64]:
    names = ("order", "hi", "lo", "file", "offset", "sentence")
    return np.lexsort([columns[name] for name in reversed(names)])


def make_vocab(paths: Sequence[str], config: VocabConfig, sentences: int, folder: str) -> Report:
    """Add up the word counts of all parts, choose the vocabulary, write it."""
    total: Counter[str] = Counter()
    for path in paths:
        columns, texts = _load_arrow(Path(path))
        for word, count in zip(texts, columns["count"].tolist(), strict=True):
            total[word] += count
    chosen = vocab.choose(total, config.max_size, config.min_count)
    vocab.save_vocab(Path(folder), chosen, vocab.counts_by_id(chosen, total, sentences))
    long = sum(n for word, n in total.items() if len(word.encode()) > LONG_WORD)
    return {
        "size": len(chosen),
        "sha256": sha256_file(Path(folder) / vocab.VOCAB),
        "counts_sha256": sha256_file(Path(folder) / vocab.COUNTS),
        "types": len(total),
        "long_words": long / max(1, sum(total.values())),
    }


def make_shard(
    paths: Sequence[str],
    split: str,
    number: int,
    n_shards: int,
    *,
    steps: int,
    vocab_file: str,
    vocab_sha256: str,
    folder: str,
) -> Report:
    """Gather one range of the shuffle hash from all parts, in its order, and pack it."""
    from dataclasses import asdict

    width = -(-(1 << 64) // n_shards)
    gathered: list[tuple[Columns, list[str]]] = []
    for path in paths:
        gathered.append(_load_arrow(Path(path), (number * width, (number + 1) * width)))
    names = list(gathered[0][0])
    columns = {name: np.concatenate([c[name] for c, _ in gathered]) for name in names}
    texts = [text for _, part in gathered for text in part]
    if not texts:
        return {"shard": None}

    def sentences() -> Iterator[tuple[int, list[str]]]:
        for document, row in enumerate(_sorting(columns).tolist()):
            for line in texts[row].split("\n"):
                yield document, line.split(" ")

    blocks = pack(sentences(), _word_ids(vocab_file, vocab_sha256), steps)
    return {"shard": asdict(write_shard(Path(folder), split, number, blocks))}


@lru_cache(maxsize=1)
def _word_ids(path: str, _sha256: str) -> dict[str, int]:
    """The vocabulary, kept by a worker from one shard to the next."""
    return {word: number for number, word in enumerate(vocab.load_vocab(Path(path)))}


def unigram(folder: str, tars: Sequence[str]) -> Report:
    """Perplexity of the train unigram model over the blocks of a held-out set."""
    counts = vocab.load_counts(Path(folder) / vocab.COUNTS)
    heldout = np.zeros_like(counts)
    for tar in tars:
        reader = ShardReader(Path(folder) / tar)
        blocks = (reader.read(number) for number in range(len(reader)))
        heldout += vocab.target_counts(blocks, counts.size)
    return {"perplexity": vocab.unigram_perplexity(counts, heldout)}


class Funnel:
    """Counts of documents, sentences and words by rule, in the order the rules were met."""

    def __init__(self) -> None:
        """Empty."""
        self.steps: dict[str, list[int]] = {}

    def add(self, rule: str, documents: int, sentences: int, n_words: int) -> None:
        """Count what a rule did."""
        step = self.steps.setdefault(rule, [0, 0, 0])
        for place, count in enumerate((documents, sentences, n_words)):
            step[place] += count


def heldout_limit(share: float) -> int:
    """The hash below which a document is held out."""
    return min(math.floor(share * (1 << 64)), (1 << 64) - 1)


def _mix(keys: NDArray[np.uint64], seed: int, purpose: int) -> NDArray[np.uint64]:
    return hash64(hash64(keys[:, 0], seed, purpose) ^ keys[:, 1])


def _is_heldout(keys: NDArray[np.uint64], seed: int, limit: int) -> NDArray[np.bool_]:
    below: NDArray[np.bool_] = _mix(keys, seed, _HELDOUT) < np.uint64(limit)
    return below


def _sides(table: Columns, side: str, seed: int, limit: int) -> NDArray[np.bool_]:
    """For every document of a part, whether it is held out."""
    if side != "train":
        return np.ones(len(table["hi"]), bool)
    return _is_heldout(np.stack([table["hi"], table["lo"]], axis=1), seed, limit)


def _columns(table: dedup.Table) -> Columns:
    return {name: table[name] for name in ("hi", "lo", "file", "offset")}


def _save_arrow(path: Path, columns: Columns, texts: Sequence[str]) -> None:
    import pyarrow

    arrays = {name: pyarrow.array(np.ascontiguousarray(c)) for name, c in columns.items()}
    arrays["text"] = pyarrow.array(texts, pyarrow.large_string())
    table = pyarrow.table(arrays)
    with atomic_file(path) as file, pyarrow.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def _load_arrow(path: Path, orders: tuple[int, int] | None = None) -> tuple[Columns, list[str]]:
    """Columns and texts of a table; with `orders`, only rows whose `order` is in that range."""
    import pyarrow

    with pyarrow.memory_map(str(path)) as file:
        table = pyarrow.ipc.open_file(file).read_all()
        if orders is not None:
            column = table["order"].combine_chunks().to_numpy()
            # The end of the last range is 2**64, which no 64-bit number can be.
            begin = int(np.searchsorted(column, np.uint64(orders[0])))
            last = orders[1] >= 1 << 64
            end = len(column) if last else int(np.searchsorted(column, np.uint64(orders[1])))
            table = table.slice(begin, end - begin)
        columns = {n: table[n].to_numpy() for n in table.column_names if n != "text"}
        return columns, table["text"].to_pylist()


def _save_counts(path: Path, counts: Counter[str]) -> None:
    ordered = sorted(counts.items())
    column = np.array([count for _, count in ordered], np.int64)
    _save_arrow(path, {"count": column}, [word for word, _ in ordered])
