"""The stage between choosing and packing: drop what lost, sort the rest by its shuffle hash.

It reads every part once more, with the lists of what lost (`select.py`), and writes for each
split a table sorted by the shuffle hash, of which a shard later takes its range, and the counts of
the words of train.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmwright.pipeline.build.ray_tasks import Report
from elmwright.pipeline.build.stages.clean import write_documents
from elmwright.pipeline.build.stages.hashes import SHUFFLE, mix
from elmwright.pipeline.build.stages.hashes import WEIGHT as WEIGHT_HASH
from elmwright.pipeline.build.stages.select import (
    Part,
    Sides,
    doc_keys,
    lost_sentences,
    paths,
    times_taken,
)
from elmwright.pipeline.cleaning.funnel import KEPT, WEIGHT, Funnel
from elmwright.pipeline.dedup import keys as dedup
from elmwright.pipeline.dedup import text_parts
from elmwright.pipeline.format.lanes import hash64
from elmwright.pipeline.format.packing import Words, words_of
from elmwright.pipeline.report.statistics import (
    Example,
    Gathered,
    document_histogram,
    gather,
    sentence_histogram,
)
from elmwright.pipeline.storage import files


@dataclass
class _Kept:
    """What of one part stays, for one split."""

    rows: list[int]
    """The document of each text."""
    numbers: list[int]
    """Which of its sentences the text is, where sentences are shuffled."""
    texts: list[str]
    times: list[int]
    """How often each text is taken."""


def keep_part(
    work: str,
    out: str,
    part: Part,
    document_losers: Sequence[str],
    line_losers: Sequence[str],
    sentence_losers: Sequence[str],
    sides: Sides,
    *,
    by_sentence: bool,
    copies_left: bool,
    save_documents: str,
    file_names: Sequence[str],
) -> Report:
    """Drop what lost, sort what is left by its shuffle hash, and count the words of train.

    `copies_left` says that equal texts may both be there: their place then keeps them apart.
    """
    index = text_parts.load_index(files.join(work, f"{part.name}.npy"))
    arrow = files.join(work, f"{part.name}.arrow")
    _, texts = text_parts.load(arrow)
    keys = doc_keys(index)
    place = np.zeros(len(index), np.int64)
    names = [part.split]
    if part.split == "train":
        place, names = sides.of(keys), ["train", *sides.names]
    times = times_taken(part, index, sides.seed)
    selection = _Selection(part, index, file_names)
    selection.losers(
        dedup.losers_of(part.number, paths(work, document_losers)),
        dedup.losers_of(part.number, paths(work, line_losers)),
        dedup.losers_of(part.number, paths(work, sentence_losers)),
        text_parts.load_lines(arrow) if line_losers else [],
    )
    selection.cut(texts)
    kept: dict[str, _Kept] = {}
    documents: list[dict[str, Any]] = []
    for row, text in enumerate(texts):
        verdict = selection.verdicts.get(row)
        if verdict is None and times[row] == 0 and part.split == "train":
            verdict = WEIGHT
            selection.drop(row, WEIGHT, text)
        left = selection.changed.get(row, text)
        if save_documents == "all" or (save_documents == "dropped" and verdict):
            documents.append(
                {
                    "rule": verdict or KEPT,
                    "file": file_names[int(index["file"][row])],
                    "offset": int(index["offset"][row]),
                    "text": left,
                }
            )
        if verdict:
            continue
        split = names[int(place[row])]
        mine = kept.setdefault(split, _Kept([], [], [], []))
        pieces = left.split("\n") if by_sentence else [left]
        repeat = int(times[row]) if split == "train" else 1
        mine.rows.extend([row] * len(pieces))
        mine.numbers.extend(range(len(pieces)))
        mine.texts.extend(pieces)
        mine.times.extend([repeat] * len(pieces))
    splits = {}
    types = 0
    for split, found in kept.items():
        name = f"{out}.{split}.arrow"
        _save_shuffled(files.join(work, name), part, index, found, sides.seed,
                       copies=copies_left, rekey=by_sentence)  # fmt: skip
        found_words = words_of(found.texts)
        taken = np.array(found.times, np.int64)
        splits[split] = {"name": name, **_sizes(found_words, taken)}
        if split == "train":
            types = save_counts(files.join(work, f"{out}.words.arrow"), found_words, taken)
    name = f"{out}-documents.jsonl.zst"
    if documents:
        write_documents(files.join(work, name), documents)
    return {
        "splits": splits,
        "funnel": selection.funnel.counts if part.split == "train" else {},
        "examples": selection.examples,
        "kept": selection.funnel.counts.get(KEPT, [0, 0, 0]),
        "counts": f"{out}.words.arrow" if types else None,
        "types": types,
        "documents": [name] if documents else [],
        "words": sum(split["words"] for split in splits.values()),
    }


class _Selection:
    """What of a part is dropped after cleaning, and by which rule."""

    def __init__(self, part: Part, index: NDArray[np.void], file_names: Sequence[str]) -> None:
        self.part, self.index, self.file_names = part, index, file_names
        self.verdicts: dict[int, str] = {}
        self.changed: dict[int, str] = {}
        self.lost: dict[int, dict[int, str]] = {}
        self.funnel = Funnel()
        self.examples: Gathered = {}

    def losers(
        self,
        documents: NDArray[np.void],
        lines: NDArray[np.void],
        sentences: NDArray[np.void],
        line_counts: Sequence[Sequence[int]],
    ) -> None:
        """Note what lost, as documents, as lines and as sentences."""
        for loser in documents:
            self.verdicts.setdefault(int(loser["row"]), dedup.RULES[int(loser["rule"])])
        self.lost = lost_sentences(lines, line_counts)
        for loser in sentences:
            mine = self.lost.setdefault(int(loser["row"]), {})
            mine[int(loser["sentence"])] = dedup.RULES[int(loser["rule"])]

    def cut(self, texts: Sequence[str]) -> None:
        """Count every document: dropped whole, in part, or kept."""
        documents = sentences = words = 0
        for row, text in enumerate(texts):
            verdict = self.verdicts.get(row)
            if verdict:
                self.drop(row, verdict, text)
                continue
            left = self._without(row, text) if row in self.lost else text
            if left:
                documents += 1
                breaks = left.count("\n")
                sentences += breaks + 1
                words += left.count(" ") + breaks + 1
        self.funnel.add(KEPT, documents, sentences, words)

    def _without(self, row: int, text: str) -> str:
        """A document without the sentences that lost."""
        sentences = text.split("\n")
        lost = self.lost[row]
        for number, rule in lost.items():
            self.funnel.add(rule, 0, 1, sentences[number].count(" ") + 1)
        left = "\n".join(line for number, line in enumerate(sentences) if number not in lost)
        if left:
            self.changed[row] = left
        else:
            rule = next(iter(lost.values()))
            self.verdicts[row] = rule
            self.funnel.add(rule, 1, 0, 0)
            self._example(row, rule, text)
        return left

    def drop(self, row: int, rule: str, text: str) -> None:
        """Count a document that is dropped whole."""
        text = self.changed.get(row, text)
        breaks = text.count("\n")
        counts = (1, breaks + 1, text.count(" ") + breaks + 1)
        self.funnel.add(rule, *counts)
        if rule == WEIGHT:
            self.funnel.add(KEPT, *(-count for count in counts))
        else:
            self._example(row, rule, text)

    def _example(self, row: int, rule: str, text: str) -> None:
        place = self.index[row]
        file = self.file_names[int(place["file"])]
        example = Example(file, int(place["offset"]), text)
        gather(self.examples, rule, int(place["lo"]), example)


def _sizes(found: Words, times: NDArray[np.int64]) -> dict[str, Any]:
    """Counts of what is kept, each text as often as it is taken."""
    ends = np.cumsum(found.sentences)
    running = np.concatenate([[0], np.cumsum(found.lengths)])
    documents = np.diff(running[ends], prepend=0)
    sentence_times = np.repeat(times, found.sentences)
    return {
        "documents": int(times.sum()),
        "sentences": int(sentence_times.sum()),
        "words": int((documents * times).sum()),
        "document_words": document_histogram(np.repeat(documents, times)),
        "sentence_words": sentence_histogram(np.repeat(found.lengths, sentence_times)),
    }


def _save_shuffled(
    path: str,
    part: Part,
    index: NDArray[np.void],
    found: _Kept,
    seed: int,
    *,
    copies: bool,
    rekey: bool,
) -> None:
    rows = index[found.rows]
    keys = dedup.keys_of(found.texts) if rekey else doc_keys(rows)
    order = mix(keys, seed, SHUFFLE)
    columns: text_parts.Columns = {
        "hi": keys[:, 0],
        "lo": keys[:, 1],
        "file": rows["file"] + np.uint32(part.first_file),
        "offset": rows["offset"],
        "sentence": np.array(found.numbers, np.uint32),
    }
    # Equal texts have equal keys; where copies stay in, their place keeps them from gathering.
    for name in ("file", "offset", "sentence") if copies else ():
        order = hash64(order ^ columns[name].astype(np.uint64))
    times = np.array(found.times, np.int64)
    text_of = np.repeat(np.arange(len(times)), times)
    columns = {name: column[text_of] for name, column in {"order": order, **columns}.items()}
    copy = (np.arange(len(text_of)) - (np.cumsum(times) - times)[text_of]).astype(np.uint64)
    columns["copy"] = copy.astype(np.uint32)
    again = copy > 0
    columns["order"][again] = hash64(columns["order"][again] ^ copy[again], seed, WEIGHT_HASH)
    sorting = sort_order(columns)
    columns = {name: column[sorting] for name, column in columns.items()}
    text_parts.save_buckets(path, columns, found.texts, text_of[sorting], "order")


def sort_order(columns: text_parts.Columns) -> NDArray[np.int64]:
    """The order of the shuffle: by hash, ties by key and place."""
    names = ("order", "hi", "lo", "file", "offset", "sentence", "copy")
    return np.lexsort([columns[name] for name in reversed(names)])


def save_counts(path: str, found: Words, times: NDArray[np.int64]) -> int:
    """Write words and their counts, sorted by the hash of the word; how many there are."""
    taken = np.repeat(np.repeat(times, found.sentences), found.lengths)
    counts = np.bincount(found.numbers, weights=taken, minlength=len(found.words)).astype(np.int64)
    keys = dedup.keys_of(found.words)[:, 0]
    sorting = np.argsort(keys, kind="stable")
    columns = {"hash": keys[sorting], "count": counts[sorting]}
    text_parts.save_buckets(path, columns, found.words, sorting, "hash")
    return len(found.words)


def gather_lists(work: str, out: str, names: Sequence[str]) -> Report:
    """Put lists of JSON Lines together."""
    lines = 0
    with files.writing(files.join(work, f"{out}.jsonl")) as file:
        for name in names:
            data = files.read_bytes(files.join(work, name))
            lines += data.count(b"\n")
            file.write(data)
    return {"name": f"{out}.jsonl", "lines": lines}
