"""options.json + weights.hdf5, there and back, and everything that can be wrong with them."""

import json
import time

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from elmwright.model.bilm import BiLM
from elmwright.model.config import ModelConfig
from elmwright.model.formats.bilm_format import (
    check_members,
    datasets,
    read_options,
    read_weights,
    write_options,
    write_weights,
)
from elmwright.model.formats.folder import load_folder, load_tensors, model_tensors
from tests.support.mistakes import mistake
from tests.support.places import GOLDEN
from tests.support.shapes import TINY, configs, write_model

pytestmark = pytest.mark.slow(3)

CELL = "RNN_1/RNN/MultiRNNCell/Cell0/LSTMCell"


@settings(max_examples=25, deadline=None)
@given(configs())
def test_a_round_trip_keeps_every_bit_of_any_model(tmp_path_factory, config):
    folder = tmp_path_factory.mktemp("model")
    bilm = BiLM(config, 1)
    options, weights = write_model(folder, bilm)
    assert read_options(options) == config
    again = BiLM(config, 2)
    load_tensors(again, read_weights(weights, config))
    for name, tensor in model_tensors(bilm).items():
        assert torch.equal(tensor, model_tensors(again)[name])


def test_two_writes_are_the_same_file(tmp_path):
    bilm = BiLM(TINY, 1)
    write_weights(tmp_path / "a.hdf5", TINY, model_tensors(bilm))
    time.sleep(1.1)  # past the resolution of HDF5's time stamps
    write_weights(tmp_path / "b.hdf5", TINY, model_tensors(bilm))
    assert (tmp_path / "a.hdf5").read_bytes() == (tmp_path / "b.hdf5").read_bytes()


def test_the_layout_is_the_published_one(tmp_path):
    _, weights = write_model(tmp_path, BiLM(TINY, 1))
    with h5py.File(weights) as file:
        assert file["char_embed"].shape == (261, 4)
        assert file["CNN/W_cnn_1"].shape == (1, 2, 4, 4)
        assert file[f"{CELL}/W_0"].shape == (12, 48)
        assert file[f"{CELL}/W_0"].dtype == np.float32
    if GOLDEN.is_dir():
        config = read_options(GOLDEN / "options.json")
        with h5py.File(GOLDEN / "lm_weights.hdf5") as file:
            for name, (shape, _) in datasets(config).items():
                assert file[name].shape == shape


def test_the_projection_is_left_out_where_the_widths_agree():
    config = ModelConfig(projection_dim=12, filters=((1, 5), (2, 7)))
    assert not any(name.startswith("CNN_proj") for name in datasets(config))
    assert BiLM(config).encoder.projection is None


@pytest.mark.parametrize("n_characters", [261, 262])
def test_both_numberings_of_characters_are_read_alike(tmp_path, n_characters):
    options, _ = write_model(tmp_path, BiLM(TINY, 1))
    content = json.loads(options.read_text())
    content["char_cnn"]["n_characters"] = n_characters
    options.write_text(json.dumps(content))
    assert read_options(options) == TINY


def test_a_file_with_the_mask_row_is_read_too(tmp_path):
    bilm = BiLM(TINY, 1)
    _, weights = write_model(tmp_path, bilm)
    with h5py.File(weights, "r+") as file:
        rows = np.concatenate([np.zeros((1, 4), np.float32), file["char_embed"][()]])
        del file["char_embed"]
        file["char_embed"] = rows
    tensors = read_weights(weights, TINY)
    assert torch.equal(tensors["encoder.char_embed"], bilm.encoder.char_embed)


def damage(weights, name, value):
    with h5py.File(weights, "r+") as file:
        if name in file:
            del file[name]
        if value is not None:
            file[name] = value


@pytest.mark.parametrize(
    ("name", "value", "code", "detail"),
    [
        (f"{CELL}/B", None, "model-invalid", "(48,)"),
        (f"{CELL}/B", np.zeros(47, np.float32), "model-invalid", "(47,)"),
        ("extra/W", np.zeros(3, np.float32), "model-invalid", "(3,)"),
        (f"{CELL}/B", np.full(48, np.nan, np.float32), "file-damaged", "48 values"),
        (f"{CELL}/B", np.full(48, np.inf, np.float32), "file-damaged", "48 values"),
        (f"{CELL}/B", np.zeros(48, np.int32), "model-invalid", "int32"),
        ("char_embed", np.ones((262, 4), np.float32), "model-invalid", "262"),
    ],
)
def test_weights_that_do_not_fit_are_named(tmp_path, name, value, code, detail):
    _, weights = write_model(tmp_path, BiLM(TINY, 1))
    damage(weights, name, value)
    with mistake(code, "weights.hdf5", name, detail):
        load_folder(tmp_path)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda o: o["lstm"].pop("dim"), "lstm.dim"),
        (lambda o: o.pop("char_cnn"), "has no char_cnn"),
        (lambda o: o.update(char_cnn=[]), "char_cnn.n_characters"),
        (lambda o: o.update(lstm=5), "lstm.dim"),
        (lambda o: o["char_cnn"].update(n_characters=300), "300"),
        (lambda o: o["char_cnn"].update(activation="gelu"), "gelu"),
        (lambda o: o["char_cnn"].update(filters=[1, 2]), "options.json"),
        (lambda o: o.update(bidirectional=False), "one direction"),
        (lambda o: o["lstm"].update(dim=16.5), "dim is 16.5"),
        (lambda o: o["lstm"].update(cell_clip="much"), "much"),
        (lambda o: o["char_cnn"].update(filters=[]), "filters"),
    ],
)
def test_options_that_do_not_fit_are_named(tmp_path, change, name):
    options, _ = write_model(tmp_path, BiLM(TINY, 1))
    content = json.loads(options.read_text())
    change(content)
    options.write_text(json.dumps(content))
    with mistake("model-invalid", "options.json", name):
        read_options(options)


@pytest.mark.parametrize("none", [None, 0, 0.0])
def test_clips_of_null_and_zero_mean_none(tmp_path, none):
    options, _ = write_model(tmp_path, BiLM(TINY, 1))
    content = json.loads(options.read_text())
    content["lstm"].update(cell_clip=none, proj_clip=none)
    options.write_text(json.dumps(content))
    found = read_options(options)
    assert (found.cell_clip, found.proj_clip) == (0.0, 0.0)
    write_options(options, found)
    lstm = json.loads(options.read_text())["lstm"]
    assert (lstm["cell_clip"], lstm["proj_clip"]) == (None, None), "bilm-tf would clip to 0"


def test_hdf5_of_another_layout_is_not_called_damaged(tmp_path):
    _, weights = write_model(tmp_path, BiLM(TINY, 1))
    with h5py.File(weights, "w") as file:  # bilm-tf's dump of vectors: one dataset per sentence
        file["0"], file["1"] = np.zeros((3, 5, 12), np.float32), np.zeros((3, 2, 12), np.float32)
    with mistake("model-invalid", "0 (3, 5, 12), 1 (3, 2, 12)", "char_embed"):
        load_folder(tmp_path)
    with h5py.File(weights, "w"):
        pass
    with mistake("model-invalid", "nothing", "char_embed"):
        load_folder(tmp_path)


def test_groups_in_two_places_are_refused_before_they_multiply(tmp_path):
    _, weights = write_model(tmp_path, BiLM(TINY, 1))
    with h5py.File(weights, "r+") as file:
        group = file.create_group("z")
        for _ in range(5):  # 40^5 paths, none of them deep
            inner = group.create_group("0")
            for number in range(1, 40):
                group[str(number)] = inner
            group = inner
    with mistake("model-invalid", "z/"):
        check_members(weights, TINY)
    with h5py.File(weights, "r+") as file:
        del file["z"]
        file["z/a"], file["z/b"] = np.zeros(1, np.float32), np.zeros(1, np.float32)
        file["y"] = file["z"]
    with mistake("model-invalid", "weights.hdf5"):
        check_members(weights, TINY)


def test_groups_nested_deeper_than_weights_are_refused(tmp_path):
    _, weights = write_model(tmp_path, BiLM(TINY, 1))
    with h5py.File(weights, "r+") as file:
        file.create_group("/".join(["a"] * 1200))
    with mistake("model-invalid", "a/a/a"):
        check_members(weights, TINY)


def test_a_dataset_of_strings_is_refused_without_reading_it(tmp_path):
    _, weights = write_model(tmp_path, BiLM(TINY, 1))
    with h5py.File(weights, "r+") as file:
        shape = file["char_embed"].shape
        del file["char_embed"]
        file.create_dataset("char_embed", shape, dtype=h5py.string_dtype())
    with mistake("model-invalid", "char_embed", "object"):
        check_members(weights, TINY)


def test_files_of_another_format_are_refused(tmp_path):
    options, weights = write_model(tmp_path, BiLM(TINY, 1))
    weights.write_bytes(b"not hdf5")
    with mistake("model-invalid", "weights.hdf5", "HDF5"):
        read_weights(weights, TINY)
    options.write_text("{")
    with mistake("file-damaged", "options.json"):
        read_options(options)
    with mistake("file-unreadable", "absent.json"):
        read_options(tmp_path / "absent.json")
