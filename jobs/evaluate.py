"""Held-out perplexity: the full softmax, every token exactly once, the same for any number of
processes.

Evaluation has lanes of its own, fixed by the config: lane i reads the held-out blocks i, i+N, …
with states that start at zero. Each lane's sums are kept in float64 and added in lane order, so
how lanes are spread over processes cannot change the result. Mean perplexity is the exponential of
the mean of the forward and backward negative log-likelihoods a token.
"""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from elmwright.jobs.exchange import Ranks
from elmwright.jobs.stream import Blocks, evaluation_batches
from elmwright.model.bilm import BiLM, States
from elmwright.model.softmax import Softmax, nll
from elmwright.pipeline.block import UNK_ID
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.files import exists, join
from elmwright.pipeline.manifest import Manifest


@dataclass(frozen=True)
class Score:
    """How well a model predicts a held-out set."""

    tokens: int
    """Predictions scored in each direction."""
    forward_nll: float
    """Mean negative log-likelihood a token, forward, in nats."""
    backward_nll: float
    """The same, backward."""
    unk_share: float
    """Share of the targets that are `<UNK>`."""
    lanes: int
    """Rows the set was read in: states pass along a row, so the result depends on it a little."""
    characters: int
    """Characters of the words scored, and one for the space or line end behind each."""

    @property
    def perplexity(self) -> float:
        """exp of the mean of both directions."""
        return _exp((self.forward_nll + self.backward_nll) / 2)

    @property
    def bits_per_character(self) -> float:
        """The same mean in bits, shared out over the characters: comparable between vocabularies,
        as far as `<UNK>` (which spells nothing) is as rare in both."""
        bits = (self.forward_nll + self.backward_nll) / 2 / math.log(2) * self.tokens
        return bits / self.characters

    def as_dict(self) -> dict[str, float]:
        return {
            "perplexity": self.perplexity,
            "bits_per_character": self.bits_per_character,
            "forward_perplexity": _exp(self.forward_nll),
            "backward_perplexity": _exp(self.backward_nll),
            **asdict(self),
        }


def _exp(value: float) -> float:
    """Also of a model that has gone astray."""
    return math.exp(value) if value < 700 else value if math.isnan(value) else math.inf


@torch.no_grad()
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
) -> Score:
    """Score a held-out set, or its first blocks of about `max_tokens` tokens."""
    mine = ranks.lanes(lanes)
    blocks = Blocks(corpus, manifest, split, bilm.config.max_chars, word_ids, keep=len(mine) + 1)
    count = len(blocks)
    if max_tokens is not None:
        count = min(count, max(1, max_tokens // blocks.steps))
    device = ranks.device
    states = States.zeros(bilm.config, len(mine), device)
    sums = torch.zeros(lanes, 5, dtype=torch.float64, device=device)
    for batch in evaluation_batches(blocks, count, mine, lanes, window):
        here = batch.to_device(device)
        output = bilm(here.chars, here.forward_index, here.backward_index, states)
        states = output.states
        weights = here.weights.double()
        for column, (hidden, targets) in enumerate(
            (
                (output.top_forward, here.forward_targets),
                (output.top_backward, here.backward_targets),
            )
        ):
            loss = nll(
                hidden.reshape(-1, hidden.size(-1)),
                targets.reshape(-1),
                softmax.weight,
                softmax.bias,
            )
            sums[mine.start : mine.stop, column] += (loss.view_as(weights) * weights).sum(1)
            if column == 0:
                unknown = (targets == UNK_ID).double() * weights
                sums[mine.start : mine.stop, 3] += unknown.sum(1)
        sums[mine.start : mine.stop, 2] += weights.sum(1)
    for number in range(count):
        if number % lanes in mine:
            sums[number % lanes, 4] += blocks.characters[number]
    forward, backward, tokens, unknown_total, characters = _in_order(ranks.sum(sums).tolist())
    return Score(
        tokens=int(tokens),
        forward_nll=forward / tokens,
        backward_nll=backward / tokens,
        unk_share=unknown_total / tokens,
        lanes=lanes,
        characters=int(characters),
    )


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
) -> dict[str, Score]:
    """Score every held-out set of a corpus, or `only` one."""
    return {
        split: evaluate(
            bilm, softmax, corpus, manifest, split, ranks,
            lanes=lanes, window=window, max_tokens=max_tokens, word_ids=word_ids,
        )
        for split in manifest.splits
        if split != "train" and only in (None, split)
    }  # fmt: skip


def _in_order(rows: list[list[float]]) -> list[float]:
    """Add lane after lane, so that the order of processes does not matter."""
    totals = [0.0] * len(rows[0])
    for row in rows:
        totals = [total + value for total, value in zip(totals, row, strict=True)]
    return totals


def evaluate_model(model: str, corpus: str, split: str | None) -> dict[str, dict[str, Any]]:
    """`elmwright eval`: a MODEL on the held-out sets of a corpus, with the model's vocabulary."""
    from elmwright.jobs.models import resolve

    if not exists(join(corpus, "MANIFEST.json")) and exists(join(corpus, "corpus/MANIFEST.json")):
        corpus = join(corpus, "corpus")
    return evaluate_folder(resolve(model), corpus, split, name=model)


def evaluate_folder(
    folder: Path, corpus: str, split: str | None, name: str = ""
) -> dict[str, dict[str, Any]]:
    """The same for a folder that is there and whole; `name` is what the user calls it."""
    from elmwright.model.folder import load_folder

    manifest = Manifest.load(corpus)
    splits = [one for one in manifest.splits if one != "train"]
    if split is not None and split not in splits:
        raise UserError(f"{corpus} has no held-out set {split!r} (it has: {', '.join(splits)})")
    if not splits:
        raise UserError(f"{corpus} has no held-out set; set corpus.heldout")
    loaded = load_folder(folder, with_softmax=True)
    if loaded.softmax is None or loaded.vocab is None:
        raise UserError(
            f"{name or folder} has no softmax, so it cannot score text; use a bundle or "
            "a checkpoint"
        )
    word_ids = {word: number for number, word in enumerate(loaded.vocab)}
    window = _eval_window(manifest.block_steps)
    lanes = recorded_lanes(loaded.folder)
    scores = evaluate_sets(
        loaded.bilm, loaded.softmax, corpus, manifest, Ranks(),
        lanes=lanes, window=window, word_ids=word_ids, only=split,
    )  # fmt: skip
    return {one: score.as_dict() for one, score in scores.items()}


def recorded_lanes(folder: Path) -> int:
    """The evaluation lanes a bundle or checkpoint was measured with, so that scores compare."""
    content = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if "run_config" in content:
        return int(content["run_config"]["eval"]["lanes"])
    return int(content["eval_lanes"])


def _eval_window(block_steps: int) -> int:
    """The largest divisor of a block up to 64 steps: the window does not change the result."""
    return max(w for w in range(1, 65) if block_steps % w == 0)
