"""The ELMo layer: mixes, batching, states, hard inputs."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elmwright.model.bilm import BiLM
from elmwright.model.inference import reading, word_types
from elmwright.model.inference.elmo import Elmo
from elmwright.model.inference.mixes import ScalarMix
from elmwright.model.inference.word_types import batch_to_ids
from elmwright.model.kernels.compile import NATIVE, TORCH
from elmwright.model.kernels.native import use_kernels
from elmwright.model.precision import Operands
from elmwright.model.reference import ReferenceBiLM
from tests.support.mistakes import mistake
from tests.support.shapes import TINY, configs, write_model

SENTENCES = [
    ["The", "cat", "sat", "."],
    [],
    ["One"],
    ["emoji", "👩‍👩‍👧", "and", "x" * 1000, "e\u0301"],
    ["The", "cat", "sat", "on", "the", "mat", ",", "again", "."],
]
CLOSE = {"atol": 1e-6, "rtol": 1e-5}


@pytest.fixture
def elmo():
    return Elmo(BiLM(TINY, 7), dropout=0.0)


@settings(max_examples=15, deadline=None)
@given(configs(), st.lists(st.lists(st.text(max_size=9), max_size=5), min_size=1, max_size=3))
def test_any_model_and_text_equals_the_reference(tmp_path_factory, config, sentences):
    bilm = BiLM(config, 3)
    reference = ReferenceBiLM(*write_model(tmp_path_factory.mktemp("model"), bilm))
    for got, sentence in zip(Elmo(bilm).embed(sentences), sentences, strict=True):
        wanted, _ = reference.embed(sentence)
        assert got.shape == (config.n_layers + 1, len(sentence), 2 * config.projection_dim)
        np.testing.assert_allclose(got, wanted, **CLOSE)


def test_a_sentence_has_the_same_vectors_in_any_batch(elmo):
    together = elmo.embed(SENTENCES)
    for options in ({"max_tokens": 1}, {"batch_size": 2}):
        for a, b in zip(together, elmo.embed(SENTENCES, **options), strict=True):
            np.testing.assert_allclose(a, b, **CLOSE)
    alone = [elmo.embed([sentence])[0] for sentence in reversed(SENTENCES)]
    for a, b in zip(together, reversed(alone), strict=True):
        np.testing.assert_allclose(a, b, **CLOSE)
    assert together[1].shape == (3, 0, 12)
    assert elmo.embed([]) == []


def test_windows_of_any_size_give_the_same_vectors(elmo, monkeypatch):
    wanted = elmo.embed(SENTENCES)
    monkeypatch.setattr(reading, "WINDOW", 3)
    for a, b in zip(wanted, elmo.embed(SENTENCES), strict=True):
        np.testing.assert_allclose(a, b, **CLOSE)


def test_a_very_long_sentence_is_read(elmo, tmp_path):
    words = [f"w{k % 50}" for k in range(10_000)]
    (got,) = elmo.embed([words])
    assert got.shape == (3, 10_000, 12)
    assert np.isfinite(got).all()
    mix = elmo([words, ["short"]])
    assert mix.mask.sum(1).tolist() == [10_000, 1]
    torch.testing.assert_close(mix.mixes[0][0], torch.from_numpy(got.mean(0)), **CLOSE)


def test_hard_words_equal_the_reference_and_are_cut_where_the_format_cuts(elmo, tmp_path):
    reference = ReferenceBiLM(*write_model(tmp_path, elmo.bilm))
    hard = ["", "x" * 1000, "é" * 500, "👩‍👩‍👧", "e\u0301", "é", "\u200b", "<S>", "\ud800"]
    (got,) = elmo.embed([hard])
    np.testing.assert_allclose(got, reference.embed(hard)[0], **CLOSE)
    place = {word: n for n, word in enumerate(hard)}
    assert not np.allclose(got[0, place["e\u0301"]], got[0, place["é"]])  # bytes, not characters
    room = TINY.max_chars - 2
    first, cut = elmo.embed([["x" * 1000], ["x" * room]])
    np.testing.assert_array_equal(first[0], cut[0])


def test_a_batch_of_nothing_gives_nothing(elmo):
    """No sentence, or only empty ones: shapes that a task model can go on with."""
    for sentences, shape in (([], (0, 0, 12)), ([[], []], (2, 0, 12))):
        for batch in (sentences, batch_to_ids(sentences, TINY.max_chars)):
            output = elmo(batch)
            assert output.mixes[0].shape == shape
            assert output.mask.shape == shape[:2]
    trainable = Elmo(BiLM(TINY, 7), trainable_bilm=True, dropout=0.0)
    trainable([[], []]).mixes[0].sum().backward()
    assert [vectors.shape for vectors in elmo.embed([[], []])] == [(3, 0, 12)] * 2


def test_words_and_character_ids_give_the_same_mix(elmo):
    words = elmo(SENTENCES)
    ids = elmo(batch_to_ids(SENTENCES, TINY.max_chars))
    assert words.mask.sum(1).tolist() == [4, 0, 1, 5, 9]
    assert torch.equal(words.mask, ids.mask)
    torch.testing.assert_close(words.mixes[0], ids.mixes[0])
    assert not words.mixes[0][~words.mask].any()


def test_a_fresh_mix_is_the_average_and_gamma_scales_it(elmo):
    vectors = elmo.embed(SENTENCES)
    mixed = elmo(SENTENCES).mixes[0].detach().numpy()
    for n, layers in enumerate(vectors):
        np.testing.assert_allclose(mixed[n, : layers.shape[1]], layers.mean(0), **CLOSE)
    with torch.no_grad():
        elmo.mixes[0].gamma.fill_(3.0)
    np.testing.assert_allclose(elmo(SENTENCES).mixes[0].detach().numpy(), 3 * mixed, **CLOSE)


def test_mixes_are_independent_and_the_frozen_bilm_gets_no_gradient():
    elmo = Elmo(BiLM(TINY, 7), n_mixes=2, dropout=0.0)
    first, second = elmo(SENTENCES).mixes
    first.sum().backward()
    assert elmo.mixes[0].w.grad.any()
    assert elmo.mixes[1].w.grad is None
    assert all(p.grad is None for p in elmo.bilm.parameters())
    assert second.shape == first.shape


def test_a_trainable_bilm_gets_gradients_through_all_windows(monkeypatch):
    monkeypatch.setattr(reading, "WINDOW", 3)
    elmo = Elmo(BiLM(TINY, 7), trainable_bilm=True, dropout=0.0)
    elmo(SENTENCES).mixes[0].square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in elmo.bilm.parameters())


def test_layer_normalisation_ignores_padding():
    layers = [torch.randn(2, 4, 6) * 5 + 3 for _ in range(3)]
    mask = torch.tensor([[True] * 4, [True, False, False, False]])
    mix = ScalarMix(3, layer_norm=True)
    with torch.no_grad():
        mix.w[:] = torch.tensor([0.0, -1e4, -1e4])
    words = mix(layers, mask)[mask]
    assert words.mean().item() == pytest.approx(0, abs=1e-5)
    assert words.var(correction=0).item() == pytest.approx(1, abs=1e-5)
    layers[0][1, 1:] = 1e6  # padding
    torch.testing.assert_close(mix(layers, mask)[mask], words)


def test_regularization_is_the_squared_weights(elmo):
    with torch.no_grad():
        elmo.mixes[0].w[:] = torch.tensor([1.0, 2.0, 0.0])
    assert elmo.regularization(0.1).item() == pytest.approx(0.5)


def test_carried_states_belong_to_rows(tmp_path):
    bilm = BiLM(TINY, 7)
    reference = ReferenceBiLM(*write_model(tmp_path, bilm))
    elmo = Elmo(bilm, carry_state=True)
    lines = [["a", "b", "c"], ["d"], ["e", "f"], ["g"], ["h", "i"]]
    got = elmo.embed(lines[:4], batch_size=2) + elmo.embed(lines[4:], batch_size=2)
    states = [None, None]
    for n, (line, vectors) in enumerate(zip(lines, got, strict=True)):
        wanted, states[n % 2] = reference.embed(line, states[n % 2])
        np.testing.assert_allclose(vectors, wanted, **CLOSE)
    elmo.reset_states()
    np.testing.assert_allclose(elmo.embed(lines[:1])[0], got[0], **CLOSE)


def test_cached_types_follow_the_weights(elmo, monkeypatch):
    before = elmo.embed(SENTENCES)[0]
    calls = []
    encoder, encode = elmo.bilm.encoder, word_types.encode_types
    monkeypatch.setattr(
        word_types, "encode_types", lambda *given: [calls.append(1), encode(*given)][1]
    )
    elmo.embed(SENTENCES)
    assert calls == []  # everything was known
    with torch.no_grad():
        encoder.char_embed.mul_(2)
    assert not np.allclose(elmo.embed(SENTENCES)[0], before)
    assert calls
    monkeypatch.setattr(word_types, "CACHE_BYTES", 4 * TINY.projection_dim * 8)
    changed = elmo.embed(SENTENCES, max_tokens=1)
    for a, b in zip(changed, elmo.embed(SENTENCES), strict=True):
        np.testing.assert_allclose(a, b, **CLOSE)


def test_user_errors_and_from_pretrained(elmo, tmp_path):
    with mistake("input", "sentence 0 of the batch is int (3)"):
        elmo.embed([3])
    with mistake("input", "(2, 3, 50)", "12"):
        elmo(torch.zeros(2, 3, 50))
    with mistake("input", "elmwright.Elmo.from_pretrained('models:/demo@champion')"):
        Elmo.from_pretrained("models:/demo@champion")
    write_model(tmp_path, elmo.bilm)
    loaded = Elmo.from_pretrained(tmp_path, n_mixes=2)
    assert loaded.width == 12
    np.testing.assert_allclose(loaded.embed(SENTENCES)[0], elmo.embed(SENTENCES)[0])


@pytest.mark.parametrize("kernels", [NATIVE, TORCH])
def test_vectors_of_rounded_operands_are_near_and_states_stay_exact(elmo, kernels):
    sentences = [["The", "old", "river"], ["A", "word"], ["The"] * 40]
    rounded = Elmo(elmo.bilm, dropout=0.0, precision="bf16")
    with use_kernels(kernels):
        exact, near = elmo.embed(sentences), rounded.embed(sentences)
        again = Elmo(elmo.bilm, dropout=0.0, precision="bf16").embed(sentences[::-1])[::-1]
    for one, other in zip(exact, near, strict=True):
        difference = np.linalg.norm(one - other) / np.linalg.norm(one)
        assert 0 < difference < 0.02
    for one, other in zip(near, again, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-2)


def test_encoded_words_of_another_precision_are_not_reused(elmo):
    def encoded():
        return elmo.embed([["river"]])[0][0]  # layer 0, which is the encoder's output

    before = encoded()
    elmo.operands = Operands.of("bf16")
    assert not np.array_equal(encoded(), before)
    elmo.operands = Operands.of("fp32")
    assert np.array_equal(encoded(), before)
