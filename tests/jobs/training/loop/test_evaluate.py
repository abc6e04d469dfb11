"""The held-out score: fresh states for every sentence, and states carried over beside it."""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from elmwright.jobs.training.loop import heldout_pass, side_by_side
from elmwright.jobs.training.loop.evaluate import (
    Score,
    evaluate,
    evaluate_probe,
    states_warning,
)
from elmwright.jobs.training.loop.exchange import Ranks
from elmwright.jobs.training.loop.heldout_pass import HeldOut
from elmwright.jobs.using.score import Scorer
from elmwright.model.bilm import States
from elmwright.model.chars import char_ids
from elmwright.model.formats.folder import load_folder
from elmwright.model.softmax import nll
from elmwright.pipeline.format.block import Block, streams
from elmwright.pipeline.format.manifest import Manifest, Split
from elmwright.pipeline.format.shards import write_shard
from elmwright.pipeline.progress import Advance
from tests.support import saved, tiny
from tests.support.corpus.plain_packing import pack
from tests.support.random_model import VOCAB, write_random_model

WINDOW, STEPS = 8, 24
IDS = {word: number for number, word in enumerate(VOCAB)}
CLOSE = 5e-6
"""Rounding errors: the random model amplifies them (its perplexity is near a million)."""


def some_sentences(lengths: Sequence[int]) -> list[list[str]]:
    draw = random.Random(3)
    return [draw.choices([*VOCAB[3:], "unheard"], k=length) for length in lengths]


PADDED = some_sentences([5, 12, 3, 20, 1, 9, 15, 7, 22, 2, 4, 11, 18, 6])
"""Several blocks, most with padding, and sentences of more than a window."""
FULL = some_sentences([11, 11, 23, 5, 5, 11, 23, 11, 11])
"""Blocks without padding."""


def blocks_of(sentences: list[list[str]]) -> list[Block]:
    return list(pack(enumerate(sentences), IDS, STEPS))


def heldout_of(
    folder: Path, sentences: list[list[str]], lanes: int = 2, window: int = WINDOW
) -> HeldOut:
    """A random model, and a corpus whose held-out set has these sentences."""
    model, corpus = folder / "model", folder / "corpus"
    if not model.exists():
        write_random_model(model)
    (corpus / "shards").mkdir(parents=True, exist_ok=True)
    shard = write_shard(corpus / "shards", "heldout", 0, blocks_of(sentences))
    manifest = tiny.manifest()
    splits = {**manifest.splits, "heldout": Split("heldout", (shard,))}
    manifest = replace(manifest, block_steps=STEPS, splits=splits)
    return heldout_on(model, corpus, manifest, lanes, window)


def heldout_on(model: Path, corpus: Path, manifest: Manifest, lanes: int, window: int) -> HeldOut:
    loaded = load_folder(model, with_softmax=True)
    assert loaded.softmax is not None
    return HeldOut(loaded.bilm, loaded.softmax, corpus, manifest, lanes, window)


def on_threads(heldout: HeldOut, monkeypatch: pytest.MonkeyPatch) -> Score:
    monkeypatch.setattr(side_by_side, "cores", lambda: heldout.lanes)

    def work(ranks: Ranks, _advance: Advance) -> Score:
        assert ranks.world == heldout.lanes
        return evaluate(replace(heldout, ranks=ranks), "heldout", probe=9)

    return side_by_side.side_by_side(heldout.lanes, work, lambda _n, _detail="": None)


@torch.no_grad()
def carried_perplexity(heldout: HeldOut, sentences: list[list[str]]) -> float:
    """The plain way: each lane reads the real steps of its blocks one by one, and keeps its
    states."""
    bilm, softmax, total, tokens = heldout.bilm, heldout.softmax, 0.0, 0
    for lane in range(heldout.lanes):
        states = States.zeros(bilm.config, 1)
        for block in blocks_of(sentences)[lane :: heldout.lanes]:
            real = STEPS - block.padding
            chars = torch.from_numpy(char_ids(block.types, bilm.config.max_chars).astype(np.int64))
            read = {
                name: torch.from_numpy(stream[:real].astype(np.int64))
                for name, stream in vars(streams(block)).items()
            }
            index = read["forward_inputs"][None], read["backward_inputs"][None]
            output = bilm(chars, *index, states)
            states, tokens = output.states, tokens + real
            tops = {"forward": output.top_forward[0], "backward": output.top_backward[0]}
            for direction, top in tops.items():
                targets = torch.from_numpy(block.ids).long()[read[f"{direction}_targets"]]
                total += float(nll(top, targets, softmax.weight, softmax.bias).double().sum())
    return float(np.exp(total / tokens / 2))


def test_the_fresh_perplexity_is_that_of_the_score_command(tmp_path: Path) -> None:
    heldout = heldout_of(tmp_path, PADDED)
    assert sum(block.padding > 0 for block in blocks_of(PADDED)) > 2
    score = evaluate(heldout, "heldout", probe=5)
    scored = Scorer(tmp_path / "model").score(PADDED)
    forward, backward = (
        np.concatenate([getattr(one, way) for one in scored]) for way in ("forward", "backward")
    )
    assert score.saved.tokens == len(forward) == sum(len(words) + 1 for words in PADDED)
    assert score.saved.states == "fresh"
    mean = (forward.mean() + backward.mean()) / 2
    assert score.saved.perplexity == pytest.approx(np.exp(-mean), rel=CLOSE)
    assert score.saved.forward_perplexity == pytest.approx(np.exp(-forward.mean()), rel=CLOSE)
    assert score.saved.backward_perplexity == pytest.approx(np.exp(-backward.mean()), rel=CLOSE)
    first = np.concatenate([one.mean for one in scored[:5]])
    assert score.probe is not None
    assert (score.probe.sentences, score.probe.tokens) == (5, len(first))
    assert score.probe.perplexity == pytest.approx(np.exp(-first.mean()), rel=CLOSE)
    assert evaluate_probe(heldout, "heldout", 5).perplexity == pytest.approx(
        score.probe.perplexity, rel=CLOSE
    )


@pytest.mark.parametrize(("lanes", "window"), [(1, 8), (4, 8), (4, 24), (3, 2), (16, 12)])
def test_lanes_window_and_threads_do_not_change_the_fresh_perplexity(
    tmp_path: Path, lanes: int, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = evaluate(heldout_of(tmp_path, PADDED), "heldout", probe=9)
    heldout = heldout_of(tmp_path, PADDED, lanes, window)
    for found in (evaluate(heldout, "heldout", probe=9), on_threads(heldout, monkeypatch)):
        assert found.saved.tokens == expected.saved.tokens
        assert found.saved.perplexity == pytest.approx(expected.saved.perplexity, rel=CLOSE)
        assert found.probe is not None
        assert expected.probe is not None
        assert found.probe.perplexity == pytest.approx(expected.probe.perplexity, rel=CLOSE)


@pytest.mark.parametrize("lanes", [1, 2, 3])
@pytest.mark.parametrize("sentences", [FULL, PADDED], ids=["full", "padded"])
def test_the_carried_perplexity_reads_the_real_steps_of_each_lane_on_end(
    tmp_path: Path, sentences: list[list[str]], lanes: int
) -> None:
    """Padding does not enter a state."""
    heldout = heldout_of(tmp_path, sentences, lanes)
    found = evaluate(heldout, "heldout").saved
    expected = carried_perplexity(heldout, sentences)
    assert found.carried_perplexity == pytest.approx(expected, rel=CLOSE)
    assert found.carried_perplexity != pytest.approx(found.perplexity, rel=1e-3)


@pytest.mark.parametrize(
    ("fresh", "carried", "warns"),
    [(110.0, 100.0, False), (111.0, 100.0, True), (90.0, 100.0, False), (90.0, 0.0, False)],
)
def test_a_model_that_needs_the_states_of_the_sentence_before_is_warned_of(
    fresh: float, carried: float, warns: bool
) -> None:
    score = saved.score(perplexity=fresh, carried_perplexity=carried)
    text = states_warning({"news": saved.score(), "heldout": score})
    assert bool(text) == warns
    if warns:
        assert "on heldout is 111.0 with fresh states" in text
        assert "100.0 with states carried over" in text
        assert text.endswith('train with train.reset_states = "sentence"')


def test_the_softmax_is_computed_at_real_positions_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them twice in both directions: with fresh states, and with states carried over."""
    heldout = heldout_of(tmp_path, PADDED, lanes=4)
    seen: list[int] = []

    def counted(hidden: Tensor, *rest: Tensor) -> Tensor:
        seen.append(len(hidden))
        return nll(hidden, *rest)

    monkeypatch.setattr(heldout_pass, "nll", counted)
    score = evaluate(heldout, "heldout")
    assert sum(seen) == 4 * score.saved.tokens
    seen.clear()
    probe = evaluate_probe(heldout, "heldout", 3)
    assert sum(seen) == 2 * probe.tokens


def test_bits_per_character_count_the_characters_of_the_text_also_of_pieces(
    tmp_path: Path,
) -> None:
    """A piece has the space before its word in it; it used to count one behind it, too."""
    pieces = [["▁The", "▁c", "at", "."], ["▁2", "<0xEC>", "<0x95>", "<0x88>"]]
    words = heldout_of(tmp_path, pieces)
    settings = {"corpus": {"tokenizer": "sentencepiece"}}
    heldout = replace(words, manifest=replace(words.manifest, config=settings))
    saved = evaluate(heldout, "heldout").saved
    assert saved.characters == len("The cat. ") + len("2안 ")
    bits = -np.log2(np.exp(-(saved.forward_nll + saved.backward_nll) / 2)) * saved.tokens
    assert saved.bits_per_character == pytest.approx(bits / 12)
    assert evaluate(words, "heldout").saved.characters == sum(
        len(piece) + 1 for sentence in pieces for piece in sentence
    )
