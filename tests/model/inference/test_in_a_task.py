"""The ELMo layer inside a task model: types, parts that are trained, states, batches."""

import copy
import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

from elmwright.model.bilm import BiLM
from elmwright.model.inference import packed
from elmwright.model.inference.elmo import Elmo
from elmwright.model.inference.mixes import LayerMixes, normalised
from elmwright.model.inference.word_types import batch_to_ids
from elmwright.model.kernels.compile import NATIVE, TORCH
from elmwright.model.kernels.native import kernel_name, use_kernels, why_not_native
from elmwright.model.reference import ReferenceBiLM
from tests.support.mistakes import mistake
from tests.support.shapes import TINY, write_model

SENTENCES = [["The", "cat", "sat", "."], [], ["One"], ["The", "cat", "x" * 30, "on", "it"]]
CLOSE = {"atol": 1e-6, "rtol": 1e-5}


def new_elmo(seed: int = 7, **options) -> Elmo:
    return Elmo(BiLM(TINY, seed), **{"dropout": 0.0} | options)


def some_batches(count: int) -> list[list[list[str]]]:
    draw = random.Random(5)
    return [
        [[f"w{draw.randrange(60)}" * draw.randrange(1, 4) for _ in range(draw.randrange(9))]
         for _ in range(draw.randrange(1, 7))]
        for _ in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("dtype", "error"), [(torch.float16, 1e-3), (torch.bfloat16, 1e-2), (torch.float64, 1e-6)]
)
def test_a_model_works_in_any_type(dtype, error):
    wanted = new_elmo().embed(SENTENCES)
    elmo = new_elmo()
    elmo.embed(SENTENCES)  # vectors of words in the other type must not be used again
    elmo = elmo.to(dtype)
    output = elmo(SENTENCES)
    assert output.mixes[0].dtype == output.layers[0].dtype == dtype
    for a, b in zip(elmo.embed(SENTENCES), wanted, strict=True):
        assert a.dtype == np.float32
        np.testing.assert_allclose(a, b, atol=error)
    elmo.bilm.requires_grad_(True)
    elmo(SENTENCES).mixes[0].sum().backward()
    assert all(p.grad is not None and p.grad.dtype == dtype for p in elmo.parameters())


def test_autocast_leaves_nothing_behind():
    elmo = new_elmo()
    wanted = new_elmo().embed(SENTENCES)
    with torch.autocast("cpu", torch.bfloat16):
        inside = elmo(SENTENCES).layers[0]
    np.testing.assert_array_equal(elmo.embed(SENTENCES)[0], wanted[0])
    assert not np.array_equal(inside[0, :4].float().numpy(), wanted[0][0])


def test_inference_mode_leaves_nothing_behind():
    elmo = new_elmo()
    with torch.inference_mode():
        elmo.embed(SENTENCES)
        elmo(SENTENCES)
    elmo([*SENTENCES, ["new"]]).mixes[0].sum().backward()
    assert elmo.mixes[0].w.grad is not None


def test_parts_are_unfrozen_one_after_the_other():
    elmo = new_elmo()
    parts = [elmo.bilm.lstm[1], elmo.bilm.lstm[0], elmo.bilm.encoder]
    for count in range(len(parts) + 1):
        for part in parts[:count]:
            part.requires_grad_(True)
        elmo.zero_grad()
        elmo(SENTENCES).mixes[0].square().sum().backward()
        for number, part in enumerate(parts):
            has_gradients = [p.grad is not None and bool(p.grad.any()) for p in part.parameters()]
            assert all(has_gradients) if number < count else not any(has_gradients)
    assert not elmo.eval()(SENTENCES).mixes[0].isnan().any()


def test_a_trained_and_a_frozen_bilm_give_the_same_layers():
    for sentences in [*some_batches(5), [[]], []]:
        frozen, trained = new_elmo()(sentences), new_elmo(trainable_bilm=True)(sentences)
        assert torch.equal(frozen.mask, trained.mask)
        for a, b in zip(frozen.layers, trained.layers, strict=True):
            torch.testing.assert_close(a, b.detach(), **CLOSE)


def test_single_layers_are_tensors_without_padding_values():
    elmo = new_elmo()
    output = elmo(SENTENCES)
    for n, vectors in enumerate(elmo.embed(SENTENCES)):
        for layer, wanted in zip(output.layers, vectors, strict=True):
            np.testing.assert_array_equal(layer[n, : wanted.shape[0]].numpy(), wanted)
            assert not layer[n, wanted.shape[0] :].any()


@pytest.mark.parametrize("is_trained", [False, True])
def test_sentence_boundaries_are_those_of_the_reference(tmp_path, is_trained):
    elmo = new_elmo(keep_sentence_boundaries=True, trainable_bilm=is_trained)
    reference = ReferenceBiLM(*write_model(tmp_path, elmo.bilm))
    output = elmo(SENTENCES)
    assert output.mask.sum(1).tolist() == [6, 2, 3, 7]
    inner = Elmo(elmo.bilm, dropout=0.0)(SENTENCES)
    for layer, words in zip(output.layers, inner.layers, strict=True):
        for n, sentence in enumerate(SENTENCES):
            torch.testing.assert_close(layer[n, 1 : len(sentence) + 1], words[n, : len(sentence)])
    # <S> and </S> are words like any other to the encoder.
    marks = reference.embed(["<S>", "</S>"])[0][0]
    for n, sentence in enumerate(SENTENCES):
        framed = output.layers[0][n].detach()
        np.testing.assert_allclose(framed[0].numpy(), marks[0], **CLOSE)
        np.testing.assert_allclose(framed[len(sentence) + 1].numpy(), marks[1], **CLOSE)
    top = output.layers[-1].detach()
    width = TINY.projection_dim
    # The forward model has read <S> alone, and the backward one </S> alone: the same everywhere.
    assert torch.allclose(top[0, 0, :width], top[1, 0, :width])
    assert torch.allclose(top[0, 5, width:], top[1, 1, width:])
    assert not torch.allclose(top[0, 5, :width], top[1, 1, :width])
    np.testing.assert_array_equal(elmo.embed(SENTENCES)[0].shape, (3, 6, 12))


def test_mixes_begin_with_given_weights_and_may_be_fixed():
    elmo = new_elmo(mix_weights=[0, 0, 50.0], trainable_mixes=False, n_mixes=2)
    output = elmo(SENTENCES)
    torch.testing.assert_close(output.mixes[1], output.layers[2])
    assert not any(p.requires_grad for p in elmo.parameters())
    trained = new_elmo(mix_weights=[-1, 0, 1])
    assert trained.mixes[0].w.tolist() == [-1, 0, 1]
    assert trained.mixes[0].w.requires_grad
    with mistake("input", "2 numbers", "3 layers"):
        new_elmo(mix_weights=[1, 2])


@pytest.fixture(params=[NATIVE, TORCH])
def kernels(request):
    """Those in C and those of torch, one after the other."""
    with use_kernels(request.param):
        if kernel_name() != request.param:
            pytest.skip(why_not_native())
        yield request.param


def test_a_batch_has_the_same_bits_whatever_was_embedded_before(kernels):
    model = ModelOfUse()
    batches = some_batches(30)
    fresh = [model.new()(batch).mixes[0] for batch in batches]
    used = model.new()
    for batch, wanted in reversed(list(zip(batches, fresh, strict=True))):
        assert torch.equal(used(batch).mixes[0], wanted)
        for a, b in zip(used.embed(batch), model.new().embed(batch), strict=True):
            np.testing.assert_array_equal(a, b)
    for batch in batches:
        together = used.embed([*batch, *batches[0]])
        for vectors, alone in zip(together, used.embed(batch), strict=False):
            np.testing.assert_allclose(vectors, alone, atol=1e-6)


@pytest.mark.parametrize("trained", [False, True])
def test_threads_that_share_a_model_get_the_bits_of_one_thread(kernels, trained):
    """A server's threads, or a trainer's: nothing that one computes with is seen by another."""
    model = ModelOfUse()
    model.bilm.lstm[1].w.data.mul_(4)  # makes more of any difference
    batches, threads = some_batches(40), torch.get_num_threads()

    def read(elmo, batch):
        torch.set_num_threads(1)  # a new thread would begin with as many as there are cores
        if not trained:
            return elmo.embed(batch)
        elmo.bilm.requires_grad_(True)
        return [layer.detach().numpy().copy() for layer in elmo(batch).words]

    wanted = [read(model.new(), batch) for batch in batches]
    for _ in range(3):
        shared = model.new()
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda batch, elmo=shared: read(elmo, batch), batches))
        for ours, theirs in zip(found, wanted, strict=True):
            for a, b in zip(ours, theirs, strict=True):
                np.testing.assert_array_equal(a, b)
    torch.set_num_threads(threads)


def test_kernels_in_c_and_torch_give_the_same_vectors():
    model, batches = ModelOfUse(), some_batches(8)
    in_c = [model.new().embed(batch) for batch in batches]
    with use_kernels(TORCH):
        for batch, vectors in zip(batches, in_c, strict=True):
            for a, b in zip(model.new().embed(batch), vectors, strict=True):
                np.testing.assert_allclose(a, b, atol=1e-6)


def test_what_a_sentence_loses_in_other_company_is_rounding_that_large_weights_enlarge():
    """Why answers of a served random model may differ from `embed`, and no error of serving."""

    def company(factor, dtype):
        bilm = ModelOfUse().bilm
        for parameter in bilm.lstm.parameters():
            parameter.data.mul_(factor)
        elmo = Elmo(bilm, dropout=0.0).to(dtype)
        draw = random.Random(2)
        batch = [[f"w{draw.randrange(90)}" for _ in range(60)] for _ in range(8)]
        together = elmo(batch).words
        found = [
            (together[k][60 * n : 60 * (n + 1)] - layer).abs().max().item()
            for n, sentence in enumerate(batch)
            for k, layer in enumerate(elmo([sentence]).words)
        ]
        return max(found)

    assert company(1, torch.float32) < 1e-6
    assert company(3, torch.float32) > 1e-4
    assert company(3, torch.float64) < 1e-9


class ModelOfUse:
    """A model whose products are large enough for a library to choose among its ways."""

    def __init__(self) -> None:
        from elmwright.model.config import ModelConfig

        self.bilm = BiLM(ModelConfig(dim=64, projection_dim=32, n_highway=1), 3)

    def new(self) -> Elmo:
        return Elmo(self.bilm, dropout=0.0)


def test_portions_of_any_size_give_the_same_vectors(monkeypatch, kernels):
    elmo = new_elmo()
    for batch in some_batches(5):
        wanted = elmo(batch).mixes[0]
        for positions in (1, 3, 7):
            monkeypatch.setattr(packed, "POSITIONS", positions)
            torch.testing.assert_close(elmo(batch).mixes[0], wanted, **CLOSE)
        monkeypatch.undo()


def test_words_are_encoded_once_by_all_ways(monkeypatch):
    from elmwright.model.inference import word_types

    encoded = []
    encode = word_types.encode_types
    monkeypatch.setattr(
        word_types,
        "encode_types",
        lambda *given: [encoded.append(len(given[1])), encode(*given)][1],
    )
    elmo = new_elmo()
    elmo([["a", "b"], ["b"]])
    elmo([["b", "c"]])
    elmo.embed([["a", "c"]])
    assert encoded == [4, 1]
    ids = batch_to_ids([["a", "b", "c"]], TINY.max_chars)
    elmo(ids)
    elmo(ids)
    assert encoded == [4, 1, 5]  # ids are another name of the same words


class Task(nn.Module):
    def __init__(self, elmo: nn.Module) -> None:
        super().__init__()
        self.elmo, self.tag = elmo, nn.Linear(12, 3)


def test_a_state_has_no_frozen_bilm_unless_asked():
    task = Task(new_elmo())
    with torch.no_grad():
        task.elmo.mixes[0].w += 1
    state = task.state_dict()
    assert not any(name.startswith("elmo.bilm.") for name in state)
    other = Task(new_elmo())
    other.load_state_dict(state)
    assert other.elmo.mixes[0].w.tolist() == [1, 1, 1]
    assert "elmo.bilm.lstm.0.w" in Task(new_elmo(save_bilm=True)).state_dict()
    # A converted model is the same model.
    assert "elmo.bilm.lstm.0.w" not in task.half().state_dict()
    # A state that lacks something else is still refused, and so is one of another biLM.
    del state["elmo.mixes.0.w"]
    with pytest.raises(RuntimeError, match=r"elmo\.mixes\.0\.w"):
        other.load_state_dict(state)
    with mistake("model-invalid", "another biLM"):
        Task(new_elmo(seed=8)).load_state_dict(other.state_dict())


def test_a_state_has_a_bilm_that_was_ever_trained():
    trained = new_elmo(trainable_bilm=True)
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
    trained(SENTENCES).mixes[0].sum().backward()
    optimizer.step()
    trained.bilm.requires_grad_(False)
    state = trained.state_dict()
    assert "bilm.lstm.0.w" in state
    loaded = new_elmo(seed=8)
    loaded.load_state_dict(state)
    torch.testing.assert_close(loaded(SENTENCES).mixes[0], trained(SENTENCES).mixes[0])
    assert "bilm.lstm.0.w" in loaded.state_dict()  # it is not the biLM that it was opened with
    assert "bilm.lstm.0.w" in copy.deepcopy(trained).state_dict()


def test_mixes_are_trained_from_layers_and_go_back_into_an_elmo():
    elmo = new_elmo(n_mixes=2, layer_norm=True)
    layers = [torch.from_numpy(vectors) for vectors in elmo.embed(SENTENCES)]
    mixes = LayerMixes(3, 2, layer_norm=True, dropout=0.0)
    with torch.no_grad():
        mixes.mixes[1].w[:] = torch.tensor([1.0, 2.0, 3.0])
    elmo.load_state_dict(mixes.state_dict())
    mixes.load_state_dict(elmo.state_dict())
    wanted, got = elmo(SENTENCES), mixes(layers)
    assert torch.equal(got.mask, wanted.mask)
    for a, b in zip(got.mixes, wanted.mixes, strict=True):
        torch.testing.assert_close(a, b)
    half = mixes([each.half() for each in layers])
    torch.testing.assert_close(half.mixes[0], wanted.mixes[0], atol=1e-2, rtol=1e-2)
    with mistake("input", "sentence 1", "(2, 3, 12)"):
        mixes([layers[0], layers[0][:2, :3]])
    with mistake("input", "no sentence"):
        mixes([])


def test_a_model_is_opened_for_use_unless_it_is_to_be_trained(tmp_path):
    write_model(tmp_path, BiLM(TINY, 7))
    assert not Elmo.from_pretrained(tmp_path).training
    assert Elmo.from_pretrained(tmp_path, dropout=0.5).training
    assert Elmo.from_pretrained(tmp_path, trainable_bilm=True).training
    assert Task(Elmo.from_pretrained(tmp_path)).train().elmo.training


@pytest.mark.parametrize(
    ("batch", "names"),
    [
        ([["a", 3]], ("3", "int")),
        ([["a"], [None]], ("None", "sentence 1")),
        ([["a", ["b"]]], ("['b']", "list")),
        ([7], ("7", "int")),
        (None, ("None",)),
        ([b"bytes"], ("bytes",)),
        (torch.full((1, 1, 12), 999), ("261",)),
        (torch.zeros(1, 1, 12), ("float32",)),
    ],
)
def test_what_is_no_word_is_named(batch, names):
    with mistake("input", *names):
        new_elmo()(batch)


def test_layers_of_many_words_are_normalised_in_half_precision():
    """The sum of a hundred words of this width is infinite in float16."""
    layer, mask = torch.randn(4, 50, 1024), torch.ones(4, 50, dtype=torch.bool)
    half = normalised(layer.half(), mask)
    assert half.dtype == torch.float16
    torch.testing.assert_close(half.float(), normalised(layer, mask), atol=1e-2, rtol=1e-2)
