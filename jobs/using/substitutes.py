"""`elmwright substitutes`: which words fit where a sentence marks one.

    they [play] in the garden   →   play  work  live  sit …

The forward model predicts a word from the words before it, the backward model from those after it.
Neither has seen the word itself, and their product, normalised over the vocabulary, is the
probability that is printed:

    P(w) = P(w | <S> before) · P(w | </S> after) / Σ_v P(v | <S> before) · P(v | </S> after)

Both are full softmaxes of fresh states, as in `elmwright score`. The marks `<S>`, `</S>` and
`<UNK>` are no words and have no share. The marked word is no substitute for itself; its own rank
and probability are given beside the list. A sentencepiece model substitutes pieces.

A word that is frequent everywhere has a high probability in both directions, so their product
favours frequent words more than either alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from elmwright.jobs.terminal.listing import table
from elmwright.jobs.terminal.wording import printable
from elmwright.jobs.using.argument_checks import check_count
from elmwright.jobs.using.text.marked_sentence import MarkedWords
from elmwright.model.bilm import BiLM, States
from elmwright.model.inference.reading import WINDOW
from elmwright.model.inference.word_types import TypeCache
from elmwright.model.softmax import Softmax
from elmwright.pipeline.format.block import BOS, EOS, UNK_ID

SENTENCES_AT_ONCE = 64
"""Sentences that the biLM reads together. Their probabilities are computed one by one."""
FIRST_WORD = UNK_ID + 1
"""The number of the first word in a vocabulary, after the three marks."""


@dataclass(frozen=True)
class Substitute:
    """A word of the vocabulary in the marked place."""

    word: str
    rank: int
    """From 1; the marked word has one, too."""
    probability: float
    """By both directions, normalised over the vocabulary."""
    forward: float
    """Natural logarithm of its probability given the words before."""
    backward: float
    """Natural logarithm of its probability given the words after."""


@dataclass(frozen=True)
class Substitutes:
    """The words that fit into a sentence; the fields are the keys of `--json`."""

    before: tuple[str, ...]
    """The words before the mark."""
    marked: tuple[str, ...]
    """The words in it; none for a gap."""
    after: tuple[str, ...]
    """The words after it."""
    itself: Substitute | None
    """The marked word, if it is one word of the vocabulary."""
    substitutes: list[Substitute]
    """Most probable first."""


@dataclass(frozen=True)
class Vocabulary:
    """What a model predicts: a softmax and its words, in the same order."""

    softmax: Softmax
    words: tuple[str, ...]
    ids: dict[str, int]
    """The number of each word."""


@torch.no_grad()
def substitutes_of(
    bilm: BiLM, vocabulary: Vocabulary, sentences: Sequence[MarkedWords], count: int
) -> list[Substitutes]:
    """The `count` most probable words in the marked place of each sentence."""
    check_count(count)
    cache, results = TypeCache(), []
    for start in range(0, len(sentences), SENTENCES_AT_ONCE):
        batch = sentences[start : start + SENTENCES_AT_ONCE]
        outputs = _top_outputs(bilm, cache, batch)
        for marked, output in zip(batch, outputs, strict=True):
            results.append(_ranked(vocabulary, marked, output, count))
    return results


def _top_outputs(bilm: BiLM, cache: TypeCache, sentences: Sequence[MarkedWords]) -> Tensor:
    """[sentences, 2, P]: what the forward model says after the words before each mark, and the
    backward model after the words behind it."""
    device = bilm.encoder.char_embed.device
    read = [((BOS, *marked.before), (EOS, *marked.after[::-1])) for marked in sentences]
    words = list(
        dict.fromkeys([BOS, EOS, *(word for pair in read for row in pair for word in row)])
    )
    types, places = cache.encode(bilm, words, device)
    place = dict(zip(words, places.tolist(), strict=True))
    last = np.array([[len(row) - 1 for row in pair] for pair in read])
    index = np.zeros((2, len(read), last.max() + 1), np.int64)
    for n, pair in enumerate(read):
        for direction, row in enumerate(pair):
            index[direction, n, : len(row)] = [place[word] for word in row]
    inputs = torch.from_numpy(index).to(device)
    states = States.zeros(bilm.config, len(read), device, types.dtype)
    outputs = types.new_zeros(len(read), 2, bilm.config.projection_dim)
    for start in range(0, inputs.size(2), WINDOW):
        window = inputs[:, :, start : start + WINDOW]
        output = bilm.run(types, window[0], window[1], states)
        states = output.states
        for direction, top in enumerate((output.top_forward, output.top_backward)):
            for n in np.flatnonzero(last[:, direction] // WINDOW == start // WINDOW).tolist():
                outputs[n, direction] = top[n, last[n, direction] - start]
    return outputs


def _ranked(vocabulary: Vocabulary, marked: MarkedWords, output: Tensor, count: int) -> Substitutes:
    """The most probable words, given the output [2, P] of both directions."""
    softmax, words = vocabulary.softmax, vocabulary.words
    logits = torch.addmm(softmax.bias, output.to(softmax.weight.dtype), softmax.weight.t())
    logs = logits.double().log_softmax(1)
    both = logs.sum(0)
    both[:FIRST_WORD] = -torch.inf
    shares = both.softmax(0)

    def of(number: int, rank: int) -> Substitute:
        share, forward, backward = (float(row[number]) for row in (shares, *logs))
        return Substitute(words[number], rank, share, forward, backward)

    itself = None
    number = vocabulary.ids.get(marked.words[0], 0) if len(marked.words) == 1 else 0
    if number >= FIRST_WORD:
        itself = of(number, int((shares > shares[number]).sum()) + 1)
    best = shares.topk(min(count + 1, len(words) - FIRST_WORD)).indices.tolist()
    others = [of(other, rank) for rank, other in enumerate(best, 1) if other != number]
    return Substitutes(marked.before, marked.words, marked.after, itself, others[:count])


def as_table(result: Substitutes, width: int | None = None) -> str:
    """Lines for a terminal of this width."""
    sentence = " ".join((*result.before, f"[{' '.join(result.marked)}]", *result.after))
    rows = [
        (printable(o.word), percent(o.probability), f"{o.forward:.2f}", f"{o.backward:.2f}")
        for o in result.substitutes
    ]
    header = ("", "probability", "forward", "backward")
    lines = [printable(sentence), "", *table(header, rows, width)]
    own = result.itself
    if own is not None:
        lines += [
            "",
            f"{printable(own.word)} itself has {percent(own.probability)}, rank {own.rank:,}",
        ]
    elif result.marked:
        lines += ["", f"{printable(' '.join(result.marked))} is not one word of the vocabulary"]
    return "\n".join(lines)


def percent(share: float) -> str:
    """Three digits, however small: 34.9%, 0.00123%."""
    return f"{100 * share:.3g}%"
