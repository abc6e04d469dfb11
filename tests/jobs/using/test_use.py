"""Using a model: open it, score text, find neighbours, transform for scikit-learn."""

import json
import os
from pathlib import Path

import mlflow
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import elmwright
from elmwright.jobs.cli.command import main
from elmwright.jobs.using.evaluate_model import evaluate_model
from elmwright.jobs.using.neighbours import as_table, find_neighbours, write_page
from elmwright.jobs.using.score import Scorer, score_file
from elmwright.jobs.using.sentence_vectors import SentenceVectors
from elmwright.model.inference import elmo
from elmwright.model.reference import ReferenceBiLM
from elmwright.pipeline.cleaning.tokeniser import Tokenisation
from elmwright.pipeline.format.manifest import Manifest
from elmwright.pipeline.format.shards import ShardReader
from tests.support.mistakes import mistake
from tests.support.random_model import SHAPE, VOCAB, write_random_model

pytestmark = pytest.mark.slow(17)

LINES = [
    "The cat sees the dog .",
    "bird",
    "",
    "The unheard-of xylophone hears the cat",
    "The old cat forgets the old cat .",
    "<script>alert(1)</script> sees the cat & \x1b[31m \u202e",
]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return path


def by_hand(model: Path, words: list[str]) -> np.ndarray:
    """[2, words + 1] log-probabilities: the numpy reference, then a softmax spelled out."""
    reference = ReferenceBiLM(model / "options.json", model / "weights.hdf5")
    softmax = load_file(model / "softmax.safetensors")
    ids = [VOCAB.index(word) if word in VOCAB else 2 for word in words]
    rows = []
    for direction, (read, targets) in enumerate(
        [(["<S>", *words], [*ids, 1]), (["</S>", *words[::-1]], [*ids[::-1], 0])]
    ):
        layers, _ = reference.read(read, direction, reference.zeros())
        logs = []
        for step, target in zip(layers, targets, strict=True):
            logits = softmax["weight"].astype(np.float64) @ step[-1] + softmax["bias"]
            logs.append(logits[target] - np.log(np.exp(logits).sum()))
        rows.append(logs if direction == 0 else [*logs[:-1][::-1], logs[-1]])
    return np.array(rows)


def test_scores_equal_an_independent_computation(model: Path, text: Path) -> None:
    out = text.with_name("out.jsonl")
    score_file(str(model), str(text), out, words=True)
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [row["line"] for row in rows] == list(range(len(LINES)))
    for row, line in zip(rows, LINES, strict=True):
        expected = by_hand(model, line.split())
        np.testing.assert_allclose(row["word_forward"], expected[0], atol=1e-4)
        np.testing.assert_allclose(row["word_backward"], expected[1], atol=1e-4)
        assert row["forward"] == pytest.approx(expected[0].sum(), abs=1e-3)
        assert row["backward"] == pytest.approx(expected[1].sum(), abs=1e-3)
        assert row["mean"] == pytest.approx(expected.sum() / 2, abs=1e-3)
    assert [row["unknown"] for row in rows] == [0, 0, 0, 2, 0, 4]
    assert np.ptp([row["mean"] / (row["words"] + 1) for row in rows]) > 0.1


def test_word_scores_add_up_to_sentence_scores(
    model: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = []
    for options in ([], ["--words"]):
        assert main(["score", str(model), str(text), *options]) == 0
        captured = capsys.readouterr()
        assert "with fresh states" in captured.err
        head, *rows = (line.split("\t") for line in captured.out.splitlines())
        tables.append([dict(zip(head, row, strict=True)) for row in rows])
    sentences, words = tables
    assert [row["text"] for row in sentences] == [" ".join(line.split()) for line in LINES]
    for row in sentences:
        own = [word for word in words if word["line"] == row["line"]]
        assert [word["word"] for word in own] == [*row["text"].split(), "</S>"]
        for column in ("forward", "backward", "mean"):
            total = sum(float(word[column]) for word in own)
            assert total == pytest.approx(float(row[column]), abs=1e-4)


def test_long_sentences_are_scored_in_windows(model: Path) -> None:
    words = (LINES[0].split() * 50)[:290]
    (score,) = Scorer(model).score([words])
    expected = by_hand(model, words)
    np.testing.assert_allclose(score.forward, expected[0], atol=1e-4)
    np.testing.assert_allclose(score.backward, expected[1], atol=1e-4)


def test_score_agrees_with_eval_for_a_model_without_memory(corpus: Path, tmp_path: Path) -> None:
    """Eval carries states between sentences, which makes no difference to this model."""
    vocab = (corpus / "vocab.txt").read_text(encoding="utf-8").splitlines()
    model = write_random_model(tmp_path / "bundle", vocab)
    tensors = load_file(model / "model.safetensors")
    for name, tensor in tensors.items():
        if name.startswith("lstm.") and name.endswith(".b"):
            tensor[:, 2 * SHAPE.dim : 3 * SHAPE.dim] = -1e4  # the forget gates
        if name.startswith("lstm.") and name.endswith(".w"):
            tensor[:, SHAPE.projection_dim :] = 0  # what comes from the step before
    save_file(tensors, model / "model.safetensors")
    (shard,) = Manifest.load(corpus).splits["heldout"].shards
    reader = ShardReader(str(corpus / shard.tar))
    sentences = []
    for number in range(shard.blocks):
        block = reader.read(number)
        words = [block.types[token] for token in block.tokens]
        ends = np.cumsum(block.lengths)
        sentences += [words[end - n : end] for n, end in zip(block.lengths, ends, strict=True)]
    scores = Scorer(model).score(sentences)
    evaluation = evaluate_model(str(model), str(corpus), "heldout")["heldout"]
    tokens = sum(len(score.forward) for score in scores)
    assert tokens == evaluation.tokens
    for direction in ("forward", "backward"):
        mean = -sum(getattr(score, direction).sum() for score in scores) / tokens
        assert mean == pytest.approx(getattr(evaluation, f"{direction}_nll"), rel=1e-5)


def test_a_model_without_its_softmax_cannot_score(tmp_path: Path, text: Path) -> None:
    model = write_random_model(tmp_path / "bundle")
    (model / "softmax.safetensors").unlink()
    with mistake("model-incomplete", str(model)):
        score_file(str(model), str(text))


def test_score_refuses_unsuitable_outputs_and_texts(model: Path, text: Path) -> None:
    out = text.with_name("out.tsv")
    out.write_text("precious")
    with mistake("output", str(out)):
        score_file(str(model), str(text), out)
    with mistake("argument", "out.csv", ".tsv", ".jsonl"):
        score_file(str(model), str(text), text.with_name("out.csv"))
    text.write_text("")
    with mistake("no-text", str(text)):
        score_file(str(model), str(text), out, force=True)
    assert out.read_text() == "precious"


@pytest.mark.parametrize(("layer", "take"), [("top", -1), ("0", 0), ("mean", None)])
def test_neighbours_are_the_nearest_occurrences(
    model: Path, text: Path, layer: str, take: int | None
) -> None:
    query = "The small cat sees the dog ."
    reference = ReferenceBiLM(model / "options.json", model / "weights.hdf5")

    def vectors(line: str) -> np.ndarray:
        found, _ = reference.embed(line.split())
        found = found.mean(0) if take is None else found[take]
        return found / np.linalg.norm(found, axis=1, keepdims=True)

    own = vectors(query)[2]
    expected = sorted(
        (
            (float(vectors(line)[at] @ own), number, at)
            for number, line in enumerate(LINES)
            for at, word in enumerate(line.split())
            if word == "cat"
        ),
        reverse=True,
    )
    found = find_neighbours(str(model), "cat", query, str(text), count=3, layer=layer)
    assert found.compared == len(expected) == 5
    assert len(found.neighbours) == 3
    for got, (similarity, number, at) in zip(found.neighbours, expected, strict=False):
        assert got.similarity == pytest.approx(similarity, abs=1e-5)
        if layer != "0":  # there, all occurrences of a word are equal
            assert (got.line, got.position) == (number, at)


def test_any_word_compares_all_words_and_shows_equal_sentences_once(
    model: Path, text: Path
) -> None:
    text.write_text("\n".join([*LINES, *LINES]), encoding="utf-8")
    found = find_neighbours(
        str(model), "cat", "The cat sees a dog .", str(text), count=9, any_word=True
    )
    assert found.compared == 2 * sum(len(line.split()) for line in LINES)
    assert len(found.neighbours) == 9
    assert len({(o.words, o.position) for o in found.neighbours}) == 9
    assert {o.words[o.position] for o in found.neighbours} != {"cat"}


def test_query_is_not_its_own_neighbour(model: Path, text: Path) -> None:
    found = find_neighbours(str(model), "cat", LINES[0], str(text))
    assert found.compared == 4
    assert all(o.words != tuple(LINES[0].split()) for o in found.neighbours)


def test_hostile_text_is_escaped_in_page_and_terminal(model: Path, text: Path) -> None:
    found = find_neighbours(str(model), "cat", LINES[0], str(text))
    write_page(found, str(text), text.with_name("page.html"))
    page = text.with_name("page.html").read_text(encoding="utf-8")
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert page.count("<mark>cat</mark>") == 1 + len(found.neighbours)
    shown = as_table(found)
    assert "\x1b" not in shown
    assert "[cat]" in shown
    assert "\033[1mcat\033[0m" in as_table(found, bold=True)


def test_unsuitable_neighbour_queries_are_refused(
    model: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(word: str, sentence: str, *more: str) -> str:
        common = ["neighbours", str(model), "--tokenized", "--word", word, "--in", sentence]
        assert main([*common, "--corpus", str(text), *more]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        return line

    assert "'Cat' is not a word of the sentence" in refuse("Cat", LINES[0])
    assert "no other sentence with the word 'lamp'" in refuse("lamp", "The lamp")
    assert "top, mean, 0 … 2" in refuse("cat", LINES[0], "--layer", "3")
    assert "-k must be" in refuse("cat", LINES[0], "-k", "0")
    page = text.with_name("page.html")
    page.write_text("precious")
    assert "exists already" in refuse("cat", LINES[0], "--html", str(page))


def test_elmo_from_pretrained_takes_any_model(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    mlflow.set_tracking_uri(None)  # what another test may have left
    opened = elmwright.Elmo.from_pretrained(model)
    assert isinstance(opened, elmo.Elmo)
    (got,) = opened.embed([["The", "cat"]])
    (wanted,) = elmwright.Elmo.from_pretrained(model).embed([["The", "cat"]])
    assert np.array_equal(got, wanted)
    with mistake("run-missing", "MLFLOW_TRACKING_URI"):
        elmwright.Elmo.from_pretrained("models:/none@such")
    with mistake("tracking-server", f"{tmp_path}/x"):
        elmwright.Elmo.from_pretrained("models:/none@such", tracking_uri=f"sqlite:///{tmp_path}/x")


def test_model_opens_on_any_available_device(model: Path) -> None:
    opener = elmwright.Elmo.from_pretrained
    for device in ("auto", "cpu", torch.device("cpu")):
        assert isinstance(opener(model, device=device, n_mixes=2), elmwright.Elmo)
    for device in ("gpu", "cuda:x", ""):
        with mistake("device"):
            opener(model, device=device)
    if not torch.cuda.is_available():
        for device in ("cuda", "cuda:1", torch.device("cuda")):
            with mistake("device", "--device cpu"):
                opener(model, device=device)
    with mistake("signature", str(model)):
        opener(model, require_signature="key.pub")


def test_required_signature_applies_to_one_command_only(
    model: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "ELMWRIGHT_REQUIRE_SIGNATURE"
    for before in (None, ""):
        monkeypatch.delenv(name, raising=False)
        if before is not None:
            monkeypatch.setenv(name, before)
        assert main(["score", str(model), str(text), "--require-signature", "key.pub"]) == 2
        assert os.environ.get(name) == before
        assert main(["score", str(model), str(text)]) == 0


def test_sentence_vectors_are_pooled_representations(model: Path) -> None:
    sentences = ["The cat sees the dog .", "", ["The", "old", "house"]]
    (first, _, third) = elmwright.Elmo.from_pretrained(model).embed(
        [sentences[0].split(), [], sentences[2]]
    )
    for layers, take in (
        ("top", lambda v: v[-1]),
        ("mean", lambda v: v.mean(0)),
        ("0", lambda v: v[0]),
        (1, lambda v: v[1]),
        ("all", np.concatenate),
    ):
        got = SentenceVectors(str(model), pooling="max", layers=layers).transform(sentences)
        for row, vectors in ((got[0], first), (got[2], third)):
            pooled = (
                np.concatenate([layer.max(0) for layer in vectors])
                if layers == "all"
                else take(vectors).max(0)
            )
            np.testing.assert_allclose(row, pooled, atol=1e-6)
        assert not got[1].any()
    mean = SentenceVectors(str(model)).fit(sentences).transform(sentences)
    np.testing.assert_allclose(mean[0], first.mean(axis=(0, 1)), atol=1e-6)


def test_a_sentence_without_words_is_a_row_of_zeros_and_a_missing_one_is_refused(
    model: Path, tmp_path: Path
) -> None:
    """Also one that is only empty for a model that cleans its text."""
    cleaning = write_random_model(tmp_path / "cleaning", tokenisation=Tokenisation("ptb", 2))
    step = SentenceVectors(str(cleaning))
    found = step.transform(["The cat", "", " \t", "\u200b", "\x00", "\u200b.", []])
    assert found.any(axis=1).tolist() == [True, False, False, False, False, True, False]
    for missing in (None, float("nan")):
        with mistake("input", "sentence 1 of the batch is"):
            step.transform(["The cat", missing])
    assert not SentenceVectors(str(model)).transform([" "]).any()


def test_every_column_of_sentence_vectors_has_a_name(model: Path) -> None:
    for layers, first, last in (
        ("mean", "mean_0", "mean_15"),
        ("top", "top_0", "top_15"),
        (1, "layer1_0", "layer1_15"),
        ("all", "layer0_0", "layer2_15"),
    ):
        step = SentenceVectors(str(model), layers=layers)
        names = step.get_feature_names_out()
        assert len(set(names)) == step.transform(["The cat"]).shape[1]
        assert (names[0], names[-1]) == (first, last)
    frame = SentenceVectors(str(model)).set_output(transform="default").fit_transform(["The cat"])
    assert frame.shape == (1, 16)
    pipeline = make_pipeline(SentenceVectors(str(model)), StandardScaler()).fit(["A cat", "A dog"])
    assert list(pipeline.get_feature_names_out())[:2] == ["mean_0", "mean_1"]


def test_sentence_vectors_work_in_a_scikit_learn_pipeline(model: Path) -> None:
    step = SentenceVectors(str(model), layers="all")
    assert clone(step).get_params() == step.get_params()
    sentences = [f"The {noun} sees the dog" for noun in ("cat", "river", "bird", "stone")] * 3
    labels = [0, 1, 0, 1] * 3
    fitted = make_pipeline(clone(step), LogisticRegression(C=1e4)).fit(sentences, labels)
    assert fitted.score(sentences, labels) == 1.0
    with mistake("input", "'sum'"):
        clone(step).set_params(pooling="sum").fit(sentences)
    for layers in ("3", "-1", "last", 7):
        with mistake("argument", f"layer {layers}", "0 … 2"):
            clone(step).set_params(layers=layers).fit(sentences)
    with mistake("input", "a batch is None"):
        step.transform(None)
    np.testing.assert_array_equal(step.transform("The cat"), step.transform([["The", "cat"]]))
