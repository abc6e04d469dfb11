"""The n-gram yardstick against a slow one made of dictionaries, written from the formulas."""

import math
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
from bench_ngram import (
    FALLBACK,
    KneserNey,
    Text,
    compare,
    discounts,
    first_tokens,
    largest_error,
    main,
    measure,
    text_of,
)

from elmwright.pipeline.errors import UserError
from elmwright.pipeline.format.manifest import Manifest, Split, Vocab
from elmwright.pipeline.format.shards import write_shard
from elmwright.pipeline.format.vocab import unigram_perplexity
from tests.support.corpus.plain_packing import pack

BOS, EOS, SIZE = 0, 1, 12
Gram = tuple[int, ...]


def sentences(seed: int, count: int) -> list[list[int]]:
    """Zipf-like words 2 … SIZE - 2, so that orders differ; the last word never occurs."""
    rng = np.random.default_rng(seed)
    drawn = [rng.geometric(0.25, rng.integers(1, 9)) for _ in range(count)]
    return [[2 + (int(word) - 1) % (SIZE - 3) for word in words] for words in drawn]


def as_text(lines: list[list[int]]) -> Text:
    words = np.array([word for line in lines for word in line], np.int64)
    return text_of(words, np.array([len(line) for line in lines], np.int64))


class Slow:
    """Interpolated modified Kneser-Ney of one order, as in the paper, one n-gram at a time."""

    def __init__(self, lines: list[list[int]], order: int) -> None:
        self.order = order
        raw: list[Counter[Gram]] = [Counter() for _ in range(order + 1)]
        for line in lines:
            marked = (BOS, *line, EOS)
            for end in range(1, len(marked)):
                for n in range(1, min(order, end + 1) + 1):
                    raw[n][marked[end - n + 1 : end + 1]] += 1
        self.counts: list[Counter[Gram]] = [Counter(), *(Counter() for _ in range(order))]
        for n in range(1, order + 1):
            left = defaultdict(set)
            for longer in raw[n + 1] if n < order else ():
                left[longer[1:]].add(longer[0])
            for gram, count in raw[n].items():
                self.counts[n][gram] = count if n == order or gram[0] == BOS else len(left[gram])
        self.discounts = [
            (0.0, 0.0, 0.0),
            *(discounts(np.array(list(c.values()))) for c in self.counts[1:]),
        ]

    def probability(self, word: int, context: Gram) -> float:
        context = context[-(self.order - 1) :]
        n = len(context) + 1
        lower = self.probability(word, context[1:]) if context else 1 / (SIZE - 1)
        here = {g: c for g, c in self.counts[n].items() if g[:-1] == context}
        total = sum(here.values())
        if not total:
            return lower
        taken = {g: self.discounts[n][min(c, 3) - 1] for g, c in here.items()}
        own = here.get((*context, word), 0) - taken.get((*context, word), 0.0)
        return own / total + sum(taken.values()) / total * lower


@pytest.mark.parametrize("order", [2, 3, 4, 5])
def test_probabilities_are_those_of_the_slow_model(order: int) -> None:
    train, heldout = sentences(1, 150), [*sentences(2, 12), [SIZE - 1, 2, SIZE - 1]]
    text = as_text(heldout)
    model = KneserNey(as_text(train), SIZE)
    found = model.probabilities(text.words[text.targets], model.contexts(text))[order]
    slow = Slow(train, order)
    expected = [
        slow.probability(marked[end], marked[:end])
        for line in heldout
        for marked in [(BOS, *line, EOS)]
        for end in range(1, len(marked))
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_probabilities_add_up_to_one_in_every_context() -> None:
    model = KneserNey(as_text(sentences(3, 200)), SIZE)
    text = as_text([*sentences(4, 40), [SIZE - 1] * 6])
    contexts = model.contexts(text)
    assert largest_error(model, contexts, np.arange(text.targets.size)) < 1e-12


def test_a_sum_that_is_off_is_seen() -> None:
    model = KneserNey(as_text(sentences(3, 200)), SIZE)
    text = as_text(sentences(4, 10))
    model.top[3].mass[:] *= 1.01
    assert largest_error(model, model.contexts(text), np.arange(text.targets.size)) > 1e-4


def test_discounts_of_the_paper_and_where_there_are_none() -> None:
    counts = np.repeat([1, 2, 3, 4, 9], [40, 16, 9, 6, 3])
    y = 40 / 72
    assert discounts(counts) == pytest.approx(
        (1 - 2 * y * 16 / 40, 2 - 3 * y * 9 / 16, 3 - 4 * y * 6 / 9)
    )
    assert discounts(counts[counts != 1]) == FALLBACK  # a vocabulary of frequent words
    assert discounts(np.repeat([1, 2, 3, 4], [90, 1, 90, 1])) == FALLBACK  # one below 0


def test_a_sentence_of_n_words_is_n_plus_1_targets() -> None:
    text = as_text([[5, 6], [7]])
    assert text.words.tolist() == [BOS, 5, 6, EOS, BOS, 7, EOS]
    assert text.words[text.targets].tolist() == [5, 6, EOS, 7, EOS]
    assert first_tokens(text, 4).words.tolist() == [BOS, 5, 6, EOS]
    assert first_tokens(text, 5).words.tolist() == text.words.tolist()
    assert first_tokens(text, 1).words.tolist() == [BOS, 5, 6, EOS]


def test_a_sentence_does_not_see_the_one_before_it() -> None:
    model = KneserNey(as_text(sentences(1, 150)), SIZE)
    alone, after = as_text([[3, 4, 5]]), as_text([[8, 7, 6, 2], [3, 4, 5]])
    one = model.probabilities(alone.words[alone.targets], model.contexts(alone))
    two = model.probabilities(after.words[after.targets], model.contexts(after))
    for n in range(2, 6):
        np.testing.assert_array_equal(one[n], two[n][-4:])
    assert math.isfinite(one[5].sum())


def test_a_corpus_folder_is_measured_and_its_unigram_figure_computed_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = {str(number): number for number in range(SIZE)}
    lines = {"train": sentences(5, 300), "valid": sentences(6, 30)}
    splits = {
        name: Split(
            name,
            (
                write_shard(
                    tmp_path / "shards",
                    name,
                    0,
                    pack([(0, [str(word) for word in line]) for line in text], words, 64),
                ),
            ),
        )
        for name, text in lines.items()
    }
    texts = [as_text(text) for text in lines.values()]
    train, valid = (np.bincount(text.words[text.targets], minlength=SIZE) for text in texts)

    def save(unigram: float) -> None:
        Manifest(
            created_by="test",
            key="",
            block_steps=64,
            splits=splits,
            funnel=(),
            inputs=(),
            vocab=Vocab("vocab.txt", "0" * 64, SIZE, "counts.npy", "0" * 64),
            long_words=0.0,
            unigram_perplexity={"valid": unigram},
            config={},
        ).save(tmp_path)

    save(unigram_perplexity(train, valid))
    found = measure(tmp_path)["valid"]
    slow = Slow(lines["train"], 5)
    nats = [
        -math.log(slow.probability(marked[end], marked[:end]))
        for line in lines["valid"]
        for marked in [(BOS, *line, EOS)]
        for end in range(1, len(marked))
    ]
    assert found[5] == pytest.approx(math.exp(sum(nats) / len(nats)))
    assert found[1] == unigram_perplexity(train, valid)
    assert f"valid      {valid.sum():,} tokens" in capsys.readouterr().out
    save(1.001 * found[1])
    with pytest.raises(AssertionError, match="unigram"):
        measure(tmp_path)


def test_a_folder_without_a_corpus_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no finished corpus"):
        main([str(tmp_path)])


def test_a_runs_own_perplexity_is_compared_with_counting(
    capsys: pytest.CaptureFixture[str],
) -> None:
    counted = {"valid": {1: 400.0, 5: 200.0}}
    compare(counted, {"evaluation": {"valid": {"forward_perplexity": 100.0, "tokens": 1234}}})
    told = capsys.readouterr().out
    assert "forward 100.00 on 1,234 tokens: 0.250 of the unigram, 0.500 of the 5-gram" in told
    compare(counted, None)
    assert "no result yet" in capsys.readouterr().out
