"""What counting alone achieves on a corpus: held-out perplexity of n-gram models, orders 1 to 5.

    python tests/bench/bench_ngram.py [RUN or CORPUS folder] [TOKENS]

The yardstick beside a model's perplexity. Order 1 is the corpus' own unigram model (the manifest's
figure, computed again). Orders 2 to 5 are interpolated modified Kneser-Ney (Chen and Goodman 1998),
each with its own discounts. They predict exactly what the forward direction of the biLM predicts:
every word and the `</S>` of each sentence, from `<S>` and the words before it in that sentence,
over the corpus' own vocabulary with `<UNK>` as a word.

An n-gram is a number: its context's number times the vocabulary's size plus its last word, ranked
among those of train. So counting is sorting and looking up is a binary search, all in numpy. Before
anything is printed, probabilities over the whole vocabulary must add up to 1 within 1e-9.

Of a RUN that is trained, its own forward perplexity is printed too, and the ratios to the unigram
model and to the 5-gram: both predict the same tokens, if `eval.final_tokens` cut nothing off.

With TOKENS, only that many tokens of train are counted: those that a model stopped there has read.
Without a folder: WikiText-2 by the recipe of that name, where 240.0 is known (`data/wikitext2`
below the folder that ELMWRIGHT_SHARED names; skipped where it is missing).
"""

import lzma
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmwright.jobs.rundir.layout import RunFolder
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.format.block import BOS_ID, EOS_ID, Block
from elmwright.pipeline.format.manifest import Manifest, Split
from elmwright.pipeline.format.shards import ShardReader
from elmwright.pipeline.format.vocab import unigram_perplexity
from elmwright.pipeline.storage.files import at

ROOT = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("ELMWRIGHT_SHARED", ROOT.parent / "shared"))
WIKITEXT2 = SHARED / "data" / "wikitext2"
KNOWN = 240.0
"""Perplexity of the 5-gram on WikiText-2's validation lines, blank ones skipped, as published."""
ORDER = 5
FALLBACK = (0.5, 1.0, 1.5)
"""Discounts where the counts of counts give none, as in a vocabulary without rare words."""
SAMPLE = 200
"""Contexts whose probabilities are added up."""

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Text:
    """Sentences one after the other, each `<S> w1…wn </S>`, as vocabulary ids."""

    words: Ints
    """The ids, marks included."""
    place: Ints
    """How many ids of the sentence stand before each: 0 for `<S>`."""

    @property
    def targets(self) -> Ints:
        """Where something is predicted: everywhere but at `<S>`."""
        return np.flatnonzero(self.place > 0)


def text_of(sentences: Ints, lengths: Ints) -> Text:
    """Words of sentences (ids, one after the other) of these lengths, with their marks."""
    sizes = lengths + 2
    ends = np.cumsum(sizes) - 1
    words = np.full(int(sizes.sum()), -1, np.int64)
    words[ends] = EOS_ID
    words[ends - sizes + 1] = BOS_ID
    words[words < 0] = sentences
    place = np.arange(words.size) - np.repeat(ends - sizes + 1, sizes)
    return Text(words, place)


def read_split(corpus: Path, split: Split) -> Text:
    """All sentences of a split."""

    def blocks() -> Iterator[Block]:
        for shard in split.shards:
            reader = ShardReader(corpus / shard.tar, shard)
            yield from (reader.read(number) for number in range(len(reader)))

    read = [(block.ids[block.tokens], block.lengths) for block in blocks()]
    words = np.concatenate([words for words, _ in read]).astype(np.int64)
    return text_of(words, np.concatenate([lengths for _, lengths in read]).astype(np.int64))


@dataclass(frozen=True)
class Level:
    """One order of the model: which n-grams train has, and how they share each context."""

    keys: Ints
    """[n-grams] context number · vocabulary + word, rising; an n-gram's number is its place."""
    mass: Floats
    """[n-grams] discounted count over its context's sum: the part that is not interpolated."""
    rest: Floats
    """[contexts] share left for the next lower order; 1 where the context predicted nothing."""
    discounts: tuple[float, float, float]
    """For counts of 1, 2, and 3 or more."""


class KneserNey:
    """Interpolated modified Kneser-Ney of the orders 2 … `order`, from one pass over train.

    A model of order n counts occurrences at order n and, below it, in how many contexts an n-gram
    occurs. So every order needs both levels: `top[n]` ends a model, `below[n]` is inside higher
    ones. N-grams that begin with `<S>` have nothing to their left and keep their occurrences.
    """

    def __init__(self, train: Text, size: int, order: int = ORDER) -> None:
        """Count; `size` is that of the vocabulary, marks included."""
        self.size, self.order = size, order
        self.top: dict[int, Level] = {}
        self.below: dict[int, Level] = {}
        numbers, contexts = train.words, size  # of the n-gram that ends at each word
        occurrences = np.bincount(train.words[train.targets], minlength=size)
        initial = np.zeros(size, bool)  # which n-grams begin with <S>
        initial[BOS_ID] = True
        keys = np.arange(size, dtype=np.int64)
        for n in range(2, order + 1):
            keep = np.flatnonzero(train.place >= n - 1)
            found = numbers[keep - 1] * size + train.words[keep]
            longer, first, inverse, counts = np.unique(
                found, return_index=True, return_inverse=True, return_counts=True
            )
            spread = np.bincount(numbers[keep[first]], minlength=keys.size)
            adjusted = np.where(initial, occurrences, spread)
            if n == 2:
                self.unigram = _unigram(adjusted)
            else:
                self.below[n - 1] = level(keys, adjusted, contexts, size)
            contexts, keys, occurrences = keys.size, longer, counts
            initial = initial[keys // size]
            self.top[n] = level(keys, occurrences, contexts, size)
            numbers = np.full(train.words.size, -1, np.int64)
            numbers[keep] = inverse

    def probabilities(self, words: Ints, contexts: list[Ints]) -> dict[int, Floats]:
        """By order, of words after contexts: `contexts[n]` numbers the n words before each word.

        −1 is a context that train does not have.
        """
        lower = self.unigram[words]
        found: dict[int, Floats] = {}
        for n in range(2, self.order + 1):
            found[n] = _mix(self.top[n], words, contexts[n - 1], lower, self.size)
            if n < self.order:
                lower = _mix(self.below[n], words, contexts[n - 1], lower, self.size)
        return found

    def contexts(self, text: Text) -> list[Ints]:
        """By length n, the number of the n words before each target, −1 if train has them not."""
        at = text.targets
        found, ending = [np.zeros(at.size, np.int64)], text.words
        for n in range(1, self.order):
            if n > 1:
                before = np.concatenate([[-1], ending[:-1]])
                # Before <S> is another sentence.
                before[text.place < n - 1] = -1
                ending = find(self.top[n].keys, before, text.words, self.size)
            found.append(ending[at - 1])
        return found


def _unigram(counts: Ints) -> Floats:
    """Order 1 inside the higher ones: discounted, the rest spread over all words but `<S>`."""
    counts = counts.copy()
    counts[BOS_ID] = 0
    taken = np.array([0.0, *discounts(counts)])[np.minimum(counts, 3)]
    total = counts.sum()
    uniform = np.full(counts.size, 1 / (counts.size - 1))
    uniform[BOS_ID] = 0
    return np.asarray((counts - taken) / total + taken.sum() / total * uniform)


def level(keys: Ints, counts: Ints, contexts: int, size: int) -> Level:
    """Discount the counts of n-grams and hand what is left to the next lower order."""
    taken = discounts(counts)
    by_gram = np.array([0.0, *taken])[np.minimum(counts, 3)]
    context = keys // size
    total = np.bincount(context, counts, minlength=contexts)
    left = np.bincount(context, by_gram, minlength=contexts)
    rest = np.divide(left, total, out=np.ones(contexts), where=total > 0)
    return Level(keys, (counts - by_gram) / total[context], rest, taken)


def discounts(counts: Ints) -> tuple[float, float, float]:
    """Chen and Goodman's three, from how many n-grams have a count of 1, 2, 3 and 4."""
    of = np.bincount(np.minimum(counts, 5), minlength=6)
    if (of[1:5] == 0).any():
        return FALLBACK
    y = of[1] / (of[1] + 2 * of[2])
    one, two, three = (float(j - (j + 1) * y * of[j + 1] / of[j]) for j in (1, 2, 3))
    if not (0 < one <= 1 and 0 < two <= 2 and 0 < three <= 3):
        return FALLBACK
    return one, two, three


def find(keys: Ints, contexts: Ints, words: Ints, size: int) -> Ints:
    """The number of each context + word among `keys`; −1 where it is not there."""
    wanted = contexts * size + words
    at = np.minimum(np.searchsorted(keys, wanted), keys.size - 1)
    return np.where((contexts >= 0) & (keys[at] == wanted), at, -1)


def _mix(level: Level, words: Ints, contexts: Ints, lower: Floats, size: int) -> Floats:
    at = find(level.keys, contexts, words, size)
    own = np.where(at >= 0, level.mass[at], 0.0)
    rest = np.where(contexts >= 0, level.rest[contexts], 1.0)
    return np.asarray(own + rest * lower)


def largest_error(model: KneserNey, contexts: list[Ints], sample: Ints) -> float:
    """How far from 1 the probabilities of all words add up, at worst, over a sample of contexts."""
    everything = np.arange(model.size)
    worst = 0.0
    for position in sample:
        repeated = [np.full(model.size, of[position]) for of in contexts]
        for found in model.probabilities(everything, repeated).values():
            found[BOS_ID] = 0  # never predicted
            worst = max(worst, abs(math.fsum(found) - 1))
    return worst


def first_tokens(text: Text, limit: int) -> Text:
    """The sentences at the beginning that make up at most `limit` tokens, but at least one."""
    starts = np.flatnonzero(text.place == 0)
    ends = np.append(starts[1:], text.words.size)
    tokens = np.cumsum(ends - starts - 1)
    end = ends[max(1, np.searchsorted(tokens, limit, side="right")) - 1]
    return Text(text.words[:end], text.place[:end])


def measure(corpus: Path, limit: int | None = None) -> dict[str, dict[int, float]]:
    """Print, and return, the perplexity of each held-out set by order."""
    began = time.monotonic()
    manifest = Manifest.load(corpus)
    size = manifest.vocab.size
    heldout = {name: split for name, split in manifest.splits.items() if name != "train"}
    if not heldout:
        raise UserError(
            "split-missing",
            f"{corpus} has no held-out set; set corpus.heldout and build it again",
        )
    train = read_split(corpus, manifest.splits["train"])
    whole = limit is None or limit >= train.targets.size
    if limit is not None:
        train = first_tokens(train, limit)
    print(f"train      {train.targets.size:,} tokens, vocabulary {size:,}")
    model = KneserNey(train, size)
    for n, found in model.top.items():
        print(
            f"  {n}-grams  {found.keys.size:>12,}   discounts "
            + " ".join(f"{value:.3f}" for value in found.discounts)
        )
    counts = np.bincount(train.words[train.targets], minlength=size)
    results = {}
    for name, split in heldout.items():
        text = read_split(corpus, split)
        targets = text.words[text.targets]
        contexts = model.contexts(text)
        sample = np.random.default_rng(1).choice(targets.size, min(SAMPLE, targets.size), False)
        error = largest_error(model, contexts, sample)
        if error > 1e-9:
            raise AssertionError(f"probabilities add up to 1 ± {error:.1e}")
        found = {1: unigram_perplexity(counts, np.bincount(targets, minlength=size))}
        if whole and abs(found[1] / manifest.unigram_perplexity[name] - 1) > 1e-9:
            raise AssertionError(f"unigram {found[1]}, but {manifest.unigram_perplexity[name]}")
        for n, values in model.probabilities(targets, contexts).items():
            found[n] = math.exp(-float(np.log(values).mean()))
        results[name] = found
        print(f"{name:<10} {targets.size:,} tokens; {sample.size} sums are 1 ± {error:.0e}")
        for n, perplexity in found.items():
            kind = "modified Kneser-Ney" if n > 1 else "unigram" + ", as in the manifest" * whole
            print(f"  order {n}  {perplexity:10.2f}   {kind}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{time.monotonic() - began:.1f} s, {peak:.1f} GB of memory at most")
    return results


def compare(counted: dict[str, dict[int, float]], result: dict[str, Any] | None) -> None:
    """Print a run's own forward perplexity beside what counting achieves, and the ratios."""
    scores = (result or {}).get("evaluation", {})
    if not scores:
        print("the run has no result yet: no perplexity to compare with")
    for name, score in scores.items():
        own = score["forward_perplexity"]
        unigram, best = counted[name][1], counted[name][ORDER]
        ratios = f"{own / unigram:.3f} of the unigram, {own / best:.3f} of the {ORDER}-gram"
        print(f"{name:<10} the model, forward {own:.2f} on {score['tokens']:,} tokens: {ratios}")


def wikitext2(folder: Path) -> Path:
    """The corpus of the recipe `wikitext2`, built in a folder."""
    for split in ("train", "valid"):
        target = folder / "wikitext-2" / f"wiki.{split}.tokens"
        target.parent.mkdir(parents=True, exist_ok=True)
        packed = WIKITEXT2 / f"wiki.{split}.tokens.xz"
        target.write_bytes(lzma.decompress(packed.read_bytes()))
    command = [sys.executable, "-m", "elmwright.jobs.cli", "corpus", "wikitext2"]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return folder / "runs" / "wikitext2" / "corpus"


def main(arguments: list[str]) -> None:
    """Measure the folder named, or WikiText-2."""
    if arguments:
        folder = Path(arguments[0])
        limit = int(arguments[1].replace(",", "")) if len(arguments) > 1 else None
        if (folder / "MANIFEST.json").exists():
            measure(folder, limit)
        else:
            run = RunFolder.at(folder)  # whose corpus may be elsewhere
            compare(measure(Path(run.corpus), limit), at(run.result).read_json())
    elif not WIKITEXT2.is_dir():
        print(f"skipped: {WIKITEXT2} is missing; name a folder, or set ELMWRIGHT_SHARED")
    else:
        with tempfile.TemporaryDirectory(prefix="elmwright-ngram-") as temporary:
            found = measure(wikitext2(Path(temporary)))["valid"][ORDER]
        holds = abs(found - KNOWN) < 0.5
        print(f"5-gram {found:.1f}; {KNOWN} is known: {'holds' if holds else 'FAILS'}")
        sys.exit(0 if holds else 1)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UserError as error:
        sys.exit(f"error: {error}")
