"""Every kind of model folder, and folders that are none."""

import json

import pytest
import torch
from safetensors.torch import save_file

from elmwright.model.average import Average
from elmwright.model.bilm import BiLM
from elmwright.model.formats.folder import (
    OF_AVERAGE,
    load_folder,
    load_tensors,
    model_tensors,
    read_config,
    read_vocab,
    write_config,
)
from elmwright.model.softmax import Softmax
from elmwright.pipeline.errors import UserError
from tests.support.mistakes import mistake
from tests.support.shapes import TINY, write_model


@pytest.fixture
def bundle(tmp_path):
    bilm, softmax = BiLM(TINY, 4), Softmax.create(3, TINY.projection_dim, 5)
    write_config(tmp_path / "config.json", TINY, {"vocab_size": 3})
    save_file(model_tensors(bilm), tmp_path / "model.safetensors")
    save_file(softmax.state(), tmp_path / "softmax.safetensors")
    (tmp_path / "vocab.txt").write_bytes(b"<S>\n</S>\n<UNK>\n")
    return tmp_path


def test_bundle_checkpoint_and_published_format_load_alike(bundle):
    as_bundle = load_folder(bundle, with_softmax=True)
    (bundle / "MANIFEST.json").write_text("{}")
    as_checkpoint = load_folder(bundle)
    published = bundle / "published"
    published.mkdir()
    write_model(published, as_bundle.bilm)
    as_bilm = load_folder(published)

    kinds = [model.kind for model in (as_bundle, as_checkpoint, as_bilm)]
    assert kinds == ["bundle", "checkpoint", "bilm"]
    assert as_bundle.softmax.weight.shape == (3, 6)
    assert as_checkpoint.softmax is None
    assert as_bundle.vocab == ("<S>", "</S>", "<UNK>")
    assert as_bilm.vocab is None
    for model in (as_checkpoint, as_bilm):
        assert model.config == TINY
        for name, tensor in model_tensors(as_bundle.bilm).items():
            assert torch.equal(tensor, model_tensors(model.bilm)[name])
            assert dict(model.bilm.named_parameters())[name].requires_grad


def test_folders_without_a_model_are_refused(tmp_path):
    with mistake("model-missing", "absent"):
        load_folder(tmp_path / "absent")
    with mistake("model-missing", "config.json", "model.safetensors", "options.json"):
        load_folder(tmp_path)
    write_model(tmp_path, BiLM(TINY))
    (tmp_path / "other.hdf5").write_bytes(b"")
    with mistake("model-missing", "other.hdf5, weights.hdf5"):
        load_folder(tmp_path)


@pytest.mark.parametrize(
    ("change", "code", "names"),
    [
        (lambda t: t.pop("lstm.0.w"), "model-invalid", ["lstm.0.w", "(2, 12, 48)"]),
        (
            lambda t: t.update({"lstm.0.b": torch.zeros(2, 4)}),
            "model-invalid",
            ["lstm.0.b", "(2, 4)", "(2, 48)"],
        ),
        (lambda t: t.update(more=torch.zeros(1)), "model-invalid", ["more"]),
        (lambda t: t["lstm.0.b"].fill_(torch.nan), "file-damaged", ["lstm.0.b", "NaN"]),
    ],
)
def test_tensors_that_do_not_fit_are_named_and_nothing_is_changed(change, code, names):
    bilm = BiLM(TINY, 0)
    tensors = {name: tensor.clone() for name, tensor in model_tensors(BiLM(TINY, 1)).items()}
    change(tensors)
    before = bilm.encoder.char_embed.clone()
    with mistake(code, *names):
        load_tensors(bilm, tensors)
    assert torch.equal(before, bilm.encoder.char_embed)


def test_a_softmax_of_another_vocabulary_is_refused(bundle):
    (bundle / "vocab.txt").write_text("<S>\n</S>\n")
    with mistake("model-invalid", "softmax.safetensors", "(3, 6)", "(3,)", "2 words"):
        load_folder(bundle, with_softmax=True)


def test_damaged_safetensors_are_a_user_error(bundle):
    (bundle / "model.safetensors").write_bytes(b"\x00" * 20)
    with mistake("model-invalid", "model.safetensors"):
        load_folder(bundle)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"filters": [3]}, "model.filters"),
        ({"filters": []}, "model.filters"),
        ({"filters": [[99, 2]]}, "99"),
        ({"filters": [["1", 2]]}, "['1', 2]"),
        ({"dim": "x"}, "model.dim is 'x'"),
        ({"dim": -1}, "model.dim is -1"),
        ({"dim": 16.5}, "model.dim is 16.5"),
        ({"max_chars": 0}, "model.max_chars is 0"),
        ({"cell_clip": "3"}, "model.cell_clip is '3'"),
        ({"proj_clip": float("nan")}, "model.proj_clip is nan"),
        ({"activation": "evil"}, "model.activation is 'evil'"),
        ({"residual": 2}, "model.residual is 2"),
    ],
)
def test_values_of_a_config_that_do_not_fit_are_named(bundle, change, name):
    content = json.loads((bundle / "config.json").read_text())
    assert read_config(bundle / "config.json") == TINY
    assert content["vocab_size"] == 3
    content["model"].update(change)
    (bundle / "config.json").write_text(json.dumps(content))
    with mistake("model-invalid", "config.json", name):
        read_config(bundle / "config.json")


@pytest.mark.parametrize(
    ("change", "code", "name"),
    [
        (lambda c: c.update(format=9), "format", "9"),
        (lambda c: c.pop("model"), "model-invalid", '"model"'),
        (lambda c: c["model"].pop("dim"), "format", "dim"),
    ],
)
def test_a_config_of_another_format_is_refused(bundle, change, code, name):
    content = json.loads((bundle / "config.json").read_text())
    change(content)
    (bundle / "config.json").write_text(json.dumps(content))
    with mistake(code, "config.json", name):
        read_config(bundle / "config.json")


def test_only_newlines_separate_words(tmp_path):
    words = ("<S>", "a\u2028b", "c\x85d", "e\rf")
    (tmp_path / "vocab.txt").write_bytes("".join(f"{word}\n" for word in words).encode())
    assert read_vocab(tmp_path / "vocab.txt") == words


def test_a_deeply_nested_config_is_refused(bundle):
    (bundle / "config.json").write_text("[" * 100_000)
    with mistake("file-damaged", "config.json"):
        load_folder(bundle)


def test_a_config_of_a_larger_model_takes_no_memory(bundle):
    content = json.loads((bundle / "config.json").read_text())
    content["model"]["dim"] = 10**9
    (bundle / "config.json").write_text(json.dumps(content))
    with mistake("model-invalid", "lstm.0.w", "4000000000"):
        load_folder(bundle)


def test_a_vocabulary_that_is_not_text_is_named(tmp_path):
    (tmp_path / "vocab.txt").write_bytes(b"<S>\n\xff\n")
    with mistake("file-unreadable", "vocab.txt", "byte 4"):
        read_vocab(tmp_path / "vocab.txt")


@pytest.fixture
def averaged(bundle):
    """A checkpoint whose config says that its model is the average; the average is all zeros."""
    bilm, softmax = BiLM(TINY, 4), Softmax.create(3, TINY.projection_dim, 5)
    average = Average(bilm, softmax, horizon=4)
    for tensors in average.state().values():
        for tensor in tensors.values():
            tensor.zero_()
    rows = average.state()["average_softmax"]
    rows |= {"row_updates": torch.tensor([0, 2, 8], dtype=torch.int32)}
    rows |= {"updates": torch.tensor(8), "horizon": torch.tensor(4)}
    (bundle / "MANIFEST.json").write_text("{}")
    write_config(bundle / "config.json", TINY, OF_AVERAGE)
    save_file(average.state()["average"], bundle / "average.safetensors")
    save_file(rows, bundle / "average_softmax.safetensors")
    return bundle, rows


def test_a_checkpoint_is_its_average_if_its_config_says_so(averaged):
    folder, _ = averaged
    loaded = load_folder(folder, with_softmax=True)
    assert loaded.is_average
    assert not any(tensor.any() for tensor in model_tensors(loaded.bilm).values())
    # Rows last updated at 0, 2 and 8 of 8 updates: nothing, 2/4 · (3/4)⁴ and all of 0 are left.
    last = Softmax.create(3, TINY.projection_dim, 5).weight
    share = torch.tensor([1, 1 - 2 / 4 * (3 / 4) ** 4, 0])
    torch.testing.assert_close(loaded.softmax.weight, last * share.unsqueeze(1))

    write_config(folder / "config.json", TINY)
    loaded = load_folder(folder, with_softmax=True)
    assert not loaded.is_average
    assert torch.equal(loaded.softmax.weight, last)


def test_only_a_checkpoint_has_an_average(averaged):
    folder, _ = averaged
    (folder / "MANIFEST.json").unlink()
    assert not load_folder(folder).is_average


@pytest.mark.parametrize(
    "change",
    [
        {"horizon": torch.tensor(0)},
        {"horizon": torch.tensor(4.0)},
        {"updates": torch.tensor(7)},
        {"row_updates": torch.tensor([0, -1, 8])},
        {"row_updates": torch.tensor([0.0, 1.0, 8.0])},
        {"row_updates": torch.tensor([8])},
        {"weight": torch.full((3, TINY.projection_dim), torch.nan)},
        {"extra": torch.tensor(1)},
    ],
)
def test_an_impossible_average_is_refused(averaged, change):
    folder, rows = averaged
    save_file(rows | change, folder / "average_softmax.safetensors")
    with pytest.raises(UserError, match=r"average_softmax\.safetensors") as raised:
        load_folder(folder, with_softmax=True)
    assert raised.value.code in ("file-damaged", "model-invalid")
