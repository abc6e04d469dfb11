"""`elmwright neighbours`: where a text uses a word as a given sentence does.

This is the paper's demonstration that ELMo distinguishes the senses of a word. The occurrence of a
word in its sentence is compared, by the cosine of its vectors in one layer, with every occurrence
of the same word in a text (with `any_word`, of every word). The text is read as a stream, only the
k nearest are kept, and sentences without the word are not embedded. If a corpus folder is given
instead of a text, its held-out sentences are read, which training has not seen.

Where the model reads pieces of words, words are those of the `ptb` tokeniser, and the vector of a
word is the mean of those of its pieces.

The sentence itself is skipped if the text contains it, and of equal sentences the first is shown.
"""

import heapq
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt

from elmwright.jobs.registry.resolve import resolve
from elmwright.jobs.terminal.wording import printable
from elmwright.jobs.using.argument_checks import check_query, no_word
from elmwright.jobs.using.layer_choice import choose_layers
from elmwright.jobs.using.pretrained import Elmo
from elmwright.jobs.using.text.sentences import batches, pieces, read_lines, text_file
from elmwright.jobs.using.text.text_lines import Reading, line_reader, split_file, warn_of_text
from elmwright.model.inference.pooling import mean_of_pieces
from elmwright.model.text.text_input import Span, spans_of
from elmwright.pipeline.cleaning.tokeniser import Tokeniser
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.format.block import sentences
from elmwright.pipeline.format.manifest import Manifest
from elmwright.pipeline.format.pieces import text_of
from elmwright.pipeline.format.shards import ShardReader
from elmwright.pipeline.progress import plural
from elmwright.pipeline.report.page import render_page
from elmwright.pipeline.storage.files import at, join

CONTEXT = 12
"""Words shown on each side."""
HELDOUT_SENTENCES = 20_000
"""Most sentences that are read from the held-out sets of a corpus."""


@dataclass(frozen=True)
class Occurrence:
    """A word in a sentence."""

    similarity: float
    """Cosine with the word in the query, −1 to 1."""
    line: int
    """Line of the text, from 0."""
    position: int
    """Which word of the line, from 0."""
    words: tuple[str, ...]
    """The sentence."""

    def parts(self) -> tuple[str, str, str]:
        """The text before the word (shortened), the word, and the text after it."""
        at = self.position
        before, after = self.words[max(0, at - CONTEXT) : at], self.words[at + 1 :][:CONTEXT]
        cut = "… " if at > CONTEXT else "", " …" if len(self.words) > at + 1 + CONTEXT else ""
        return cut[0] + " ".join(before), self.words[at], " ".join(after) + cut[1]


@dataclass(frozen=True)
class Neighbours:
    """The nearest occurrences of a word; the fields are the keys of `--json`."""

    word: str
    sentence: tuple[str, ...]
    """The query that has the word."""
    position: int
    """Which word of it, from 0."""
    layer: str
    """The layer compared."""
    compared: int
    """Occurrences that were compared."""
    neighbours: list[Occurrence]
    """Nearest first."""

    @property
    def query(self) -> Occurrence:
        return Occurrence(1.0, -1, self.position, self.sentence)


def find_neighbours(
    model: str,
    word: str,
    sentence: str,
    source: str,
    *,
    count: int = 10,
    layer: str = "top",
    any_word: bool = False,
    reading: Reading = Reading(),  # noqa: B008 - it is frozen
    device: str = "cpu",
) -> Neighbours:
    """The `count` occurrences in the text at `source` that are nearest to `word` in `sentence`."""
    check_query(word, sentence, count)
    reading.check()
    folder = resolve(model)
    reader = _Reader(folder, device, reading)
    asked = reader.line(sentence)
    words = asked.words
    if word not in words:
        raise no_word(word, words)
    position = words.index(word)
    query = _unit(choose_layers(reader.embed([asked])[0], layer)[0, position])
    nearest: list[tuple[float, int, int, tuple[str, ...]]] = []  # a heap, the worst on top
    compared = 0
    with TemporaryDirectory() as scratch, _text(source, Path(scratch), reader) as text:
        warn_of_text(folder, reader.text, text, reader.reading)
        for line, other, vectors in _embed_lines(reader, text, None if any_word else word):
            if other == words:
                continue
            cosines = _unit(choose_layers(vectors, layer)[0]) @ query
            for at, similarity in enumerate(cosines.tolist()):
                if not any_word and other[at] != word:
                    continue
                compared += 1
                candidate = (similarity, -line, -at, tuple(other))
                if not any(entry[2:] == candidate[2:] for entry in nearest):
                    heapq.heappush(nearest, candidate)
                if len(nearest) > count:
                    heapq.heappop(nearest)
    if compared == 0:
        target = "words" if any_word else f"other sentence with the word {word!r}"
        raise UserError(
            "argument", f"{source} has no {target}; give a larger text, or try --any-word"
        )
    return Neighbours(
        word,
        tuple(words),
        position,
        layer,
        compared,
        [Occurrence(s, -line, -at, other) for s, line, at, other in sorted(nearest, reverse=True)],
    )


@dataclass(frozen=True)
class _Line:
    """A sentence of the text."""

    words: list[str]
    tokens: list[str]
    """What the model reads: the words, or their pieces."""
    spans: list[Span] | None
    """The pieces of each word."""

    def __len__(self) -> int:
        return len(self.tokens)


class _Reader:
    """A model that reads the lines of a text."""

    def __init__(self, folder: Path, device: str, reading: Reading) -> None:
        self.elmo = Elmo.from_pretrained(folder, device=device, pool=None)
        self.elmo.eval()
        self.text, self.reading = self.elmo.text, reading
        self.text.watch.stop()  # the text is compared with the vocabulary beforehand
        how = self.text.tokenisation
        self._words = None
        if how is not None and how.kind == "sentencepiece":
            self._words = Tokeniser(replace(how, kind="ptb"))

    def line(self, line: str) -> _Line:
        """A line, in words and in what the model reads."""
        line = line.rstrip("\r\n")
        if self._words is None:
            words = line_reader(self.text, self.reading)(line)
            return _Line(words, words, None)
        if self.reading.tokenized:
            line = text_of(line.split())
        words_in_place = self._words.tokenise(line)
        tokens, spans = spans_of(self.text.tokenise(line), words_in_place)
        return _Line([word.text for word in words_in_place], tokens, spans)

    def embed(self, lines: Sequence[_Line]) -> list[npt.NDArray[np.float32]]:
        """The vectors of the words of each line, all layers."""
        embedded = self.elmo.embed([line.tokens for line in lines])
        return [
            vectors if line.spans is None else mean_of_pieces(vectors, line.spans)
            for line, vectors in zip(lines, embedded, strict=True)
        ]


@contextmanager
def _text(source: str, folder: Path, reader: _Reader) -> Iterator[Path]:
    """The text at `source` as a file. For a corpus folder this is a file in `folder` with at most
    `HELDOUT_SENTENCES` held-out sentences."""
    if not at(join(source, "MANIFEST.json")).exists():
        with text_file(source, folder) as text:
            split = reader.reading.split
            yield split_file(reader.text, text, folder / "sentences.txt") if split else text
        return
    copy = folder / "heldout.txt"
    reader.reading = Reading(tokenized=True)
    with copy.open("w", encoding="utf-8") as out:
        for words in islice(heldout_sentences(source), HELDOUT_SENTENCES):
            print(*words, file=out)
    yield copy


def heldout_sentences(corpus: str) -> Iterator[list[str]]:
    """The sentences of a corpus's held-out sets, in order."""
    manifest = Manifest.load(corpus)
    splits = [split for name, split in manifest.splits.items() if name != "train"]
    if not splits:
        raise UserError(
            "split-missing", f"{corpus} has no held-out set; give a file of one sentence per line"
        )
    for shard in (shard for split in splits for shard in split.shards):
        reader = ShardReader(join(corpus, shard.tar))
        for block in map(reader.read, range(len(reader))):
            yield from sentences(block)


def _embed_lines(
    reader: _Reader, text: Path, word: str | None
) -> Iterator[tuple[int, list[str], npt.NDArray[np.float32]]]:
    """Line number, words and vectors of each sentence that contains the word (or any word)."""
    (whole,) = pieces(text, None)
    numbers: list[int] = []

    def matching() -> Iterator[tuple[_Line, int]]:
        for number, (line, size) in enumerate(read_lines(text, whole)):
            if word is not None and word not in line and not reader.reading.tokenized:
                continue  # before it is tokenised: most lines have not got the word
            found = reader.line(line)
            if found.words if word is None else word in found.words:
                numbers.append(number)
                yield found, size

    for batch, _ in batches(matching()):
        for found, vectors in zip(batch, reader.embed(batch), strict=True):
            yield numbers.pop(0), found.words, vectors


def _unit(vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    length = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.asarray(vectors / np.maximum(length, 1e-12), np.float32)


LEFT = 21
"""Columns left of the sentences."""


def as_table(result: Neighbours, bold: bool = False, width: int | None = None) -> str:
    """Lines for a terminal of this width; the word is bold, or in brackets without `bold`."""
    begin, end = ("\033[1m", "\033[0m") if bold else ("[", "]")

    def sentence(occurrence: Occurrence) -> str:
        before, word, after = map(printable, occurrence.parts())
        if width is not None:
            columns = width - LEFT - 2 - len(word)
            before, after = around(before.split(), after.split(), columns)
        return " ".join(filter(None, (before, f"{begin}{word}{end}", after)))

    rows = [f"{o.similarity:10.4f} {o.line + 1:>8}  {sentence(o)}" for o in result.neighbours]
    return "\n".join(
        [
            f"nearest of {plural(result.compared, 'occurrence')}, layer {result.layer}, to",
            f"{'':{LEFT}}{sentence(result.query)}",
            f"{'cosine':>10} {'line':>8}",
            *rows,
        ]
    )


def around(before: list[str], after: list[str], width: int) -> tuple[str, str]:
    """As many words of both sides as fit into `width` columns, with ellipses for the others."""
    cut_before, cut_after = before[:1] == ["…"], after[-1:] == ["…"]
    before, after = before[cut_before:], after[: len(after) - cut_after]
    while before or after:
        left = " ".join(["…"] * cut_before + before)
        right = " ".join(after + ["…"] * cut_after)
        if len(left) + len(right) + 2 <= width:
            return left, right
        # Shorten the longer side: the words nearest to the word say most.
        if before and (len(left) > len(right) or not after):
            before, cut_before = before[1:], True
        else:
            after, cut_after = after[:-1], True
    return "…" if cut_before else "", "…" if cut_after else ""


def write_page(result: Neighbours, source: str, path: Path) -> None:
    """Write the result as one HTML file that loads nothing; the text is escaped."""
    template = Path(__file__).with_name("neighbours.html")
    text = render_page(template, result=result, source=source)
    at(path).write_bytes(text.encode("utf-8"))
