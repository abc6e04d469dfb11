"""`elmwright score --pairs`: which of two sentences a model finds more probable.

The answer to minimal pairs ("the cats sleep", "the cats sleeps") is the share of pairs whose first
sentence is the more probable one, by the forward model, the backward model, and the mean of both.
Log-probabilities are those of `elmwright score`, end mark included and not divided by the length.

A tie counts as wrong, so that a model which finds everything equally probable is right in 0 % and
not in 100 %. The share of ties is part of the result: many of them mean that the pairs differ in a
way that the model cannot see. Equal sentences are computed once, so their scores are equal.

An unknown word is scored as `<UNK>`, which can be more probable than the word that it replaces.
Pairs whose sentences have different numbers of unknown words are therefore counted.
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TextIO

import numpy as np

from elmwright.jobs.registry.resolve import resolve
from elmwright.jobs.terminal.listing import table
from elmwright.jobs.using.argument_checks import check_score_output
from elmwright.jobs.using.pretrained import choose_device
from elmwright.jobs.using.score import Logs, Scorer, SentenceScore, open_output
from elmwright.jobs.using.text.pairs_file import Pair, read_pairs
from elmwright.jobs.using.text.sentences import text_file
from elmwright.jobs.using.text.text_lines import AT_SPACES, SAMPLE_SENTENCES, Reading, line_reader
from elmwright.model.text.text_input import TextInput
from elmwright.model.text.unknown_words import unknown_warning
from elmwright.pipeline.progress import plural

PAIRS_AT_ONCE = 512
TIE = 1e-6
"""Sums that differ by less than this share of their size are equal: they are float32 inside."""
DIRECTIONS = ("forward", "backward", "mean")
COLUMNS = ("line", "unknown_first", "unknown_second", *DIRECTIONS, "first", "second")


@dataclass(frozen=True)
class Choice:
    """How one direction chooses; the fields are the keys of `--json`."""

    right: int
    """Pairs whose first sentence is more probable."""
    ties: int
    """Pairs whose sentences are equally probable, which are not right."""
    accuracy: float
    """Share of the pairs that are right."""
    tie_share: float
    """Share of the pairs that are ties."""


@dataclass(frozen=True)
class PairScores:
    """The result of a file of pairs; the fields are the keys of `--json`."""

    pairs: int
    unequal_unknown: int
    """Pairs whose sentences have different numbers of unknown words."""
    forward: Choice
    backward: Choice
    mean: Choice


def score_pairs(
    model: str,
    source: str,
    output: Path | None = None,
    *,
    reading: Reading = Reading(),  # noqa: B008 - it is frozen
    device: str = "cpu",
    force: bool = False,
) -> PairScores:
    """Compare the sentences of every pair in `source`, and write a row per pair to `output`."""
    if output is not None:
        check_score_output(output, force)
    device = choose_device(device)
    with TemporaryDirectory() as folder, text_file(source, Path(folder)) as file:
        pairs = read_pairs(file)
    model_folder = resolve(model)
    given = TextInput.of_folder(model_folder)
    if given.tokenisation is None and not reading.tokenized:
        print(f"warning: {AT_SPACES}", file=sys.stderr)
    scorer = Scorer(model_folder, device, model)
    differences = np.zeros((len(DIRECTIONS), len(pairs)))
    sizes = np.zeros_like(differences)
    unequal = words = 0
    unknown: list[str] = []
    with nullcontext() if output is None else open_output(output) as out:
        as_json = output is not None and output.suffix == ".jsonl"
        if out is not None and not as_json:
            print(*COLUMNS, sep="\t", file=out)
        for line, (first, second) in enumerate(_scored(scorer, pairs, line_reader(given, reading))):
            sums = np.array([_sums(first), _sums(second)])
            differences[:, line] = sums[0] - sums[1]
            sizes[:, line] = np.abs(sums).sum(0)
            unequal += sum(first.unknown) != sum(second.unknown)
            if line < SAMPLE_SENTENCES:
                words += len(first.words) + len(second.words)
                unknown += unknown_of(first) + unknown_of(second)
            if out is not None:
                _write(out, line, first, second, differences[:, line].tolist(), as_json)
    advice = given.advice(given_raw=not reading.tokenized)
    if warning := unknown_warning(words, unknown, advice):
        print(f"warning: {warning}", file=sys.stderr)
    return PairScores(len(pairs), unequal, *map(_choice, differences, sizes))


def _scored(
    scorer: Scorer, pairs: Sequence[Pair], words_of: Callable[[str], list[str]]
) -> Iterator[tuple[SentenceScore, SentenceScore]]:
    """The scores of both sentences of each pair; equal sentences of a batch are scored once."""
    for start in range(0, len(pairs), PAIRS_AT_ONCE):
        batch = [
            (tuple(words_of(pair.first)), tuple(words_of(pair.second)))
            for pair in pairs[start : start + PAIRS_AT_ONCE]
        ]
        sentences = list(dict.fromkeys(chain.from_iterable(batch)))
        scores = dict(zip(sentences, scorer.score(sentences), strict=True))
        for first, second in batch:
            yield scores[first], scores[second]


def unknown_of(score: SentenceScore) -> list[str]:
    """The words of a sentence that are outside the vocabulary."""
    return [word for word, unknown in zip(score.words, score.unknown, strict=True) if unknown]


def _sums(score: SentenceScore) -> list[float]:
    return [float(getattr(score, direction).sum()) for direction in DIRECTIONS]


def _choice(differences: Logs, sizes: Logs) -> Choice:
    ties = np.abs(differences) <= TIE * sizes
    right = (differences > 0) & ~ties
    return Choice(int(right.sum()), int(ties.sum()), float(right.mean()), float(ties.mean()))


def _write(
    out: TextIO,
    line: int,
    first: SentenceScore,
    second: SentenceScore,
    differences: list[float],
    as_json: bool,
) -> None:
    """Write a row: log-probability of the first sentence minus that of the second."""
    unknown = sum(first.unknown), sum(second.unknown)
    if as_json:
        row = dict(
            zip(COLUMNS, (line, *unknown, *differences, first.words, second.words), strict=True)
        )
        print(json.dumps(row, ensure_ascii=False), file=out)
        return
    numbers = (f"{difference:.6f}" for difference in differences)
    texts = " ".join(first.words), " ".join(second.words)
    print(line, *unknown, *numbers, *texts, sep="\t", file=out)


def as_text(result: PairScores, width: int | None = None) -> str:
    """The result as a table and a sentence, for a terminal of this width."""
    choices = (getattr(result, direction) for direction in DIRECTIONS)
    rows = [
        (name, f"{choice.right:,}", f"{choice.accuracy:.1%}", f"{choice.tie_share:.1%}")
        for name, choice in zip(DIRECTIONS, choices, strict=True)
    ]
    lines = table(("", "right", "accuracy", "ties"), rows, width)
    lines.append(
        f"{plural(result.pairs, 'pair')}; right means that the first sentence is more probable, "
        "and a tie is wrong"
    )
    if result.unequal_unknown:
        lines.append(
            f"{plural(result.unequal_unknown, 'pair')} with different numbers of unknown words, "
            "whose probabilities cannot be compared well"
        )
    return "\n".join(lines)
