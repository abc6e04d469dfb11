"""The trimmed, grouped encoder is the plain one."""

import dataclasses

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given, settings
from hypothesis import strategies as st

from elmwright.model.bilm import BiLM
from elmwright.model.chars import char_ids
from elmwright.model.encoder import TokenEncoder
from elmwright.model.reference import ReferenceBiLM
from tests.support.shapes import TINY, configs, write_model


def plain(encoder: TokenEncoder, chars: torch.Tensor) -> torch.Tensor:
    """Every position, one group, torch's own convolution."""
    table = torch.cat([torch.zeros(1, encoder.config.char_dim), encoder.char_embed])
    embedded = F.embedding(chars.long(), table).transpose(1, 2)
    maxima = [
        F.conv1d(embedded, conv.weight.permute(2, 1, 0), conv.bias).amax(2) for conv in encoder.conv
    ]
    x = torch.cat(maxima, 1)
    x = x.relu() if encoder.config.activation == "relu" else x.tanh()
    for highway in encoder.highway:
        x = highway(x)
    return x if encoder.projection is None else encoder.projection(x)


@settings(max_examples=40, deadline=None)
@given(configs(), st.lists(st.text(max_size=20), min_size=1, max_size=12), st.booleans())
def test_trimming_changes_neither_values_nor_gradients(config, words, padding):
    encoder = BiLM(config, 3).encoder
    chars = torch.from_numpy(char_ids(words, config.max_chars))
    if padding:  # mask words, and rows that no word has
        odd = torch.randint(0, 262, (2, config.max_chars), dtype=torch.int16)
        chars = torch.cat([chars, torch.zeros(1, config.max_chars, dtype=torch.int16), odd])
    results = []
    for run in (encoder, lambda ids: plain(encoder, ids)):
        out = run(chars)
        encoder.zero_grad()
        (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum().backward()
        results.append((out.detach(), [p.grad.clone() for p in encoder.parameters()]))
    (got, got_grads), (wanted, wanted_grads) = results
    torch.testing.assert_close(got, wanted, atol=1e-6, rtol=1e-5)
    for a, b in zip(got_grads, wanted_grads, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


@settings(max_examples=15, deadline=None)
@given(configs(), st.lists(st.text(max_size=20), min_size=1, max_size=4))
def test_any_shape_equals_the_reference(tmp_path_factory, config, words):
    bilm = BiLM(config, 1)
    reference = ReferenceBiLM(*write_model(tmp_path_factory.mktemp("model"), bilm))
    got = bilm.encoder(torch.from_numpy(char_ids(words, config.max_chars)))
    wanted = np.stack([reference.encode(word) for word in words])
    np.testing.assert_allclose(got.detach().numpy(), wanted, atol=1e-6, rtol=1e-5)


def test_the_mask_row_is_zero_and_learns_nothing():
    encoder = BiLM(TINY, 0).encoder
    chars = torch.zeros(2, TINY.max_chars, dtype=torch.int16)
    encoder(chars).sum().backward()
    assert encoder.char_embed.shape == (261, TINY.char_dim)
    assert not encoder.char_embed.grad.any()


def test_no_types_give_no_rows():
    assert BiLM(TINY).encoder(torch.zeros(0, TINY.max_chars, dtype=torch.int16)).shape == (0, 6)


def test_initial_values_are_those_of_bilm_tf_and_a_function_of_the_seed():
    config = dataclasses.replace(TINY, filters=((1, 100), (2, 100)), projection_dim=64)
    one, same, other = BiLM(config, 5), BiLM(config, 5), BiLM(config, 6)
    for a, b in zip(one.parameters(), same.parameters(), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(one.encoder.char_embed, other.encoder.char_embed)
    assert 0.9 < one.encoder.char_embed.abs().max() <= 1
    assert 0.04 < one.encoder.conv[1].weight.abs().max() <= 0.05
    assert (one.encoder.highway[0].b_carry == -2).all()
    assert one.encoder.highway[0].w_carry.std().item() == pytest.approx(200**-0.5, rel=0.05)
    assert one.encoder.projection.weight.std().item() == pytest.approx(200**-0.5, rel=0.05)
    limit = (6 / (128 + 48)) ** 0.5
    assert 0.95 * limit < one.lstm[0].w.abs().max() <= limit
