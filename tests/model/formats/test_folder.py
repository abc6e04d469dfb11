"""Every kind of model folder, and folders that are none."""

import json

import pytest
import torch
from safetensors.torch import save_file

from elmwright.model.bilm import BiLM
from elmwright.model.formats.folder import (
    load_folder,
    load_tensors,
    model_tensors,
    read_config,
    read_vocab,
    write_config,
)
from elmwright.model.softmax import Softmax
from elmwright.pipeline.errors import UserError
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


def test_what_is_not_a_model_folder(tmp_path):
    with pytest.raises(UserError, match="is not a folder"):
        load_folder(tmp_path / "absent")
    with pytest.raises(UserError, match=r"looked for config\.json with model\.safetensors"):
        load_folder(tmp_path)
    write_model(tmp_path, BiLM(TINY))
    (tmp_path / "other.hdf5").write_bytes(b"")
    with pytest.raises(UserError, match=r"2 \.hdf5 files \(other.hdf5, weights.hdf5\)"):
        load_folder(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("lstm.0.w"), r"no tensor lstm\.0\.w \(expected with shape \(2, 12, 48\)"),
        (lambda t: t.update({"lstm.0.b": torch.zeros(2, 4)}), r"\(2, 4\), but the config asks"),
        (lambda t: t.update(more=torch.zeros(1)), "tensor more that the config does not explain"),
        (lambda t: t["lstm.0.b"].fill_(torch.nan), r"lstm\.0\.b with shape .* NaN"),
    ],
)
def test_tensors_that_do_not_fit_are_named_and_nothing_is_changed(change, message):
    bilm = BiLM(TINY, 0)
    tensors = {name: tensor.clone() for name, tensor in model_tensors(BiLM(TINY, 1)).items()}
    change(tensors)
    before = bilm.encoder.char_embed.clone()
    with pytest.raises(UserError, match=message):
        load_tensors(bilm, tensors)
    assert torch.equal(before, bilm.encoder.char_embed)


def test_a_softmax_of_another_vocabulary_is_refused(bundle):
    (bundle / "vocab.txt").write_text("<S>\n</S>\n")
    with pytest.raises(UserError, match=r"weight \(3, 6\) and bias \(3,\) do not fit 2 words"):
        load_folder(bundle, with_softmax=True)


def test_damaged_safetensors_are_the_users_to_hear_of(bundle):
    (bundle / "model.safetensors").write_bytes(b"\x00" * 20)
    with pytest.raises(UserError, match="cannot be read as safetensors"):
        load_folder(bundle)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update(format=9), "format 9 and this version reads 1"),
        (lambda c: c.pop("model"), 'no section "model"'),
        (lambda c: c["model"].pop("dim"), "lacks or does not know: dim"),
        (lambda c: c["model"].update(filters=[3]), "pairs"),
        (lambda c: c["model"].update(filters=[]), r"model\.filters is empty"),
        (lambda c: c["model"].update(filters=[[99, 2]]), "width of 99, and max_chars is"),
        (lambda c: c["model"].update(filters=[["1", 2]]), "not two whole numbers"),
        (lambda c: c["model"].update(dim="x"), r"model\.dim is 'x', not a whole number from 1"),
        (lambda c: c["model"].update(dim=-1), "dim is -1"),
        (lambda c: c["model"].update(dim=16.5), r"dim is 16\.5"),
        (lambda c: c["model"].update(max_chars=0), "max_chars is 0"),
        (lambda c: c["model"].update(cell_clip="3"), "cell_clip is '3', not a number"),
        (lambda c: c["model"].update(proj_clip=float("nan")), "proj_clip is nan"),
        (lambda c: c["model"].update(activation="evil"), "activation is 'evil', not relu or tanh"),
        (lambda c: c["model"].update(residual=2), "residual is 2"),
    ],
)
def test_configs_that_do_not_fit_are_named(bundle, change, message):
    content = json.loads((bundle / "config.json").read_text())
    assert read_config(bundle / "config.json") == TINY
    assert content["vocab_size"] == 3
    change(content)
    (bundle / "config.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=message):
        read_config(bundle / "config.json")


def test_only_newlines_separate_words(tmp_path):
    words = ("<S>", "a\u2028b", "c\x85d", "e\rf")
    (tmp_path / "vocab.txt").write_bytes("".join(f"{word}\n" for word in words).encode())
    assert read_vocab(tmp_path / "vocab.txt") == words


def test_a_config_nested_without_end_is_no_json(bundle):
    (bundle / "config.json").write_text("[" * 100_000)
    with pytest.raises(UserError, match="is not JSON"):
        load_folder(bundle)


def test_a_config_that_asks_for_more_than_the_file_holds_takes_no_memory(bundle):
    content = json.loads((bundle / "config.json").read_text())
    content["model"]["dim"] = 10**9
    (bundle / "config.json").write_text(json.dumps(content))
    with pytest.raises(
        UserError, match=r"lstm\.0\.w has shape .* the config asks for .*4000000000"
    ):
        load_folder(bundle)


def test_a_vocabulary_that_is_not_text_is_named(tmp_path):
    (tmp_path / "vocab.txt").write_bytes(b"<S>\n\xff\n")
    with pytest.raises(UserError, match=r"vocab\.txt is not UTF-8 .* at byte 4"):
        read_vocab(tmp_path / "vocab.txt")
