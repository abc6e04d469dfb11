"""Published once, whole, and with a way back: in MLflow on SQLite and on a shelf of plain files."""

import json
import math
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pytest
import torch
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from torch import Tensor

from elmwright.jobs.bundles.bundle import SUMS, write_sums
from elmwright.jobs.cli.command import main
from elmwright.jobs.publishing.gate import bits_per_character
from elmwright.jobs.publishing.promotion import promote, publish_bundle, rollback
from elmwright.jobs.registry.contract import Registry, fetch_reference
from elmwright.jobs.registry.mlflow_registry import MlflowRegistry
from elmwright.jobs.registry.open_registry import open_registry
from elmwright.jobs.registry.plain_folder import FolderRegistry
from elmwright.jobs.using.pretrained import Elmo
from elmwright.model.bilm import BiLM, Output, States
from elmwright.model.formats.folder import load_folder
from elmwright.model.inference.reading import WINDOW
from elmwright.model.softmax import nll
from elmwright.pipeline.errors import UserError
from tests.support.mistakes import mistake
from tests.support.tiny_runs.registries import SENTENCE, kill_often, leftovers, reference, sqlite

pytestmark = pytest.mark.slow(25)


def test_a_bundle_becomes_one_version_however_often_it_is_published_and_exported(
    registry: Registry, trained: Path, bundle: Path, worse_bundle: Path, tmp_path: Path
) -> None:
    assert publish_bundle(registry, bundle, "tiny", "candidate") == 1
    assert publish_bundle(registry, bundle, "tiny", "candidate") == 1
    again = tmp_path / "again"
    assert main(["export", str(trained), "-o", str(again)]) == 0
    made = json.loads((again / "provenance.json").read_text())
    (again / "provenance.json").write_text(json.dumps({**made, "exported": "another time"}))
    write_sums(again)
    assert publish_bundle(registry, again, "tiny", "candidate") == 1
    assert publish_bundle(registry, worse_bundle, "tiny", "candidate") == 2
    first, second = registry.versions("tiny")
    assert (first.aliases, second.aliases) == ((), ("candidate",))
    assert first.about.step == 20
    better, worse = first.about, second.about
    assert better.fresh_perplexity["heldout"] < worse.fresh_perplexity["heldout"]
    assert better.perplexity["heldout"] < worse.perplexity["heldout"], "states carried over"
    assert leftovers(registry) == 2


def test_promotion_refuses_what_is_worse_and_can_be_taken_back(
    registry: Registry, bundle: Path, worse_bundle: Path
) -> None:
    publish_bundle(registry, bundle, "tiny", "candidate")
    publish_bundle(registry, worse_bundle, "tiny", "candidate")
    assert "champion is now version 2" in promote(registry, "tiny", 2, "champion")
    sentence = promote(registry, "tiny", 1, "champion")  # better
    assert "held-out perplexity on heldout" in sentence
    with pytest.raises(UserError, match=r"version 2 of tiny is worse than version 1 .* --force"):
        promote(registry, "tiny", 2, "champion")
    assert registry.history("tiny", "champion") == [2, 1]
    promote(registry, "tiny", 2, "champion", force=True)
    assert "already" in promote(registry, "tiny", 2, "champion")
    assert "version 1 of tiny again" in rollback(registry, "tiny", "champion")
    assert "version 2 of tiny again" in rollback(registry, "tiny", "champion")
    with mistake("alias", "champion", "tiny"):
        rollback(registry, "tiny", "champion")
    assert registry.history("tiny", "candidate") == [1, 2]


def test_other_vocabularies_are_compared_by_the_bits_a_text_takes(
    registry: Registry, bundle: Path, worse_bundle: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(worse_bundle, other)
    config = json.loads((other / "config.json").read_text())
    config["vocab"]["sha256"] = "0" * 64
    (other / "config.json").write_text(json.dumps(config))
    write_sums(other)
    text = tmp_path / "text.txt"
    text.write_text("The old cat sees the river. The small dog finds the stone.\n" * 5)
    publish_bundle(registry, bundle, "tiny", "champion")
    publish_bundle(registry, other, "tiny", "candidate")
    with mistake("not-comparable", "--on", "--force"):
        promote(registry, "tiny", 2, "champion")
    with mistake("worse", "bits per character of text.txt"):
        promote(registry, "tiny", 2, "champion", on=str(text))
    (tmp_path / "empty.txt").write_text("\n")
    with mistake("no-text", "empty.txt"):
        promote(registry, "tiny", 2, "champion", on=str(tmp_path / "empty.txt"))


def test_bits_per_character_charge_for_spelling_unknown_words(bundle: Path, tmp_path: Path) -> None:
    known, unknown = tmp_path / "known.txt", tmp_path / "unknown.txt"
    known.write_text("The old cat sees the river.")
    unknown.write_text("The old cat sees the qzxqz.")
    # "qzxqz" takes 5 bytes and an end; the rest of the sentence is nearly the same.
    more = bits_per_character(bundle, unknown) - bits_per_character(bundle, known)
    assert more * len(unknown.read_text()) == pytest.approx(8 * 6, abs=4)
    # Each sentence is scored by itself: twice the text takes as many bits a character.
    twice = tmp_path / "twice.txt"
    twice.write_text("The old cat sees the river. " * 2)
    once = bits_per_character(bundle, known) * len(known.read_text())
    assert bits_per_character(bundle, twice) * len(twice.read_text()) == pytest.approx(2 * once)


def test_bits_per_character_of_a_long_line_take_the_memory_of_a_window(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (bundle / "vocab.txt").read_text().split()[3:13] * 120
    own = shutil.copytree(bundle, tmp_path / "own")
    config = json.loads((own / "config.json").read_text())
    config |= {"tokenizer": "whitespace", "sentences": "line", "input": 1, "tokenisation": None}
    (own / "config.json").write_text(json.dumps(config))
    path = tmp_path / "text.txt"
    path.write_text(" ".join(words))
    steps: list[int] = []
    run = BiLM.run

    def note(self: BiLM, types: Tensor, forward: Tensor, *rest: Any, **named: Any) -> Output:
        steps.append(forward.numel())
        return run(self, types, forward, *rest, **named)

    monkeypatch.setattr(BiLM, "run", note)
    bits = bits_per_character(own, path)
    assert sum(steps) == len(words) + 1
    assert max(steps) <= WINDOW
    monkeypatch.undo()
    assert bits == pytest.approx(bits_at_once(own, words, len(path.read_text())), rel=1e-6)


def bits_at_once(bundle: Path, words: list[str], characters: int) -> float:
    """The same of one sentence of known words, in one run of the model."""
    loaded = load_folder(bundle, with_softmax=True)
    assert loaded.softmax is not None
    assert loaded.vocab is not None
    types = list(dict.fromkeys(["<S>", "</S>", *words]))
    nats = 0.0
    with torch.no_grad():
        ways = [["<S>", *words, "</S>"], ["</S>", *reversed(words), "<S>"]]
        index = torch.tensor([[[types.index(word) for word in way[:-1]]] for way in ways])
        states = States.zeros(loaded.config, 1)
        output = loaded.bilm(loaded.bilm.encoder.ids(types), index[0], index[1], states)
        for way, hidden in zip(ways, (output.top_forward, output.top_backward), strict=True):
            wanted = torch.tensor([loaded.vocab.index(word) for word in way[1:]])
            loss = nll(hidden[0], wanted, loaded.softmax.weight, loaded.softmax.bias)
            nats += float(loss.double().sum())
    return nats / 2 / math.log(2) / characters


def test_two_publishes_at_once_give_one_version(registry: Registry, bundle: Path) -> None:
    uri = registry.uri
    found: list[int] = []

    def publish() -> None:
        found.append(publish_bundle(open_registry(uri), bundle, "tiny", "candidate"))

    threads = [threading.Thread(target=publish) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [1, 1, 1]
    assert len(registry.versions("tiny")) == leftovers(registry) == 1


def test_a_stored_model_that_was_exchanged_for_another_is_refused(
    registry: Registry, bundle: Path, worse_bundle: Path
) -> None:
    """Whole and well-formed, but not what was published under that number."""
    publish_bundle(registry, bundle, "tiny", "candidate")
    stored = registry.fetch("tiny", 1)
    for name in ("README.md", SUMS):
        (stored / name).write_text((stored / name).read_text() + " ")
        with mistake("file-damaged", name):
            Elmo.from_pretrained(reference(registry, "candidate"))
        shutil.copyfile(bundle / name, stored / name)
    Elmo.from_pretrained(reference(registry, "candidate"))
    for path in worse_bundle.iterdir():
        shutil.copyfile(path, stored / path.name)
    with mistake("untrusted", "version 1 of tiny"):
        Elmo.from_pretrained(reference(registry, "candidate"))
    with mistake("untrusted", "version 1 of tiny"):
        promote(registry, "tiny", 1, "champion")


def test_what_nobody_has_is_said_in_a_sentence(
    registry: Registry, bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    publish_bundle(registry, bundle, "tiny", "candidate")
    to = ["--to", registry.uri]
    for arguments, words in (
        (["publish", str(bundle), "--name", "a/b"], "no slash"),
        (["publish", str(bundle), "--name", "tiny", "--alias", "v3"], "looks like a version"),
        (["publish", str(bundle), "--name", "tiny", "--alias", "3"], "looks like a version"),
        (["publish", str(bundle)], "--name NAME"),
        (["promote", "tiny", "7", "--alias", "champion"], "has no version 7; it has 1"),
        (["promote", "tiny", "one", "--alias", "champion"], "not the number of a version"),
        (["promote", "none", "1", "--alias", "champion"], "no version of a model 'none'"),
        (["rollback", "tiny", "--alias", "champion"], "pointed to nothing else"),
        (["versions", "none"], "no version of a model 'none'"),
    ):
        assert main([*arguments, *to]) == 2, arguments
        assert words in capsys.readouterr().err
    assert main(["versions", "tiny", *to]) == 0
    (line,) = capsys.readouterr().out.splitlines()[1:]
    assert "@candidate" in line
    assert "heldout" in line
    with mistake("version-missing", "tiny@nobody"):
        fetch_reference(registry, "tiny@nobody", "tiny@nobody")
    with mistake("argument", "ftp://somewhere"):
        open_registry("ftp://somewhere")


@pytest.mark.parametrize(
    "change",
    [
        lambda index: index["versions"]["1"].update(folder="../../elsewhere"),
        lambda index: index["versions"]["1"].pop("digest"),
        lambda index: index["aliases"].update(candidate=[9]),
        lambda index: index.pop("aliases"),
    ],
)
def test_an_index_that_leads_elsewhere_is_refused(
    tmp_path: Path, bundle: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    shelf = FolderRegistry(str(tmp_path))
    publish_bundle(shelf, bundle, "tiny", "candidate")
    index = json.loads((tmp_path / "tiny" / "index.json").read_text())
    change(index)
    (tmp_path / "tiny" / "index.json").write_text(json.dumps(index))
    with mistake("file-damaged", "index.json"):
        Elmo.from_pretrained(tmp_path / "tiny@candidate")


def test_an_mlflow_that_stops_answering_leaves_nothing_listed_and_the_next_publish_cleans_up(
    tmp_path: Path, empty_database: Path, monkeypatch: pytest.MonkeyPatch, bundle: Path
) -> None:
    registry = sqlite(tmp_path, empty_database, monkeypatch)
    real = MlflowClient.finalize_logged_model

    def unreachable(*_: object) -> None:
        raise MlflowException("the server is gone")

    monkeypatch.setattr(MlflowClient, "finalize_logged_model", unreachable)
    with mistake("tracking-server", "the server is gone"):
        publish_bundle(registry, bundle, "tiny", "candidate")
    assert registry.versions("tiny") == []
    assert leftovers(registry) == 1
    monkeypatch.setattr(MlflowClient, "finalize_logged_model", real)
    assert publish_bundle(registry, bundle, "tiny", "candidate") == 1
    assert leftovers(registry) == 1
    experiment = registry._client.get_experiment_by_name("elmwright")
    assert len(registry._client.search_logged_models([experiment.experiment_id])) == 1


def test_a_server_that_is_not_there_is_said_soon(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with mistake("tracking-server", "127.0.0.1:1", str(bundle)):
        publish_bundle(MlflowRegistry("http://127.0.0.1:1"), bundle, "tiny", "candidate")


def test_a_version_is_a_logged_model_of_its_run_and_an_alias_moved_elsewhere_is_believed(
    tmp_path: Path,
    empty_database: Path,
    monkeypatch: pytest.MonkeyPatch,
    bundle: Path,
    worse_bundle: Path,
) -> None:
    registry = sqlite(tmp_path, empty_database, monkeypatch)
    client = registry._client
    experiment = client.create_experiment("mine", (tmp_path / "artifacts").as_uri())
    run = client.create_run(experiment)
    mine = tmp_path / "mine"
    shutil.copytree(bundle, mine)
    made = json.loads((mine / "provenance.json").read_text())
    (mine / "provenance.json").write_text(json.dumps({**made, "mlflow_run_id": run.info.run_id}))
    write_sums(mine)
    publish_bundle(registry, mine, "tiny", "candidate")
    version = client.get_model_version("tiny", "1")
    assert version.run_id == run.info.run_id
    (model,) = client.search_logged_models([experiment])
    assert version.source == f"models:/{model.model_id}"
    assert model.source_run_id == run.info.run_id
    assert model.status == "READY"
    ((score,), about) = model.metrics, registry.versions("tiny")[0].about
    fresh, carried = about.fresh_perplexity["heldout"], about.perplexity["heldout"]
    assert (score.key, score.value) == ("heldout/fresh_perplexity", fresh)
    assert float(version.tags["heldout_fresh_perplexity"]) == pytest.approx(fresh, abs=1e-4)
    assert float(version.tags["heldout_perplexity"]) == pytest.approx(carried, abs=1e-4)

    publish_bundle(registry, worse_bundle, "tiny", "candidate")
    client.set_registered_model_alias("tiny", "champion", "1")  # in MLflow's own pages, say
    assert registry.history("tiny", "champion") == [1]
    promote(registry, "tiny", 2, "champion", force=True)
    rollback(registry, "tiny", "champion")
    assert int(client.get_model_version_by_alias("tiny", "champion").version) == 1


def test_pyfunc_answers_with_the_vectors_of_embed_and_holds_no_code(
    tmp_path: Path, empty_database: Path, monkeypatch: pytest.MonkeyPatch, bundle: Path
) -> None:
    registry = sqlite(tmp_path, empty_database, monkeypatch)
    publish_bundle(registry, bundle, "tiny", "champion")
    stored = registry.fetch("tiny", 1)
    assert {path.name for path in stored.parent.iterdir()} <= {
        "MLmodel",
        "data",
        "registered_model_meta",
        "input_example.json",
        "serving_input_example.json",
    }
    assert "loader_module: elmwright.jobs.serving" in (stored.parent / "MLmodel").read_text()
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(os.environ["MLFLOW_TRACKING_URI"])
    try:
        model = mlflow.pyfunc.load_model("models:/tiny@champion")
        answer = model.predict([" ".join(SENTENCE), "A"])
        expected = Elmo.from_pretrained(bundle).embed([SENTENCE, ["A"]])
        for got, wanted in zip(answer, expected, strict=True):
            np.testing.assert_array_equal(got, wanted)
        (top,) = model.predict([" ".join(SENTENCE)], params={"layers": "top"})
        np.testing.assert_allclose(top[0], expected[0][-1], atol=1e-6)
        example = model.input_example
        for got, wanted in zip(
            model.predict(example), Elmo.from_pretrained(bundle).embed(list(example)), strict=True
        ):
            np.testing.assert_allclose(got, wanted, atol=1e-6)
        (stored / "vocab.txt").write_text("changed")
        with mistake("file-damaged", "vocab.txt"):
            mlflow.pyfunc.load_model("models:/tiny@champion")
    finally:
        mlflow.set_tracking_uri(before)


def test_from_checkpoint_to_a_clean_process_that_loads_by_alias(
    registry: Registry, trained: Path, tmp_path: Path
) -> None:
    out = tmp_path / "new"
    to = ["--to", registry.uri]
    assert main(["export", str(trained), "--step", "best", "-o", str(out)]) == 0
    assert main(["publish", str(out), "--name", "tiny", *to]) == 0
    assert main(["promote", "tiny", "1", "--alias", "champion", *to]) == 0
    shutil.rmtree(out)
    code = (
        "import sys, numpy; from elmwright import Elmo\n"
        f"numpy.save(sys.argv[2], Elmo.from_pretrained(sys.argv[1]).embed([{SENTENCE!r}])[0])"
    )
    saved = tmp_path / "vectors.npy"
    subprocess.run([sys.executable, "-c", code, reference(registry, "champion"), saved], check=True)
    checkpoint = sorted((trained / "train" / "checkpoints").iterdir())[-1]
    np.testing.assert_array_equal(
        np.load(saved), Elmo.from_pretrained(checkpoint).embed([SENTENCE])[0]
    )


@pytest.mark.heavy
def test_killed_three_times_the_retry_leaves_one_version(
    tmp_path: Path, empty_database: Path, monkeypatch: pytest.MonkeyPatch, bundle: Path
) -> None:
    registry = sqlite(tmp_path, empty_database, monkeypatch)
    kill_often(registry, registry.uri, bundle, 3)
    assert leftovers(registry) == 5


@pytest.mark.heavy
def test_killed_at_ten_moments_every_listed_version_verifies_and_the_retry_leaves_one(
    registry: Registry, bundle: Path
) -> None:
    kill_often(registry, registry.uri, bundle, 10)
    assert leftovers(registry) == 12
