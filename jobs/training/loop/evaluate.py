"""Held-out perplexity: the full softmax, every token exactly once, the same for any number of
processes.

Evaluation has lanes of its own, fixed by the config: lane i reads the held-out blocks i, i+N, …
with states that start at zero. Each lane's sums are kept in float64 and added in lane order, so
how lanes are spread over processes cannot change the result. Mean perplexity is the exponential of
the mean of the forward and backward negative log-likelihoods a token.

Training ends with such an evaluation, of up to `eval.final_tokens` tokens. In the same pass it
scores the first 2,000 sentences of each set apart: the probe. Export compares a bundle's own files
with the trainer on exactly those, which takes seconds where the whole set would take hours.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from elmwright.jobs.checkpoints.contents import Probe, SavedScore
from elmwright.jobs.training.loop.block_cache import BlockCache
from elmwright.jobs.training.loop.exchange import Ranks
from elmwright.jobs.training.loop.heldout_pass import Pass, exp
from elmwright.jobs.training.loop.stream import Blocks
from elmwright.model.bilm import BiLM
from elmwright.model.softmax import Softmax
from elmwright.pipeline.format.manifest import Manifest
from elmwright.pipeline.progress import Advance

PROBE_SENTENCES = 2000
"""First sentences of a held-out set that are also scored apart."""
MOST_LANES = 1 << 16
"""More than any run evaluates with; each lane's states are held in memory."""
LARGE_VOCABULARY, LARGE_LIMIT = 100_000, 1_000_000
"""From so many words on the full softmax is slow, and so many tokens are enough."""


def final_limit(final_tokens: int, vocabulary: int) -> int | None:
    """The tokens that `eval.final_tokens` means for a vocabulary of this size; None means all."""
    if final_tokens:
        return final_tokens
    return None if vocabulary < LARGE_VOCABULARY else LARGE_LIMIT


@dataclass(frozen=True)
class Score:
    """How well a model predicts a held-out set."""

    tokens: int
    """Predictions scored in each direction."""
    forward_nll: float
    """Mean negative log-likelihood per token, forward, in nats."""
    backward_nll: float
    """The same, backward."""
    unk_share: float
    """Share of the targets that are `<UNK>`."""
    lanes: int
    """Rows the set was read in: states pass along a row, so the result depends on it a little."""
    characters: int
    """Characters of the words scored, and one for the space or line end behind each."""
    probe: Probe | None = None
    """The set's first sentences, where they were scored apart; not part of `saved`."""

    @property
    def perplexity(self) -> float:
        """exp of the mean of both directions."""
        return exp((self.forward_nll + self.backward_nll) / 2)

    @property
    def bits_per_character(self) -> float:
        """The same mean in bits, shared out over the characters: comparable between vocabularies,
        as far as `<UNK>` (which spells nothing) is as rare in both."""
        bits = (self.forward_nll + self.backward_nll) / 2 / math.log(2) * self.tokens
        return bits / self.characters

    def saved(self) -> SavedScore:
        """The score as files and the journal hold it."""
        return SavedScore(
            perplexity=self.perplexity,
            bits_per_character=self.bits_per_character,
            forward_perplexity=exp(self.forward_nll),
            backward_perplexity=exp(self.backward_nll),
            tokens=self.tokens,
            forward_nll=self.forward_nll,
            backward_nll=self.backward_nll,
            unk_share=self.unk_share,
            lanes=self.lanes,
            characters=self.characters,
        )


def evaluate(
    bilm: BiLM,
    softmax: Softmax,
    corpus: str | Path,
    manifest: Manifest,
    split: str,
    ranks: Ranks,
    *,
    lanes: int,
    window: int,
    max_tokens: int | None = None,
    word_ids: dict[str, int] | None = None,
    probe: int = 0,
    cache: BlockCache | None = None,
    stopped: Callable[[], bool] | None = None,
    advance: Advance = lambda _n, _detail="": None,
) -> Score:
    """Score a held-out set, or its first blocks of about `max_tokens` tokens.

    The first `probe` sentences are scored apart, too. `cache` keeps the blocks of a store for the
    next evaluation. All processes leave with `EvaluationStopped` when one of them is `stopped`.
    """
    blocks = _heldout_blocks(bilm, corpus, manifest, split, ranks, lanes, word_ids, cache)
    one = Pass(bilm, softmax, blocks, ranks, lanes, window, probe, stopped, advance)
    one.run(block_limit(len(blocks), blocks.steps, max_tokens))
    forward, backward, tokens, unknown, characters, *_ = one.totals()
    return Score(
        tokens=int(tokens),
        forward_nll=forward / tokens,
        backward_nll=backward / tokens,
        unk_share=unknown / tokens,
        lanes=lanes,
        characters=int(characters),
        probe=one.probe() if probe else None,
    )


def evaluate_probe(
    bilm: BiLM,
    softmax: Softmax,
    corpus: str | Path,
    manifest: Manifest,
    split: str,
    sentences: int,
    ranks: Ranks,
    *,
    lanes: int,
    window: int,
    word_ids: dict[str, int] | None = None,
    advance: Advance = lambda _n, _detail="": None,
) -> Probe:
    """Score the first `sentences` of a held-out set and nothing else."""
    blocks = _heldout_blocks(bilm, corpus, manifest, split, ranks, lanes, word_ids)
    one = Pass(bilm, softmax, blocks, ranks, lanes, window, sentences, None, advance)
    one.run(len(blocks), only_probe=True)
    return one.probe()


def _heldout_blocks(
    bilm: BiLM,
    corpus: str | Path,
    manifest: Manifest,
    split: str,
    ranks: Ranks,
    lanes: int,
    word_ids: dict[str, int] | None,
    cache: BlockCache | None = None,
) -> Blocks:
    keep = len(ranks.lanes(lanes)) + 1
    chars, widest = bilm.config.max_chars, bilm.encoder.widest
    return Blocks(corpus, manifest, split, chars, word_ids, keep=keep, cache=cache, widest=widest)


def block_limit(blocks: int, steps: int, max_tokens: int | None) -> int:
    """How many blocks are scored of a set that has so many."""
    return blocks if max_tokens is None else min(blocks, max(1, max_tokens // steps))


def evaluate_sets(
    bilm: BiLM,
    softmax: Softmax,
    corpus: str | Path,
    manifest: Manifest,
    ranks: Ranks,
    *,
    lanes: int,
    window: int,
    max_tokens: int | None = None,
    word_ids: dict[str, int] | None = None,
    only: str | None = None,
    probe: int = 0,
    cache: BlockCache | None = None,
    stopped: Callable[[], bool] | None = None,
    advance: Advance = lambda _n, _detail="": None,
) -> dict[str, Score]:
    """Score every held-out set of a corpus, or `only` one."""
    return {
        split: evaluate(
            bilm,
            softmax,
            corpus,
            manifest,
            split,
            ranks,
            lanes=lanes,
            window=window,
            max_tokens=max_tokens,
            word_ids=word_ids,
            probe=probe,
            cache=cache,
            stopped=stopped,
            advance=advance,
        )
        for split in manifest.splits
        if split != "train" and only in (None, split)
    }


def planned_tokens(manifest: Manifest, max_tokens: int | None, only: str | None = None) -> int:
    """About how many tokens `evaluate_sets` will score."""
    steps = manifest.block_steps
    return sum(
        min(split.steps, steps * block_limit(split.blocks, steps, max_tokens))
        for name, split in manifest.splits.items()
        if name != "train" and only in (None, name)
    )


def _eval_window(block_steps: int) -> int:
    """The largest divisor of a block up to 64 steps: the window does not change the result."""
    return max(w for w in range(1, 65) if block_steps % w == 0)
