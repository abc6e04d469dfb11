"""torch.compile of a task model with an ELMo layer in it."""

import random
import shutil

import pytest
import torch
from torch import nn

from elmwright.model.bilm import BiLM
from elmwright.model.inference.elmo import Elmo
from elmwright.model.inference.word_types import Sentences, batch_to_ids
from tests.support.shapes import TINY


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.elmo = Elmo(BiLM(TINY, 7), dropout=0.0)
        self.own = nn.Embedding(50, 8)
        self.tag = nn.Linear(8 + self.elmo.width, 3)

    def forward(self, sentences, ids):
        output = self.elmo(sentences)
        return self.tag(torch.cat([self.own(ids), output.mixes[0]], dim=-1))


def some_batch(seed):
    draw = random.Random(seed)
    sentences = [
        [f"w{draw.randrange(99)}" for _ in range(draw.randrange(2, 9))]
        for _ in range(draw.randrange(2, 9))
    ]
    return Sentences(sentences), torch.zeros(
        len(sentences), max(map(len, sentences)), dtype=torch.long
    )


@pytest.mark.parametrize("as_ids", [False, True])
def test_a_model_is_compiled_once_for_batches_of_all_sizes(as_ids):
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    tagger = Tagger()
    compiled = torch.compile(tagger, backend="eager")
    frames = []
    for seed in range(12):
        batch = some_batch(seed)
        if as_ids:
            batch = batch_to_ids(batch[0].batch, TINY.max_chars), batch[1]
        got = compiled(*batch)
        torch.testing.assert_close(got, tagger(*batch))
        tagger.zero_grad()
        got.square().sum().backward()
        assert tagger.elmo.mixes[0].w.grad.any()
        frames.append(counters["frames"]["ok"])
    assert frames[3] == frames[-1], f"compiled again for other batches: {frames}"


@pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no compiler")
def test_compiled_code_gives_the_same_scores_and_gradients():
    torch._dynamo.reset()
    tagger = Tagger()
    compiled = torch.compile(tagger)
    for seed in range(3):
        batch = some_batch(seed)
        gradients = []
        for model in (tagger, compiled):
            tagger.zero_grad()
            scores = model(*batch)
            scores.square().sum().backward()
            gradients.append(
                [scores.detach(), *(p.grad.clone() for p in tagger.elmo.mixes.parameters())]
            )
        for a, b in zip(*gradients, strict=True):
            torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)
