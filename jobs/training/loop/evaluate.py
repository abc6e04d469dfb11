"""Held-out perplexity: the full softmax, every token exactly once, the same for any number of
processes.

The perplexity to publish is the fresh one: every sentence is read from zero states, as by embedding
and `elmwright score`. The carried one is measured beside it: lane i reads the held-out blocks i,
i+N, … and its states pass from sentence to sentence, so this number depends on `eval.lanes`. Where
the two differ much, the model has not learned to start from zero.

Each lane's sums are kept in float64 and added in lane order, so how lanes are spread over processes
cannot change the result. Mean perplexity is the exponential of the mean of the forward and backward
negative log-likelihoods per token.

Training ends with such an evaluation, of up to `eval.final_tokens` tokens. In the same pass it
scores the first 2,000 sentences of each set separately: the probe. Export compares a bundle's own
files with the trainer on exactly those, which takes seconds where the whole set would take hours.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from elmwright.jobs.checkpoints.contents import Probe, SavedScore
from elmwright.jobs.training.loop.heldout_pass import HeldOut, Pass, exp
from elmwright.pipeline.format.manifest import Manifest

PROBE_SENTENCES = 2000
"""First sentences of a held-out set that are also scored separately."""
NOTABLE = 1.1
"""Fresh perplexity over carried perplexity from which on a warning is given."""
LARGE_VOCABULARY, LARGE_LIMIT = 100_000, 1_000_000
"""A full softmax over this many words or more is slow, so this many tokens are scored at most."""


def final_limit(final_tokens: int, vocabulary: int) -> int | None:
    """The tokens that `eval.final_tokens` means for a vocabulary of this size. None means all."""
    if final_tokens:
        return final_tokens
    return None if vocabulary < LARGE_VOCABULARY else LARGE_LIMIT


@dataclass(frozen=True)
class Score:
    """How well a model predicts a held-out set."""

    saved: SavedScore
    """The score as it is written to files and the journal."""
    probe: Probe | None = None
    """The score of the set's first sentences, where they were scored separately."""


def evaluate(heldout: HeldOut, split: str, max_tokens: int | None = None, probe: int = 0) -> Score:
    """Score a held-out set, or its first blocks of about `max_tokens` tokens.

    The first `probe` sentences are also scored separately. Bits per character are comparable
    between vocabularies if `<UNK>` (which has no spelling) is equally rare in both.
    """
    scoring = Pass(heldout, split, probe)
    scoring.run(_block_limit(heldout.manifest, split, max_tokens))
    totals = scoring.totals()
    tokens = totals.tokens
    forward, backward = (loss / tokens for loss in totals.fresh)
    mean = (forward + backward) / 2
    saved = SavedScore(
        perplexity=exp(mean),
        bits_per_character=mean / math.log(2) * tokens / totals.characters,
        forward_perplexity=exp(forward),
        backward_perplexity=exp(backward),
        tokens=tokens,
        forward_nll=forward,
        backward_nll=backward,
        unk_share=totals.unknown / tokens,
        lanes=heldout.lanes,
        characters=totals.characters,
        states="fresh",
        carried_perplexity=exp(sum(loss / tokens for loss in totals.carried) / 2),
    )
    return Score(saved, scoring.probe() if probe else None)


def states_warning(scores: Mapping[str, SavedScore]) -> str:
    """A sentence about the first held-out set that the model predicts much worse with fresh states
    than with states carried over; empty if there is none."""
    for split, score in scores.items():
        if score.perplexity > NOTABLE * score.carried_perplexity > 0:
            return (
                f"the perplexity on {split} is {score.perplexity:,.1f} with fresh states for every "
                f"sentence, but {score.carried_perplexity:,.1f} with states carried over: the "
                "model has not learned to begin a sentence from zero states, as embedding and "
                'scoring do; train with train.reset_states = "sentence"'
            )
    return ""


def evaluate_probe(heldout: HeldOut, split: str, sentences: int) -> Probe:
    """Score the first `sentences` of a held-out set and nothing else."""
    scoring = Pass(heldout, split, sentences)
    scoring.run(heldout.manifest.splits[split].blocks, only_probe=True)
    return scoring.probe()


def evaluate_sets(
    heldout: HeldOut, max_tokens: int | None = None, probe: int = 0, only: str | None = None
) -> dict[str, Score]:
    """Score every held-out set of a corpus, or `only` one."""
    return {
        split: evaluate(heldout, split, max_tokens=max_tokens, probe=probe)
        for split in _heldout_sets(heldout.manifest, only)
    }


def planned_tokens(manifest: Manifest, max_tokens: int | None, only: str | None = None) -> int:
    """About how many tokens `evaluate_sets` will score."""
    return sum(
        min(
            manifest.splits[split].steps,
            manifest.block_steps * _block_limit(manifest, split, max_tokens),
        )
        for split in _heldout_sets(manifest, only)
    )


def _heldout_sets(manifest: Manifest, only: str | None) -> list[str]:
    return [split for split in manifest.splits if split != "train" and only in (None, split)]


def _block_limit(manifest: Manifest, split: str, max_tokens: int | None) -> int:
    """How many blocks of a set are scored."""
    blocks = manifest.splits[split].blocks
    return blocks if max_tokens is None else min(blocks, max(1, max_tokens // manifest.block_steps))
