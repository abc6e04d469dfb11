"""The whole way, for real: Ray, two training processes, MLflow, a bundle, a registered version.

One undisturbed run serves most tests; one is tortured and must end in the same bytes.
"""

import json
import os
import re
import signal
import socket
import time
from contextlib import ExitStack
from pathlib import Path

import h5py
import mlflow
import numpy as np
import pytest
import webdataset
from mlflow import MlflowClient

from elmwright.jobs.bundles.bundle import FILES, SUMS
from elmwright.jobs.checkpoints.checkpoint import list_checkpoints
from elmwright.jobs.publishing.choose_checkpoint import list_scored
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.using.embed import Recipe, embed_file
from elmwright.model.reference import ReferenceBiLM
from elmwright.pipeline.format.manifest import Manifest
from tests.support.tiny import elmwright, imported
from tests.support.tiny_runs.whole_run import STEPS, Run

pytestmark = pytest.mark.slow(135)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """An undisturbed run, with every port that Ray or MLflow likes already taken."""
    run = Run(tmp_path_factory.mktemp("finished"))
    with ExitStack() as stack:
        for port in (5000, 6379, 8265, 8076, 10001):
            taken = stack.enter_context(socket.socket())
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                taken.bind(("", port))
                taken.listen()
            except OSError:
                continue  # somebody else has it: taken all the same
        done = elmwright("run", run.config)
    assert done.returncode == 0, done.stdout + done.stderr
    (run.home / "output.txt").write_text(done.stdout)
    return run


def test_output_names_results_and_next_commands(finished: Run) -> None:
    output = (finished.home / "output.txt").read_text()
    for part in ("corpus", "training", "writing bundle", "publishing", "models:/tiny@candidate"):
        assert part in output
    assert re.search(r"Held-out perplexity [\d.]+ .* a unigram model has [\d.]+", output)
    assert re.search(r"heldout: \d+ tokens, .* forward [\d.]+, backward [\d.]+\n", output)
    assert re.search(r"open \S+/corpus/report.html in a browser\n", output)
    proposed = r'elmwright neighbours \S+/run --word \w+ --in (\w+|"[^"]+") --corpus \S+/run\n'
    assert re.search(proposed, output)
    assert re.search(r"elmwright ui \S+/run\n", output)
    assert "Traceback" not in output


def test_second_run_does_nothing_and_loads_no_large_library(finished: Run) -> None:
    """A second instead of ten: what is done is recognised without torch, Ray and MLflow."""

    def files() -> dict[str, int]:
        return {
            str(path): path.stat().st_mtime_ns
            for path in finished.folder.rglob("*")
            if path.is_file() and path.name not in ("elmwright.log", "run.lock")
        }

    before = files()
    again = elmwright("run", finished.config, PYTHONPROFILEIMPORTTIME="1")
    assert again.returncode == 0
    assert "up to date" in again.stdout
    assert files() == before
    assert imported(again.stderr).isdisjoint({"torch", "ray", "mlflow"})


def test_webdataset_reads_the_shards_without_our_code(finished: Run) -> None:
    manifest = Manifest.load(finished.folder / "corpus")
    urls = [str(finished.folder / "corpus" / s.tar) for s in manifest.splits["train"].shards]
    words = sentences = blocks = 0
    for sample in webdataset.WebDataset(urls, shardshuffle=False).decode():
        types = sample["types.txt"].split("\n")
        assert types[:2] == ["<S>", "</S>"]
        assert sample["tokens.npy"].max() < len(types)
        assert sample["lengths.npy"].sum() == len(sample["tokens.npy"])
        blocks += 1
        words += len(sample["tokens.npy"])
        sentences += len(sample["lengths.npy"])
    split = manifest.splits["train"]
    assert (blocks, words, sentences) == (split.blocks, split.words, split.sentences)


def test_mlflow_lists_the_run_its_curves_checkpoints_and_version(finished: Run) -> None:
    client = MlflowClient(finished.uri, finished.uri)
    experiment = client.get_experiment_by_name("elmwright")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["train.lanes"] == "4"
    losses = client.get_metric_history(run.info.run_id, "train/loss")
    assert sorted(m.step for m in losses) == list(range(2, STEPS + 1, 2))
    logged = {artifact.path for artifact in client.list_artifacts(run.info.run_id, "corpus")}
    assert logged == {"corpus/MANIFEST.json", "corpus/report.html"}
    held_out = client.get_metric_history(run.info.run_id, "heldout/fresh_perplexity")
    assert sorted(m.step for m in held_out) == [80, 160, 240]

    models = client.search_logged_models([experiment.experiment_id])
    found = {int(m.params["step"]): m for m in models if m.model_type == "checkpoint"}
    kept = {info.step: info for info in list_scored(RunFolder.at(finished.folder))}
    assert set(found) == set(kept)
    for step, info in kept.items():
        assert found[step].params["sha256"] == info.sha256
        scores = {m.key: m.value for m in found[step].metrics or []}
        expected = info.perplexity.get("heldout")
        assert scores.get("heldout/fresh_perplexity") == (expected and pytest.approx(expected))
    assert STEPS in kept
    assert kept[STEPS].perplexity

    version = client.get_model_version_by_alias("tiny", "candidate")
    assert version.version in (1, "1")
    assert version.run_id == run.info.run_id


def test_the_model_has_learned_and_every_heldout_token_was_scored_once(finished: Run) -> None:
    result = json.loads((finished.folder / "train" / "result.json").read_text())
    score = result["evaluation"]["heldout"]
    manifest = Manifest.load(finished.folder / "corpus")
    assert score["tokens"] == manifest.splits["heldout"].steps
    assert score["unk_share"] == pytest.approx(manifest.splits["heldout"].unk_share)
    assert score["perplexity"] < manifest.unigram_perplexity["heldout"]
    mean = np.exp((np.log(score["forward_perplexity"]) + np.log(score["backward_perplexity"])) / 2)
    assert score["perplexity"] == pytest.approx(mean)


def test_eval_of_bundle_and_checkpoint_gives_the_trainers_perplexity(finished: Run) -> None:
    result = json.loads((finished.folder / "train" / "result.json").read_text())
    expected = result["evaluation"]["heldout"]["perplexity"]
    checkpoint = list_checkpoints(finished.folder / "train" / "checkpoints")[-1].path
    for model in (finished.folder / "bundle", checkpoint):
        done = elmwright("eval", model, "--corpus", finished.folder, "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["heldout"]["perplexity"] == pytest.approx(expected, rel=1e-6)


def test_bundle_is_complete_and_a_changed_byte_is_found(finished: Run, tmp_path: Path) -> None:
    bundle = finished.folder / "bundle"
    names = {*FILES, SUMS, "softmax.safetensors", "training.svg"}
    assert {path.name for path in bundle.iterdir()} == names
    assert elmwright("verify", finished.folder).returncode == 0
    copy = tmp_path / "bundle"
    copy.mkdir()
    for name in names:
        (copy / name).write_bytes((bundle / name).read_bytes())
    data = bytearray((copy / "weights.hdf5").read_bytes())
    data[-1] ^= 1
    (copy / "weights.hdf5").write_bytes(data)
    for arguments in (
        ("verify", copy),
        ("embed", copy, finished.config, "-o", tmp_path / "x.hdf5"),
    ):
        done = elmwright(*arguments)
        assert done.returncode == 2
        assert "weights.hdf5 does not match its digest" in done.stderr
        assert "Traceback" not in done.stderr


def test_embedding_through_every_kind_of_model_gives_the_reference_vectors(
    finished: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", finished.uri)
    text = tmp_path / "sentences.txt"
    text.write_text("The old cat sees the river .\n\nA word\n", encoding="utf-8")
    bundle = finished.folder / "bundle"
    bilm = tmp_path / "bilm"
    bilm.mkdir()
    for name in ("options.json", "weights.hdf5"):
        (bilm / name).write_bytes((bundle / name).read_bytes())
    checkpoint = list_checkpoints(finished.folder / "train" / "checkpoints")[-1].path
    reference = ReferenceBiLM(bundle / "options.json", bundle / "weights.hdf5")
    for number, model in enumerate((bundle, checkpoint, bilm, "models:/tiny@candidate")):
        out = tmp_path / f"{number}.hdf5"
        if model == bundle:
            done = elmwright("embed", model, text, "-o", out)
            assert done.returncode == 0, done.stderr
        else:
            embed_file(str(model), str(text), out, Recipe(batch_size=2))
        with h5py.File(out) as file:
            assert set(file) == {"0", "1", "2"}
            assert file["1"].shape == (3, 0, 16)
            for key, words in (("0", "The old cat sees the river ."), ("2", "A word")):
                expected, _ = reference.embed(words.split())
                np.testing.assert_allclose(file[key][()], expected, atol=1e-5)


def test_embed_refuses_to_overwrite(finished: Run, tmp_path: Path) -> None:
    out = tmp_path / "precious.hdf5"
    out.write_text("precious")
    done = elmwright("embed", finished.folder / "bundle", finished.config, "-o", out)
    assert (done.returncode, out.read_text()) == (2, "precious")
    assert "exists already" in done.stderr


def test_changed_settings_are_refused_or_the_run_resumes(finished: Run) -> None:
    for override, words in (
        ("model.dim=32", "model.dim is 32, but the run was started with 16"),
        ("train.lanes=8", "train.lanes is 8, but the run was started with 4"),
        ("optim.lr=0.5", "optim.lr is 0.5, but the run was started with 0.2"),
        ("run.seed=6", "give the run another run.name"),
        ("vocab.max_size=100", "give the run another run.name"),
    ):
        changed = ["--set", override, "--set", f"train.max_steps={STEPS + 1}"]
        done = elmwright("run", finished.config, *changed)
        assert done.returncode == 2, override
        assert words in done.stderr
        assert "Traceback" not in done.stderr
    assert elmwright("run", finished.config).returncode == 0


@pytest.mark.heavy
@pytest.mark.timeout(900)
def test_killed_in_the_corpus_and_in_training_it_ends_in_the_same_bundle(
    finished: Run, tmp_path: Path
) -> None:
    run = Run(tmp_path)
    # 1. SIGTERM while the corpus is being built: a clean end that says how to go on.
    process = run.start()
    run.wait_for_corpus(process)
    second = elmwright("run", run.config)
    assert second.returncode == 2
    assert re.search(r"is in use by 'elmwright run .*' \(process \d+ on ", second.stderr)
    process.terminate()
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 75, output
    assert "stopped:" in output

    # 2. SIGKILL there.
    run.forget_corpus()
    process = run.start()
    run.wait_for_corpus(process)
    process.kill()
    process.wait()
    assert not (run.folder / "corpus" / "MANIFEST.json").exists()

    # 3. SIGKILL of the driver in training.
    process = run.start()
    run.wait_for_step(50, process)
    process.kill()
    process.wait()

    done = elmwright("run", run.config)
    assert done.returncode == 0, done.stdout + done.stderr
    assert run.digests() == finished.digests()
    assert json.loads((run.folder / "train" / "attempt.json").read_text())["attempt"] == 2

    client = MlflowClient(run.uri, run.uri)
    experiment = client.get_experiment_by_name("elmwright")
    (tracked,) = client.search_runs([experiment.experiment_id])
    history = client.get_metric_history(tracked.info.run_id, "train/loss")
    assert sorted(m.step for m in history) == list(range(2, STEPS + 1, 2))


@pytest.mark.heavy
@pytest.mark.timeout(900)
def test_ctrl_c_once_and_twice_in_the_corpus_and_in_training_ends_in_the_same_bundle(
    finished: Run, tmp_path: Path
) -> None:
    """As a terminal sends it: to the whole process group, Ray's daemons included."""
    run = Run(tmp_path)

    def stop(presses: int) -> str:
        for _ in range(presses):
            os.killpg(process.pid, signal.SIGINT)
            time.sleep(0.1)
        output = str(process.communicate(timeout=90)[0])
        assert process.returncode == 75, output
        assert "Traceback" not in output
        assert len(re.findall("^stopped: ", output, re.M)) == 1, output
        return output

    process = run.start()
    run.wait_for_corpus(process)
    stop(1)
    process = run.start()  # twice while Ray starts
    assert process.stdout is not None
    assert process.stdout.readline().startswith("Run tiny in ")
    stop(2)
    run.forget_corpus()
    process = run.start()
    run.wait_for_corpus(process)
    stop(2)
    process = run.start()
    run.wait_for_step(30, process)
    output = stop(1)
    assert "stopping: saving a checkpoint first (Ctrl-C again ends at once)" in output
    reached = list_checkpoints(run.folder / "train" / "checkpoints")[-1].step
    assert 30 <= reached < STEPS
    assert f"training is at step {reached}" in output
    process = run.start()
    run.wait_for_step(reached + 10, process)
    stop(2)
    done = elmwright("run", run.config)
    assert done.returncode == 0, done.stdout + done.stderr
    assert run.digests() == finished.digests()


def test_load_by_alias_in_python(finished: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", finished.uri)
    import elmwright as package

    before = mlflow.get_tracking_uri()
    try:
        elmo = package.Elmo.from_pretrained("models:/tiny@candidate")
    finally:
        mlflow.set_tracking_uri(before)
    (vectors,) = elmo.embed([["The", "cat"]])
    assert vectors.shape == (3, 2, 16)
