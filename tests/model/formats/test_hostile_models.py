"""Model folders that claim what they do not hold: refused in a sentence, in no time and memory."""

import json
import math
import struct
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from elmwright.model.bilm import BiLM
from elmwright.model.chars import char_ids
from elmwright.model.config import MOST_CHARS, ModelConfig
from elmwright.model.formats.bilm_format import tensor_shapes, write_options, write_weights
from elmwright.model.formats.folder import load_folder, model_tensors, write_config
from elmwright.model.inference.elmo import Elmo
from tests.support.hostile import bounded, refusals, texts
from tests.support.mistakes import mistake

pytestmark = pytest.mark.slow(15)

TINY = ModelConfig(
    dim=6,
    projection_dim=4,
    n_layers=2,
    char_dim=3,
    filters=((1, 2), (2, 3)),
    n_highway=1,
    max_chars=9,
)

WORDS = ("<S>", "</S>", "<UNK>", "a", "b")


@pytest.fixture
def bilm(tmp_path: Path) -> Path:
    """A folder in the published format."""
    folder = tmp_path / "bilm"
    folder.mkdir()
    write_options(folder / "options.json", TINY)
    write_weights(folder / "weights.hdf5", TINY, model_tensors(BiLM(TINY)))
    return folder


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    """A folder in our own format."""
    folder = tmp_path / "ours"
    folder.mkdir()
    write_config(folder / "config.json", TINY)
    save_file(model_tensors(BiLM(TINY)), folder / "model.safetensors")
    save_file(
        {"weight": torch.ones(len(WORDS), 4), "bias": torch.ones(len(WORDS))},
        folder / "softmax.safetensors",
    )
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in WORDS))
    return folder


def use(folder: Path) -> None:
    """Load a model, and embed two words with it."""
    loaded = load_folder(folder, with_softmax=True)
    Elmo(loaded.bilm).embed([["a", "word" * 100]])


def test_no_field_of_the_published_options_can_hang_a_reader(bilm: Path) -> None:
    path = bilm / "options.json"
    cases = list(texts(json.loads(path.read_text())))
    wrong, refused = refusals(cases, lambda data: write(path, data), lambda: use(bilm), str(bilm))
    assert wrong == []
    assert refused > len(cases) / 2


def test_no_field_of_a_config_can_hang_a_reader(ours: Path) -> None:
    path = ours / "config.json"
    cases = list(texts(json.loads(path.read_text())))
    wrong, refused = refusals(cases, lambda data: write(path, data), lambda: use(ours), str(ours))
    assert wrong == []
    assert refused > len(cases) / 2


def write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["model.safetensors", "softmax.safetensors"])
def test_no_field_of_a_safetensors_header_can_hang_a_reader(ours: Path, name: str) -> None:
    path = ours / name
    good = path.read_bytes()
    (size,) = struct.unpack("<Q", good[:8])
    header, numbers = json.loads(good[8 : 8 + size]), good[8 + size :]
    few = dict(list(header.items())[:3]) | {"__metadata__": {"a": "b"}}
    cases = []
    for case, data in texts(few):
        for length in (len(data), 0, 10**9, 2**63):
            cases.append((f"{case}, {length}", struct.pack("<Q", length) + data + numbers))
    cases += [(f"cut at {n}", good[:n]) for n in range(0, len(good), 97)]
    wrong, refused = refusals(cases, lambda data: write(path, data), lambda: use(ours), str(ours))
    assert wrong == []
    assert refused > 0.9 * len(cases)


@pytest.mark.parametrize("dtype", ["F64", "BF16", "I8", "BOOL", "U64", "F8_E4M3", "C64"])
def test_numbers_of_another_kind_are_refused_or_read(ours: Path, dtype: str) -> None:
    width = {"F64": 8, "BF16": 2, "U64": 8, "C64": 8}.get(dtype, 1)
    tensors, offset = {}, 0
    for name, tensor in model_tensors(BiLM(TINY)).items():
        end = offset + width * tensor.numel()
        tensors[name] = {
            "dtype": dtype,
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    header = json.dumps(tensors).encode()
    data = struct.pack("<Q", len(header)) + header + bytes(offset)
    wrong, _ = refusals(
        [(dtype, data)], lambda data: write(ours / "model.safetensors", data), lambda: use(ours)
    )
    assert wrong == []


def test_hdf5_that_declares_numbers_it_does_not_hold_is_refused(bilm: Path) -> None:
    huge = 10**8
    options = json.loads((bilm / "options.json").read_text())
    options["lstm"]["dim"] = huge
    (bilm / "options.json").write_text(json.dumps(options))
    with h5py.File(bilm / "weights.hdf5", "r+") as file:
        for direction in range(2):
            for layer in range(2):
                cell = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
                shapes = {"W_0": (8, 4 * huge), "B": (4 * huge,), "W_P_0": (huge, 4)}
                for name, shape in shapes.items():
                    del file[f"{cell}/{name}"]
                    # Never written: HDF5 stores nothing and reads zeros.
                    file.create_dataset(f"{cell}/{name}", shape, "f4", chunks=True)
    with bounded(), mistake("model-invalid", "weights.hdf5"):
        load_folder(bilm)


def test_compressed_zeros_are_no_weights_but_compressed_weights_are(bilm: Path) -> None:
    path, name = bilm / "weights.hdf5", "RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/W_0"
    with h5py.File(path, "r+") as file:
        numbers = file[name][()]
        del file[name]
        file.create_dataset(name, data=numbers, compression="gzip", chunks=True)
    load_folder(bilm)

    wide = ModelConfig(dim=40_000, projection_dim=4, filters=((1, 2),), n_highway=0, max_chars=9)
    write_options(bilm / "options.json", wide)
    with h5py.File(path, "w") as file:
        from elmwright.model.formats.bilm_format import datasets

        for name, (shape, _) in datasets(wide).items():
            zeros = np.zeros(shape, np.float32)
            file.create_dataset(name, data=zeros, compression="gzip", compression_opts=9)
    with bounded(), mistake("model-invalid", "weights.hdf5"):
        load_folder(bilm)


def test_hdf5_with_any_byte_changed_ends_in_a_sentence(bilm: Path) -> None:
    path = bilm / "weights.hdf5"
    good = path.read_bytes()
    cases = [(f"cut at {n}", good[:n]) for n in range(0, len(good), 997)]
    for n in range(0, len(good), 211):
        changed = bytearray(good)
        changed[n] ^= 0xFF
        cases.append((f"byte {n}", bytes(changed)))
    wrong, refused = refusals(
        cases, lambda data: write(path, data), lambda: load_folder(bilm), str(path)
    )
    assert wrong == []
    assert refused > len(cases) / 10


def test_a_model_for_long_words_costs_no_more_on_short_words(ours: Path) -> None:
    words = ["a", "longer", "x" * 30]
    wide = ModelConfig(**{**vars(TINY), "max_chars": MOST_CHARS})
    write_config(ours / "config.json", wide)
    with bounded():
        got = Elmo.from_pretrained(ours).embed([words])[0]
    write_config(ours / "config.json", ModelConfig(**{**vars(TINY), "max_chars": 50}))
    assert np.array_equal(got, Elmo.from_pretrained(ours).embed([words])[0])


def test_one_endless_word_does_not_make_all_others_expensive(ours: Path) -> None:
    words = [*(f"w{n}" for n in range(4000)), "x" * 2**20]
    write_config(ours / "config.json", ModelConfig(**{**vars(TINY), "max_chars": MOST_CHARS}))
    with bounded():
        assert Elmo.from_pretrained(ours).embed([words])[0].shape == (3, 4001, 8)
    write_config(ours / "config.json", ModelConfig(**{**vars(TINY), "max_chars": 10**9}))
    with bounded(), mistake("model-invalid", "max_chars", "1000000000", "1000"):
        Elmo.from_pretrained(ours).embed([words])


@pytest.mark.parametrize("max_chars", [3, 6, 9, 12, 50])
def test_ids_that_are_no_wider_than_needed_are_encoded_to_the_same_bits(max_chars: int) -> None:
    config = ModelConfig(**{**vars(TINY), "filters": ((1, 2), (3, 3)), "max_chars": max_chars})
    encoder = BiLM(config).encoder
    words = ["a", "bc", "defg", "hijkl-mnop", "<S>", ""]
    for some in (words, words[:1], words[2:3], words[-1:]):
        whole = torch.from_numpy(char_ids(some, max_chars))
        narrow = torch.from_numpy(char_ids(some, max_chars, widest=3))
        assert narrow.shape[1] <= whole.shape[1]
        assert torch.equal(encoder(whole), encoder(narrow))


@pytest.mark.parametrize("share", [0.5, 2.2], ids=["the file", "the model"])
def test_weights_that_do_not_fit_into_memory_are_named(ours: Path, share: float) -> None:
    huge = ModelConfig(**{**vars(TINY), "dim": 10**6})
    write_config(ours / "config.json", huge)
    header, offset = {}, 0
    for name, shape in tensor_shapes(huge, 100):
        end = offset + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    with (ours / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + offset)  # takes no space on the disk
    little = bounded(memory=int(share * offset))
    with little, mistake("memory", "ours"):
        load_folder(ours)


def test_a_vocabulary_that_is_one_endless_line_is_not_read(ours: Path) -> None:
    with (ours / "vocab.txt").open("wb") as file:
        file.truncate(4 << 30)  # takes no space on the disk
    with bounded(), mistake("file-damaged", "vocab.txt"):
        load_folder(ours)


@pytest.mark.parametrize("name", ["config.json", "options.json"])
def test_a_config_of_gigabytes_is_not_read(ours: Path, bilm: Path, name: str) -> None:
    folder = ours if name == "config.json" else bilm
    with (folder / name).open("r+b") as file:
        file.truncate(4 << 30)
    with bounded(), mistake("file-damaged", name, "4,294,967,296"):
        load_folder(folder)
