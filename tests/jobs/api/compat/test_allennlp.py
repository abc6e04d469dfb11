"""Scripts that were written for AllenNLP run with one line changed, and compute the same."""

import io
import json
import os
import re
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from elmwright import Elmo as OwnElmo
from elmwright.compat.allennlp import Elmo, ElmoEmbedder, _ElmoBiLm, batch_to_ids
from elmwright.model.formats.bilm_format import read_options
from tests.fixtures.old_scripts.make import EXPECTED, MODEL, OF_210, compute
from tests.support.guests.old_scripts import run
from tests.support.mistakes import mistake
from tests.support.places import DOCS, GOLDEN

CLOSE = {"atol": 1e-5, "rtol": 1e-5}
FILES = MODEL / "options.json", MODEL / "weights.hdf5"
SENTENCES = json.loads((MODEL / "sentences.json").read_text(encoding="utf-8"))
PEER = Path(os.environ.get("ELMWRIGHT_PEER_PYTHON", "absent"))
pytestmark = pytest.mark.filterwarnings("ignore:sentence 3. word 4 is 'New York'")


def expected(script: str) -> dict[str, np.ndarray]:
    """What AllenNLP computed with a script."""
    with np.load(EXPECTED) as file:
        return {
            name.removeprefix(f"{script}/"): file[name]
            for name in file
            if name.startswith(f"{script}/")
        }


def changed_lines() -> dict[str, str]:
    """Old line → new line, from the page's table."""
    page = (DOCS / "lifeboat.md").read_text(encoding="utf-8")
    return dict(re.findall(r"^\| `(from allennlp\.[^`]+)` \| `([^`]+)` \|$", page, re.MULTILINE))


def rewritten(script: Path, folder: Path) -> Path:
    """The script with the line that the page says to change."""
    lines = script.read_text(encoding="utf-8").splitlines()
    table = changed_lines()
    assert sum(line in table for line in lines) == 1, f"{script.name} has no line of docs/lifeboat"
    path = folder / script.name
    path.write_text("\n".join(table.get(line, line) for line in lines) + "\n", encoding="utf-8")
    assert "from allennlp" not in path.read_text(encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "script", [s for s in OF_210 if s.stem != "saved"], ids=lambda path: path.stem
)
def test_an_old_script_with_one_line_changed_computes_what_allennlp_did(
    script: Path, tmp_path: Path
) -> None:
    got = run(rewritten(script, tmp_path), *FILES, SENTENCES)
    wanted = expected(script.stem)
    assert got.keys() == wanted.keys()
    for name, array in wanted.items():
        assert got[name].shape == array.shape or not array.size, name
        np.testing.assert_allclose(got[name], array, **CLOSE, err_msg=name)


def test_the_embedder_gives_the_layers_of_allennlp(tmp_path: Path) -> None:
    """AllenNLP 2.10 has no ElmoEmbedder, so it is compared with the single layers of its Elmo."""
    got = run(rewritten(MODEL.parent / "embedder.py", tmp_path), *FILES, SENTENCES)
    layers = np.stack([expected("fixed_layers")[f"layer{layer}"] for layer in range(3)], axis=1)
    for number, sentence in enumerate(SENTENCES):
        vectors = got[f"batch{number}"]
        assert vectors.shape == (3, len(sentence), 16)
        np.testing.assert_allclose(vectors, layers[number, :, : len(sentence)], **CLOSE)
    for number, line in enumerate(("The cat sat .", "It purred")):
        (wanted,) = OwnElmo.from_pretrained(str(MODEL)).embed([line.split()])
        np.testing.assert_allclose(got[f"all-{number}"], wanted, **CLOSE)
        np.testing.assert_allclose(got[f"top-{number}"], wanted[-1], **CLOSE)
        average = got[f"average-{line.replace(' ', '_')}"]
        np.testing.assert_allclose(average, wanted.mean(0), **CLOSE)
    index = json.loads(got["index"].tobytes())
    assert index == {"The cat sat .": "0", "It purred": "1"}
    assert {name for name in got if name.startswith("top")} == {"top-0", "top-1"}


@pytest.mark.slow(60)
def test_what_is_stored_is_what_allennlp_computes() -> None:
    if not PEER.is_file():
        pytest.skip("no AllenNLP; ELMWRIGHT_PEER_PYTHON names its interpreter")
    computed = compute(PEER, OF_210)
    assert {name.partition("/")[0] for name in computed} == {script.stem for script in OF_210}
    for name, array in computed.items():
        script, _, key = name.partition("/")
        np.testing.assert_allclose(array, expected(script)[key], **CLOSE)


def embed(options: Path, weights: Path) -> list[np.ndarray]:
    return ElmoEmbedder(options, weights).embed_batch(SENTENCES)


OPTIONS = json.loads(FILES[0].read_text())
TRAINING = {"batch_size": 128, "n_negative_samples_batch": 8192, "n_tokens_vocab": 793471}


def with_characters(number: int | None) -> dict[str, object]:
    """The options with another `n_characters`, or without."""
    rest = {key: value for key, value in OPTIONS["char_cnn"].items() if key != "n_characters"}
    return {**OPTIONS, "char_cnn": rest if number is None else {**rest, "n_characters": number}}


def without_defaults() -> dict[str, object]:
    """The options without every key that has a usual value."""
    options = with_characters(None)
    del options["bidirectional"], options["char_cnn"]["max_characters_per_token"]  # type: ignore[attr-defined]
    return options


@pytest.mark.parametrize(
    ("options", "names", "beside"),
    [
        (with_characters(262), ("elmo_2x16_8_options.json", "elmo_2x16_8_weights.hdf5"), {}),
        ({**with_characters(261), **TRAINING}, ("options.json", "dump.hdf5"), {"checkpoint": ""}),
        (with_characters(262), ("options.json", "weights.hdf5"), {"README.txt": "SeqVec"}),
        (
            {**with_characters(261), **TRAINING},
            ("options.json", "model.hdf5"),
            {"vocab.txt": "<S>\n</S>\n<UNK>\nthe\n", "meta.json": "{}", "README": "NLPL"},
        ),
        (without_defaults(), ("options.json", "weights.hdf5"), {"vocab.txt": "<S>\n</S>\n<UNK>\n"}),
    ],
    ids=["published", "training run", "SeqVec", "NLPL", "missing keys"],
)
def test_model_folders_as_they_occur_in_the_wild(
    options: dict[str, object], names: tuple[str, str], beside: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / names[0]).write_text(json.dumps(options))
    shutil.copyfile(FILES[1], tmp_path / names[1])
    for name, content in beside.items():
        (tmp_path / name).write_text(content)
    wanted = embed(*FILES)
    for got in (
        embed(tmp_path / names[0], tmp_path / names[1]),
        OwnElmo.from_pretrained(str(tmp_path)).embed(SENTENCES),
    ):
        for a, b in zip(got, wanted, strict=True):
            np.testing.assert_allclose(a, b, **CLOSE)


def test_weights_with_the_mask_row_and_options_without_clips_are_read(tmp_path: Path) -> None:
    options = without_defaults()
    for key in ("cell_clip", "proj_clip"):
        del options["lstm"][key]  # type: ignore[attr-defined]
    (tmp_path / "options.json").write_text(json.dumps(options))
    config = read_options(tmp_path / "options.json")
    assert (config.cell_clip, config.proj_clip, config.max_chars) == (0, 0, 50)
    del options["lstm"]["n_layers"]  # type: ignore[attr-defined]
    (tmp_path / "options.json").write_text(json.dumps(options))
    assert read_options(tmp_path / "options.json").n_layers == 1

    shutil.copyfile(FILES[1], tmp_path / "weights.hdf5")
    with h5py.File(tmp_path / "weights.hdf5", "r+") as file:
        rows = file["char_embed"][()]
        del file["char_embed"]
        file["char_embed"] = np.concatenate([np.zeros_like(rows[:1]), rows])
    for a, b in zip(embed(FILES[0], tmp_path / "weights.hdf5"), embed(*FILES), strict=True):
        np.testing.assert_array_equal(a, b)


def test_carried_states_are_those_of_allennlp() -> None:
    """The published vectors of AllenNLP's own tests: ten batches of three rows, in order."""
    if not GOLDEN.is_dir():
        pytest.skip(f"no golden vectors at {GOLDEN}")
    files = GOLDEN / "options.json", GOLDEN / "lm_weights.hdf5"
    elmo = ElmoEmbedder(*files, carry_state=True)
    module = Elmo(*files, 1, dropout=0, carry_state=True, scalar_mix_parameters=[-9e9, -9e9, 1])
    rows = json.loads((GOLDEN / "sentences.json").read_text())
    published = [h5py.File(GOLDEN / f"lm_embeddings_{k}.hdf5") for k in range(3)]
    for i in range(10):
        batch = [rows[k][i].split() for k in range(3)]
        mixed = module(batch_to_ids(batch))["elmo_representations"][0].detach().numpy()
        for k, vectors in enumerate(elmo.embed_batch(batch)):
            wanted = np.concatenate(list(published[k][str(i)][()]), axis=-1)
            np.testing.assert_allclose(vectors[-1], wanted, atol=1e-6, rtol=1e-5)
            np.testing.assert_allclose(mixed[k, : len(wanted)], wanted, atol=1e-6, rtol=1e-5)


def test_states_are_fresh_otherwise() -> None:
    elmo = ElmoEmbedder(*FILES)
    first, second = (elmo.embed_sentence(SENTENCES[0]) for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_a_state_saved_with_allennlp_is_loaded() -> None:
    """A task model that AllenNLP fine-tuned; its tensors by AllenNLP's names, as a script left."""
    stored = {name: torch.from_numpy(array) for name, array in expected("saved").items()}
    vectors = stored.pop("vectors")
    for requires_grad in (False, True):
        elmo = Elmo(*FILES, 1, requires_grad=requires_grad, dropout=0)
        before = elmo(batch_to_ids(SENTENCES))["elmo_representations"][0]
        assert not torch.allclose(before, vectors, **CLOSE)
        elmo.load_state_dict(stored)
        got = elmo(batch_to_ids(SENTENCES))["elmo_representations"][0].detach()
        np.testing.assert_allclose(got, vectors, **CLOSE)
        again = Elmo(*FILES, 1, requires_grad=requires_grad, dropout=0)
        again.load_state_dict(elmo.state_dict(), strict=False)
        np.testing.assert_array_equal(
            again.scalar_mix_0.gamma.detach(), stored["scalar_mix_0.gamma"]
        )


def test_parameters_have_the_names_that_regularisers_look_for() -> None:
    names = dict(Elmo(*FILES, 2).named_parameters())
    assert {"scalar_mix_1.gamma", "scalar_mix_1.scalar_parameters.2"} <= names.keys()
    assert [n for n, p in names.items() if p.requires_grad] == [
        n for n in names if n.startswith("scalar_mix_")
    ]


def test_words_of_other_lengths_are_cut_as_the_model_was_trained(tmp_path: Path) -> None:
    """AllenNLP fails with such a model; `elmwright.Elmo` gives the vectors to compare with."""
    words = [["a", "b" * 12, "c" * 80], ["<S>"]]
    for max_chars in (9, 70):
        options = json.loads(FILES[0].read_text())
        options["char_cnn"]["max_characters_per_token"] = max_chars
        path = tmp_path / "options.json"
        path.write_text(json.dumps(options))
        shutil.copyfile(FILES[1], tmp_path / "weights.hdf5")
        wanted = OwnElmo.from_pretrained(str(tmp_path)).embed(
            [[word[:48] for word in sentence] for sentence in words]
        )
        for a, b in zip(embed_words(path, words), wanted, strict=True):
            np.testing.assert_allclose(a, b, **CLOSE)


def embed_words(options: Path, words: list[list[str]]) -> list[np.ndarray]:
    return ElmoEmbedder(options, FILES[1]).embed_batch(words)


def test_dropout_and_evaluation_mode() -> None:
    elmo = Elmo(*FILES, 1)
    ids = batch_to_ids(SENTENCES)
    zeros = (elmo(ids)["elmo_representations"][0][0] == 0).float().mean().item()
    assert 0.3 < zeros < 0.7
    elmo.eval()
    a, b = (elmo(ids)["elmo_representations"][0] for _ in range(2))
    assert torch.equal(a, b)


def test_mistakes_are_told_in_a_sentence(tmp_path: Path) -> None:
    with mistake("input", "Elmo has no argument namespace_to_cache", "docs/lifeboat.md"):
        Elmo(*FILES, 1, namespace_to_cache="tokens")
    with mistake("input", "ElmoEmbedder has no argument gpu"):
        ElmoEmbedder(*FILES, gpu=0)
    with mistake("model-missing", "options_file", "nothing is downloaded"):
        ElmoEmbedder()
    with mistake("model-missing", "https://x.org/o.json"):
        Elmo("https://x.org/o.json", FILES[1], 1)
    with mistake("file-missing", str(tmp_path / "w.hdf5")):
        Elmo(FILES[0], tmp_path / "w.hdf5", 1)
    with mistake("input", "module"):
        Elmo(*FILES, 1, module=_ElmoBiLm(*FILES))
    with mistake("input", "scalar_mix_parameters has 2 numbers", "3 layers"):
        Elmo(*FILES, 1, scalar_mix_parameters=[0.0, 1.0])
    with mistake("input", "batch_to_ids(sentences)"):
        Elmo(*FILES, 1)(SENTENCES)
    with mistake("input", "character ids are 0 to 261"):
        Elmo(*FILES, 1)(torch.full((1, 1, 50), 262))
    for batch in (["a string"], [["word", None]], [[b"bytes"]]):
        with mistake("input", "sentence 0 is not a list of words"):
            batch_to_ids(batch)
    with pytest.warns(UserWarning, match="sentence 1: word 0 is 'New York', with a space inside"):
        batch_to_ids([["fine"], ["New York"]])
    for lines, options, words in (
        ("a\n\nb\n", {}, "line 1 (from 0) is empty"),
        ("a\na\n", {"use_sentence_keys": True}, "a sentence twice"),
        ("a\n", {"output_format": "mean"}, "output_format is one of all, top, average"),
    ):
        with mistake("input", words):
            ElmoEmbedder(*FILES).embed_file(io.StringIO(lines), str(tmp_path / "o.hdf5"), **options)
