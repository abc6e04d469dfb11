"""`elmwright neighbours`: where a text uses a word as a given sentence does.

The paper's demonstration that ELMo tells the senses of a word apart: the occurrence of a word in
its sentence is compared, by the cosine of its vectors in one layer, with every occurrence of the
same word in a text (with `any_word`, of every word). The text is read as a stream and only the k
nearest are kept, so its size does not matter; sentences without the word are not even embedded.
In place of a text there may be a corpus folder: then its held-out sentences are read, which
training has not seen and which are tokenised as the model expects.

The sentence itself is left out where the text has it, and of equal sentences the first is shown.
"""

import heapq
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from elmwright.jobs.registry.resolve import resolve
from elmwright.jobs.using.argument_checks import check_query
from elmwright.jobs.using.layer_choice import choose_layers
from elmwright.jobs.using.pretrained import Elmo
from elmwright.jobs.using.sentences import batches, pieces, read_sentences, text_file
from elmwright.jobs.using.unknown_words import warn_of_unknown
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.format.block import sentences
from elmwright.pipeline.format.manifest import Manifest
from elmwright.pipeline.format.shards import ShardReader
from elmwright.pipeline.progress import plural
from elmwright.pipeline.report.page import render_page
from elmwright.pipeline.storage.files import at, join

CONTEXT = 12
"""Words shown on either side."""
HELDOUT_SENTENCES = 20_000
"""Sentences read of a corpus's held-out sets: enough to find a word in, and soon embedded."""


@dataclass(frozen=True)
class Occurrence:
    """A word in a sentence."""

    similarity: float
    """Cosine with the word in the sentence given, −1 to 1."""
    line: int
    """Line of the text, from 0."""
    position: int
    """Which word of the line, from 0."""
    words: tuple[str, ...]
    """The sentence."""

    def parts(self) -> tuple[str, str, str]:
        """What stands before the word (shortened), the word, and what stands after it."""
        at = self.position
        before, after = self.words[max(0, at - CONTEXT) : at], self.words[at + 1 :][:CONTEXT]
        cut = "… " if at > CONTEXT else "", " …" if len(self.words) > at + 1 + CONTEXT else ""
        return cut[0] + " ".join(before), self.words[at], " ".join(after) + cut[1]


@dataclass(frozen=True)
class Found:
    """The nearest occurrences, and what they were compared with."""

    query: Occurrence
    """The word in the sentence given."""
    neighbours: list[Occurrence]
    """Nearest first."""
    compared: int
    """Occurrences that were looked at."""
    layer: str
    """The layer compared."""
    source: str
    """The text."""

    def as_dict(self) -> dict[str, Any]:
        return {
            "word": self.query.words[self.query.position],
            "sentence": self.query.words,
            "position": self.query.position,
            "layer": self.layer,
            "compared": self.compared,
            "neighbours": [asdict(occurrence) for occurrence in self.neighbours],
        }


def find_neighbours(
    model: str,
    word: str,
    sentence: str,
    source: str,
    *,
    count: int = 10,
    layer: str = "top",
    any_word: bool = False,
    device: str = "cpu",
) -> Found:
    """The `count` occurrences in the text at `source` that are nearest to `word` in `sentence`."""
    words = sentence.split()
    check_query(word, sentence, count)
    place = resolve(model)
    elmo = Elmo.from_pretrained(place, device=device)
    elmo.eval()
    position = words.index(word)
    own = _unit(choose_layers(elmo.embed([words])[0], layer)[0, position])
    nearest: list[tuple[float, int, int, tuple[str, ...]]] = []  # a heap, the worst on top
    compared = 0
    with TemporaryDirectory() as folder, _text(source, Path(folder)) as text:
        warn_of_unknown(place, text)
        for line, given, vectors in _embedded(elmo, text, None if any_word else word):
            if given == words:
                continue
            cosines = _unit(choose_layers(vectors, layer)[0]) @ own
            for at, similarity in enumerate(cosines.tolist()):
                if any_word or given[at] == word:
                    compared += 1
                    _offer(nearest, (similarity, -line, -at, tuple(given)), count)
    if compared == 0:
        what = "words" if any_word else f"other sentence with the word {word!r}"
        raise UserError(
            "argument", f"{source} has no {what}; give a larger text, or try --any-word"
        )
    return Found(
        Occurrence(1.0, -1, position, tuple(words)),
        [Occurrence(s, -line, -at, given) for s, line, at, given in sorted(nearest, reverse=True)],
        compared,
        layer,
        source,
    )


@contextmanager
def _text(source: str, folder: Path) -> Iterator[Path]:
    """The text at `source` as a file. Of a corpus folder it is the held-out sentences, as many as
    `HELDOUT_SENTENCES`, written into `folder`."""
    if not at(join(source, "MANIFEST.json")).exists():
        with text_file(source, folder) as text:
            yield text
        return
    copy = folder / "heldout.txt"
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


def _offer(
    nearest: list[tuple[float, int, int, tuple[str, ...]]],
    candidate: tuple[float, int, int, tuple[str, ...]],
    count: int,
) -> None:
    """Keep it if it is among the `count` best and the same sentence is not there already."""
    if len(nearest) == count and candidate <= nearest[0]:
        return
    if any(kept[2:] == candidate[2:] for kept in nearest):
        return
    if len(nearest) == count:
        heapq.heapreplace(nearest, candidate)
    else:
        heapq.heappush(nearest, candidate)


def _embedded(
    elmo: Elmo, text: Path, word: str | None
) -> Iterator[tuple[int, list[str], npt.NDArray[np.float32]]]:
    """Line number, words and vectors of each sentence that has the word (or any)."""
    (whole,) = pieces(text, None)
    numbers: list[int] = []

    def wanted() -> Iterator[tuple[list[str], int]]:
        for line, (words, size) in enumerate(read_sentences(text, whole)):
            if words if word is None else word in words:
                numbers.append(line)
                yield words, size

    for batch, _ in batches(wanted()):
        for given, vectors in zip(batch, elmo.embed(batch), strict=True):
            yield numbers.pop(0), given, vectors


def _unit(vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    length = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.asarray(vectors / np.maximum(length, 1e-12), np.float32)


LEFT = 21
"""Columns left of the sentences."""


def as_table(found: Found, bold: bool = False, width: int | None = None) -> str:
    """For a terminal of this width: the word is bold, or in brackets where there is no bold."""
    marks = ("\033[1m", "\033[0m") if bold else ("[", "]")
    room = None if width is None else width - LEFT - 2

    def sentence(occurrence: Occurrence) -> str:
        before, word, after = map(_printable, occurrence.parts())
        if room is not None:
            before, after = around(before.split(), after.split(), room - len(word))
        return " ".join(filter(None, (before, f"{marks[0]}{word}{marks[1]}", after)))

    rows = [f"{o.similarity:10.4f} {o.line + 1:>8}  {sentence(o)}" for o in found.neighbours]
    return "\n".join(
        [
            f"nearest of {plural(found.compared, 'occurrence')}, layer {found.layer}, to",
            f"{'':{LEFT}}{sentence(found.query)}",
            f"{'cosine':>10} {'line':>8}",
            *rows,
        ]
    )


def around(before: list[str], after: list[str], room: int) -> tuple[str, str]:
    """As much of both sides of a word as fits, whole words; what is left out is an ellipsis."""
    cut_before, cut_after = before[:1] == ["…"], after[-1:] == ["…"]
    before, after = before[cut_before:], after[: len(after) - cut_after]
    while before or after:
        left = " ".join(["…"] * cut_before + before)
        right = " ".join(after + ["…"] * cut_after)
        if len(left) + len(right) + 2 <= room:
            return left, right
        # The longer side first: what stands near the word says most.
        if len(left) > len(right) and before:
            before, cut_before = before[1:], True
        elif after:
            after, cut_after = after[:-1], True
        else:
            before, cut_before = before[1:], True
    return "…" if cut_before else "", "…" if cut_after else ""


def _printable(text: str) -> str:
    """The text is foreign: what could steer a terminal is shown as �."""
    return "".join(char if char.isprintable() else "�" for char in text)


def write_page(found: Found, path: Path) -> None:
    """Write the neighbours as a page: one file that loads nothing."""
    text = render_page(Path(__file__).with_name("neighbours.html"), found=found)
    at(path).write_bytes(text.encode("utf-8"))
