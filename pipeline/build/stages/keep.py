"""The stage between choosing and packing: drop what lost, sort the rest by its shuffle hash.

It reads every part once more, with the lists of what lost (`select.py`). For each split it writes a
table sorted by the shuffle hash, of which a shard later takes its range, and for train the counts
of its words.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elmwright.pipeline.build.stages.clean import write_documents
from elmwright.pipeline.build.stages.hashes import Purpose, mix
from elmwright.pipeline.build.stages.select import (
    HashSplit,
    Part,
    doc_keys,
    lines_to_sentences,
    load_index,
    losers,
    times_taken,
)
from elmwright.pipeline.cleaning.funnel import KEPT, WEIGHT, ZERO, Counts, Funnel
from elmwright.pipeline.dedup import keys as dedup
from elmwright.pipeline.dedup import tables
from elmwright.pipeline.format.lanes import hash64
from elmwright.pipeline.format.packing import Words, words_of
from elmwright.pipeline.report.statistics import (
    Example,
    Gathered,
    document_histogram,
    gather,
    sentence_histogram,
)
from elmwright.pipeline.storage.files import at, join


@dataclass(frozen=True)
class DocumentRow:
    """A line of a list of documents: kept, or dropped by a rule after cleaning."""

    rule: str
    file: str
    offset: int
    text: str


@dataclass(frozen=True)
class SplitTable:
    """The shuffled texts of one part for one split, each counted as often as it is taken."""

    name: str
    """The table's file."""
    documents: int
    sentences: int
    words: int
    document_words: Mapping[int, int]
    """Documents by size (`statistics.document_histogram`)."""
    sentence_words: Mapping[int, int]
    """Sentences by size (`statistics.sentence_histogram`)."""


@dataclass(frozen=True)
class KeptPart:
    """A part without its losers: a table for each split, and counts."""

    splits: Mapping[str, SplitTable]
    funnel: Counts
    """Empty for a held-out set given as files."""
    examples: Gathered
    """Some of the dropped documents."""
    kept: tuple[int, int, int]
    """Documents, sentences and words, before weights."""
    counts: str | None
    """The file of word counts, if the part has words of train."""
    types: int
    """Words in that file."""
    documents: tuple[str, ...]
    """Files of saved documents."""
    words: int
    """Words of all splits."""


@dataclass(frozen=True)
class JoinedList:
    """A file of JSON Lines."""

    name: str


@dataclass
class _Texts:
    """The texts of one part that stay, for one split."""

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
    hash_split: HashSplit,
    *,
    by_sentence: bool,
    copies_left: bool,
    save_documents: str,
    file_names: Sequence[str],
) -> KeptPart:
    """Drop what lost, sort what is left by its shuffle hash, and count the words of train.

    `copies_left` says that there may be equal texts. Their shuffle hashes then include their place.
    """
    index = load_index(work, part)
    _, texts = tables.load_texts(join(work, f"{part.name}.arrow"))
    is_train = part.split == "train"
    split_names = ["train", *hash_split.names] if is_train else [part.split]
    split_numbers = np.zeros(len(index), np.int64)
    if is_train:
        split_numbers = hash_split.split_numbers(doc_keys(index))
    times = times_taken(part, index, hash_split.seed)
    verdicts = {
        int(loser["row"]): dedup.RULES[int(loser["rule"])]
        for loser in losers(work, part, document_losers)[::-1]  # the first of a row counts
    }
    lost = _lost_sentences(work, part, line_losers, sentence_losers)
    funnel = Funnel()
    funnel.add(KEPT, *ZERO)
    examples: Gathered = {}
    kept: dict[str, _Texts] = {}
    documents: list[DocumentRow] = []
    for row, text in enumerate(texts):
        rule, left = verdicts.get(row), text
        counts = None
        if rule is None and row in lost:
            left = _drop_sentences(text, lost[row], funnel)
            if not left:
                rule, left = next(iter(lost[row].values())), text
                counts = (1, 0, 0)  # its sentences have been counted
        if rule is None and is_train and times[row] == 0:
            rule = WEIGHT
        funnel.add(rule or KEPT, *(counts or _count(left)))
        file, offset = file_names[int(index["file"][row])], int(index["offset"][row])
        if rule and rule != WEIGHT:
            gather(examples, rule, int(index["lo"][row]), Example(file, offset, left))
        if save_documents == "all" or (save_documents == "dropped" and rule):
            documents.append(DocumentRow(rule or KEPT, file, offset, left))
        if rule:
            continue
        split = split_names[int(split_numbers[row])]
        chosen = kept.setdefault(split, _Texts([], [], [], []))
        pieces = left.split("\n") if by_sentence else [left]
        repeat = int(times[row]) if split == "train" else 1
        chosen.rows.extend([row] * len(pieces))
        chosen.numbers.extend(range(len(pieces)))
        chosen.texts.extend(pieces)
        chosen.times.extend([repeat] * len(pieces))
    splits = {}
    types = 0
    for split, chosen in kept.items():
        name = f"{out}.{split}.arrow"
        path = join(work, name)
        _save_shuffled(
            path, part, index, chosen, hash_split.seed, copies=copies_left, rekey=by_sentence
        )
        words = words_of(chosen.texts)
        text_times = np.array(chosen.times, np.int64)
        splits[split] = _split_table(name, words, text_times)
        if split == "train":
            _save_counts(join(work, f"{out}.words.arrow"), words, text_times)
            types = len(words.types)
    name = f"{out}-documents.jsonl.zst"
    if documents:
        write_documents(join(work, name), documents)
    return KeptPart(
        splits=splits,
        funnel=funnel.counts if is_train else {},
        examples=examples,
        kept=funnel.counts[KEPT],
        counts=f"{out}.words.arrow" if types else None,
        types=types,
        documents=(name,) if documents else (),
        words=sum(table.words for table in splits.values()),
    )


def _lost_sentences(
    work: str, part: Part, line_losers: Sequence[str], sentence_losers: Sequence[str]
) -> dict[int, dict[int, str]]:
    """The sentences that lost, by themselves or with their line: row → sentence → rule."""
    lines = tables.load_lines(join(work, f"{part.name}.arrow")) if line_losers else []
    lost = lines_to_sentences(losers(work, part, line_losers), lines)
    for loser in losers(work, part, sentence_losers):
        rules = lost.setdefault(int(loser["row"]), {})
        rules[int(loser["sentence"])] = dedup.RULES[int(loser["rule"])]
    return lost


def _drop_sentences(text: str, lost: Mapping[int, str], funnel: Funnel) -> str:
    """A document without the sentences that lost, which are counted under their rules."""
    sentences = text.split("\n")
    for number, rule in lost.items():
        funnel.add(rule, 0, 1, sentences[number].count(" ") + 1)
    return "\n".join(line for number, line in enumerate(sentences) if number not in lost)


def _count(text: str) -> tuple[int, int, int]:
    """One document, its sentences and its words."""
    breaks = text.count("\n")
    return 1, breaks + 1, text.count(" ") + breaks + 1


def _split_table(name: str, words: Words, times: NDArray[np.int64]) -> SplitTable:
    ends = np.cumsum(words.sentences)
    running = np.concatenate([[0], np.cumsum(words.lengths)])
    documents = np.diff(running[ends], prepend=0)
    sentence_times = np.repeat(times, words.sentences)
    return SplitTable(
        name=name,
        documents=int(times.sum()),
        sentences=int(sentence_times.sum()),
        words=int((documents * times).sum()),
        document_words=document_histogram(np.repeat(documents, times)),
        sentence_words=sentence_histogram(np.repeat(words.lengths, sentence_times)),
    )


def _save_shuffled(
    path: str,
    part: Part,
    index: NDArray[np.void],
    chosen: _Texts,
    seed: int,
    *,
    copies: bool,
    rekey: bool,
) -> None:
    rows = index[chosen.rows]
    keys = dedup.keys_of(chosen.texts) if rekey else doc_keys(rows)
    order = mix(keys, seed, Purpose.SHUFFLE)
    columns: tables.Columns = {
        "hi": keys[:, 0],
        "lo": keys[:, 1],
        "file": rows["file"] + np.uint32(part.first_file),
        "offset": rows["offset"],
        "sentence": np.array(chosen.numbers, np.uint32),
    }
    # Equal texts have equal keys. Where copies stay in, their place keeps them apart.
    for name in ("file", "offset", "sentence") if copies else ():
        order = hash64(order ^ columns[name].astype(np.uint64))
    times = np.array(chosen.times, np.int64)
    text_of = np.repeat(np.arange(len(times)), times)
    columns = {name: column[text_of] for name, column in {"order": order, **columns}.items()}
    copy = (np.arange(len(text_of)) - (np.cumsum(times) - times)[text_of]).astype(np.uint64)
    columns["copy"] = copy.astype(np.uint32)
    again = copy > 0
    columns["order"][again] = hash64(columns["order"][again] ^ copy[again], seed, Purpose.WEIGHT)
    sorting = sort_order(columns)
    columns = {name: column[sorting] for name, column in columns.items()}
    tables.save_texts(path, columns, chosen.texts, text_of[sorting], "order")


def sort_order(columns: tables.Columns) -> NDArray[np.int64]:
    """The order of the shuffle: by hash, ties by key and place."""
    names = ("order", "hi", "lo", "file", "offset", "sentence", "copy")
    return np.lexsort([columns[name] for name in reversed(names)])


def _save_counts(path: str, words: Words, times: NDArray[np.int64]) -> None:
    """Write words and their counts, sorted by the hash of the word."""
    weights = np.repeat(np.repeat(times, words.sentences), words.lengths)
    counts = np.bincount(words.numbers, weights, minlength=len(words.types)).astype(np.int64)
    keys = dedup.keys_of(words.types)[:, 0]
    sorting = np.argsort(keys, kind="stable")
    columns = {"hash": keys[sorting], "count": counts[sorting]}
    tables.save_texts(path, columns, words.types, sorting, "hash")


def gather_lists(work: str, out: str, names: Sequence[str]) -> JoinedList:
    """Join lists of JSON Lines."""
    with at(join(work, f"{out}.jsonl")).writing() as file:
        for name in names:
            file.write(at(join(work, name)).read_bytes())
    return JoinedList(f"{out}.jsonl")
