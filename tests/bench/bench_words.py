"""How well the `ptb` tokeniser finds words and sentences, and how fast, beside its first version.

    python tests/bench/bench_words.py [--split train|dev] [--rounds 5] [--errors N]

Gold is the UD English Web Treebank of ELMWRIGHT_SHARED/data. The rules were made on its train part.
The dev part is for scoring once, after the last change of a rule.

- Words: the text of a gold sentence is tokenised alone. The gold words are the syntactic words
  (`do` and `n't` of `don't`). F1 counts words with both ends right, in characters of the raw text;
  a sentence is exact if all its words are.
- Sentence ends: the gold sentences of a paragraph are joined as `SpaceAfter` says, and split again.
  F1 counts the ends inside paragraphs, since the end of a paragraph is no achievement.
- Speed: sentences and words of the same paragraphs, and of novels and Wikipedia where they are
  there, in one process, old and new in turns; CPU seconds, the best round. The reader starts cold,
  as in the first task of a build, and is then asked again, as in all others. The old rules are
  loaded from git, at the commit before the new ones.

Required on dev are F1 0.975, 1,800 exact sentences of 2,001, F1 0.90 of sentence ends, and no less
speed than before. UD splits `well - known` and Penn does not: one sentence in
twenty cannot be exact.
"""

import argparse
import importlib
import io
import json
import lzma
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from elmwright.pipeline.cleaning import repair, words
from elmwright.pipeline.cleaning.tokeniser import Tokenisation, Tokeniser
from elmwright.pipeline.cleaning.tokens import Reader

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("ELMWRIGHT_SHARED", ROOT.parent / "shared")) / "data"
BEFORE = "b70981c"
"""The last commit with rules of version 1 only."""
WORD_F1, EXACT, END_F1, SPEED = 0.975, 1800 / 2001, 0.90, 1.0
MEGABYTES = 1

Range = tuple[int, int]


@dataclass(frozen=True)
class Gold:
    """A sentence of the treebank."""

    text: str
    words: list[str]
    begins_paragraph: bool
    has_space_after: bool


def read(split: str) -> Iterator[Gold]:
    """The sentences of a part of the treebank."""
    path = DATA / "ud_english_ewt" / f"en_ewt-ud-{split}.conllu.xz"
    with lzma.open(path, "rt", encoding="utf-8") as file:
        for entry in file.read().strip().split("\n\n"):
            lines = entry.split("\n")
            notes = [line for line in lines if line.startswith("#")]
            rows = [line.split("\t") for line in lines if not line.startswith("#")]
            rows = [row for row in rows if "." not in row[0]]
            yield Gold(
                text=next(line for line in notes if line.startswith("# text = "))[9:],
                words=[row[1] for row in rows if row[0].isdigit()],
                begins_paragraph=any(line.startswith(("# newpar", "# newdoc")) for line in notes),
                has_space_after="SpaceAfter=No" not in rows[-1][9],
            )


def places(parts: Iterable[str], text: str) -> list[Range]:
    """Where each part is in a text, whatever white space is between and in them."""
    found, place = [], 0
    for part in parts:
        begin = -1
        for character in part:
            if not character.isspace():
                while text[place] != character:
                    place += 1
                begin = place if begin < 0 else begin
                place += 1
        found.append((begin, place))
    return found


class Score:
    """Right, found and gold, and what they make."""

    def __init__(self) -> None:
        self.right = self.found = self.gold = 0

    def add(self, found: set[Range], gold: set[Range]) -> None:
        self.right += len(found & gold)
        self.found += len(found)
        self.gold += len(gold)

    @property
    def f1(self) -> float:
        return 2 * self.right / max(1, self.found + self.gold)

    def __str__(self) -> str:
        precision, recall = self.right / max(1, self.found), self.right / max(1, self.gold)
        return f"F1 {self.f1:.4f} (precision {precision:.4f}, recall {recall:.4f})"


def score_words(sentences: list[Gold], version: int, errors: int) -> tuple[Score, int]:
    tokeniser = Tokeniser(Tokenisation("ptb", version))
    score, exact = Score(), 0
    wrong: Counter[str] = Counter()
    for gold in sentences:
        found = [(word.start, word.end) for word in tokeniser.tokenise(gold.text)]
        right = places(gold.words, gold.text)
        score.add(set(found), set(right))
        exact += found == right
        if errors:
            wrong.update(gold.text[a:b] for a, b in set(found) - set(right))
    for word, count in wrong.most_common(errors):
        print(f"    {count:4} {word}")
    return score, exact


def paragraphs(sentences: list[Gold]) -> list[list[Gold]]:
    found: list[list[Gold]] = []
    for sentence in sentences:
        if sentence.begins_paragraph or not found:
            found.append([])
        found[-1].append(sentence)
    return found


def joined(paragraph: list[Gold]) -> str:
    return "".join(gold.text + " " * gold.has_space_after for gold in paragraph).strip()


def score_ends(sentences: list[Gold], version: int) -> Score:
    tokeniser = Tokeniser(Tokenisation("ptb", version))
    score = Score()
    for paragraph in paragraphs(sentences):
        text = joined(paragraph)
        found = [(sentence.end, 0) for sentence in tokeniser.split(text)]
        right = [(end, 0) for _, end in places((gold.text for gold in paragraph), text)]
        score.add(set(found) - {right[-1]}, set(right[:-1]))
    return score


def former(folder: Path) -> tuple[ModuleType, type[Reader]]:
    """The old module of words and the old reader, from git."""
    name = "elmwright_before"
    packed = subprocess.run(
        ["git", "archive", BEFORE, "pipeline"], cwd=ROOT, capture_output=True, check=True
    )
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as tar:
        tar.extractall(folder / name, filter="data")
    for path in (folder / name).rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace("elmwright.pipeline", f"{name}.pipeline"), encoding="utf-8")
    sys.path.insert(0, str(folder))
    old = importlib.import_module(f"{name}.pipeline.cleaning.words")
    return old, importlib.import_module(f"{name}.pipeline.cleaning.tokens").Reader


def texts(split: str) -> dict[str, list[str]]:
    """What speed is measured on: normal text by name."""
    found = {f"UD {split}": [joined(paragraph) for paragraph in paragraphs(list(read(split)))]}
    for name in ("novels_en", "enwiki2014"):
        size, documents = 0, []
        for path in sorted((DATA / name).glob("*.jsonl.xz")):
            with lzma.open(path, "rt", encoding="utf-8") as lines:
                for line in lines:
                    documents.append(json.loads(line)["text"][:100_000])
                    size += len(documents[-1])
                    if size > MEGABYTES * 1e6:
                        break
            if size > MEGABYTES * 1e6:
                break
        if documents:
            found[name] = documents
    return {name: [repair.normalise(text) for text in texts] for name, texts in found.items()}


Side = tuple[Callable[..., object], Callable[[], Reader]]


def measure(documents: list[str], sides: dict[str, Side], rounds: int) -> dict[str, list[float]]:
    """Best CPU seconds of each side for sentences, words with a cold reader, and with a warm one;
    and the number of words."""
    best: dict[str, list[float]] = {name: [1e9] * 3 + [0] for name in sides}
    for _ in range(rounds):
        for name, (split, reader_of) in sides.items():
            begin = time.process_time()
            sentences = [split(text, "split", "en").sentences for text in documents]
            took = [time.process_time() - begin]
            reader = reader_of()
            for _ in range(2):
                begin = time.process_time()
                _, tokens = reader.read(sentences)
                took.append(time.process_time() - begin)
            best[name] = [*map(min, best[name], took), int(tokens.ids.size)]
    return best


def speed(split: str, rounds: int) -> float:
    """Print speeds; the smallest ratio of sentences and words together, new to old."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            old, old_reader = former(Path(folder))
        except subprocess.CalledProcessError:
            print(f"speed: skipped, because commit {BEFORE} is not in this repository")
            return 1.0
        sides: dict[str, Side] = {
            "before": (old.split, lambda: old_reader(old.ptb_chunk)),
            "now": (
                words.split,
                lambda: Reader(words.chunk_rules("ptb"), words.divided("ptb", "en")),
            ),
        }
        ratios = []
        for name, documents in texts(split).items():
            found = measure(documents, sides, rounds)
            size = sum(map(len, documents)) / 1e6
            for side, (sentences, cold, warm, count) in found.items():
                print(
                    f"  {name:10} {side:6} sentences {size / sentences:5.1f} MB/s, words cold "
                    f"{size / cold:5.1f}, warm {size / warm:5.1f} MB/s; together "
                    f"{count / (sentences + cold) / 1e3:,.0f} k, "
                    f"{count / (sentences + warm) / 1e3:,.0f} k words/s"
                )
            before, now = found["before"], found["now"]
            parts = [before[n] / now[n] for n in range(3)]
            both = [(before[0] + before[n]) / (now[0] + now[n]) for n in (1, 2)]
            print(
                f"  {name:10} ratio: sentences {parts[0]:.2f}, words cold {parts[1]:.2f}, warm "
                f"{parts[2]:.2f}; together cold {both[0]:.2f}, warm {both[1]:.2f}"
            )
            ratios += both
    return min(ratios)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--split", choices=("train", "dev"), default="train")
    parser.add_argument("--rounds", type=int, default=3, help="0 measures no speed")
    parser.add_argument("--errors", type=int, default=0, help="print the N most frequent mistakes")
    options = parser.parse_args()
    if not (DATA / "ud_english_ewt").is_dir():
        print("skipped: no UD English in ELMWRIGHT_SHARED/data")
        return 0
    sentences = list(read(options.split))
    print(f"UD English EWT {options.split}: {len(sentences):,} sentences")
    for version in (1, words.VERSION):
        score, exact = score_words(sentences, version, options.errors * (version > 1))
        ends = score_ends(sentences, version)
        print(f"version {version}: words {score}, {exact:,} of {len(sentences):,} sentences exact")
        print(f"           sentence ends in paragraphs {ends}")
    ratio = speed(options.split, options.rounds) if options.rounds else SPEED
    is_good = score.f1 >= WORD_F1 and exact / len(sentences) >= EXACT and ends.f1 >= END_F1
    print("met" if is_good and ratio >= SPEED else "NOT met")
    return not (is_good and ratio >= SPEED)


if __name__ == "__main__":
    sys.exit(main())
