"""What earlier versions wrote is read, resumed and served.

Every folder below tests/fixtures/compat/ is copied elsewhere and used as its owner would use it: by
the command, by `import elmwright`, by MLflow and by webdataset. No module of ours is imported but
the one whose path is written into published models.
"""

import gzip
import hashlib
import importlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pytest
import webdataset
import yaml
from safetensors.numpy import load_file

from elmwright import Elmo
from tests.support.places import ROOT

pytestmark = pytest.mark.slow(31)

FIXTURES = ROOT / "tests" / "fixtures" / "compat"
FOLDERS = sorted(path.parent for path in FIXTURES.glob("*/expected.json"))
COMMAND = Path(sys.executable).with_name("elmwright")


@pytest.fixture(scope="module", params=FOLDERS, ids=lambda folder: folder.name)
def project(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of a folder, with MLflow's databases unpacked."""
    home = tmp_path_factory.mktemp("compat") / "moved here"
    shutil.copytree(request.param, home)
    for packed in home.rglob("mlflow.db.gz"):
        packed.with_suffix("").write_bytes(gzip.decompress(packed.read_bytes()))
        packed.unlink()
    return home


@pytest.fixture(scope="module")
def settled(project: Path) -> Path:
    """The finished run, after the command that made it was given again."""
    before = digests(project / "finished")
    output = elmwright(project, "run", "tiny.toml")
    assert "Everything is up to date" in output
    after = digests(project / "finished")
    new = {Path(name).name for name in after.keys() - before.keys()}
    assert new <= {"elmwright.log", "run.lock", ".inputs.json", ".mlflow.db.lock"}
    changed = {name for name, digest in before.items() if after.get(name) != digest}
    assert changed <= {"mlflow/mlflow.db"}, "only MLflow's database names places"
    return project


def elmwright(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [COMMAND, *arguments], cwd=folder, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def digests(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def sentences(project: Path) -> list[list[str]]:
    lines = (project / "sentences.txt").read_text(encoding="utf-8").splitlines()
    return [line.split() for line in lines]


def is_as_recorded(project: Path, found: Any) -> None:
    """Vectors of the sentences, against those that were written with the model."""
    with np.load(project / "vectors.npz", allow_pickle=False) as recorded:
        assert len(found) == len(recorded.files) == len(sentences(project))
        for number, vectors in enumerate(found):
            np.testing.assert_allclose(vectors, recorded[str(number)], atol=1e-5)


def test_there_is_a_folder_to_read() -> None:
    assert [folder.name for folder in FOLDERS][:1] == ["0.1"]


def test_the_corpus_verifies_and_others_read_its_blocks(project: Path) -> None:
    corpus = project / "finished" / "corpus"
    assert "ok: corpus finished/corpus" in elmwright(project, "verify", "finished/corpus")
    for split in read(corpus / "MANIFEST.json")["splits"].values():
        for shard in split["shards"]:
            tar = corpus / "shards" / f"{shard['name']}.tar"
            blocks = list(webdataset.WebDataset(str(tar), shardshuffle=False).decode())
            assert len(blocks) == shard["blocks"]
            assert sum(block["tokens.npy"].size for block in blocks) == shard["words"]
            for block in blocks:
                assert block["tokens.npy"].max() < len(block["types.txt"].split("\n"))


@pytest.mark.parametrize("run", ["finished", "interrupted"])
def test_a_run_verifies(project: Path, run: str) -> None:
    lines = re.findall(r"^ok: (\w+)", elmwright(project, "verify", run), re.MULTILINE)
    expected = {"corpus", "checkpoint", "journal"} | ({"bundle"} if run == "finished" else set())
    assert expected <= set(lines)
    assert lines.count("checkpoint") >= (2 if run == "finished" else 1)


@pytest.mark.parametrize(
    "model",
    [
        "finished",
        "finished/bundle",
        "finished/train/checkpoints/LAST",
        "models:/tiny@candidate",
        "models:/tiny/1",
        "shelf/tiny@champion",
        "shelf/tiny/1",
        "bilm",
    ],
)
def test_a_model_gives_the_recorded_vectors_by_every_name(
    settled: Path, model: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(settled)
    if model == "bilm":  # alone, as a user of AllenNLP has it
        for name in ("options.json", "weights.hdf5"):
            shutil.copy(settled / "finished" / "bundle" / name, tmp_path)
        model = str(tmp_path)
    last = f"step-{read(settled / 'expected.json')['steps']:08d}"
    uri = "sqlite:///finished/mlflow/mlflow.db"
    elmo = Elmo.from_pretrained(model.replace("LAST", last), tracking_uri=uri)
    elmo.eval()
    is_as_recorded(settled, elmo.embed(sentences(settled)))


@pytest.mark.parametrize("name", ["models:/tiny/1", "models:/tiny@champion"])
def test_mlflow_loads_the_registered_version(
    settled: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    mlflow.set_tracking_uri(f"sqlite:///{settled}/finished/mlflow/mlflow.db")
    try:
        model = mlflow.pyfunc.load_model(name)
    finally:
        mlflow.set_tracking_uri(None)
    is_as_recorded(settled, model.predict([" ".join(words) for words in sentences(settled)]))


def test_the_module_that_published_models_name_is_there(project: Path) -> None:
    described = list((project / "finished" / "mlflow" / "artifacts").rglob("data/../MLmodel"))
    assert described
    for file in described:
        loader = yaml.safe_load(file.read_text(encoding="utf-8"))["flavors"]["python_function"]
        assert loader["loader_module"] == "elmwright.jobs.serving"
        assert callable(importlib.import_module(loader["loader_module"])._load_pyfunc)


def test_versions_are_listed_with_their_aliases(settled: Path) -> None:
    for place in ("sqlite:///finished/mlflow/mlflow.db", "shelf"):
        (version,) = json.loads(elmwright(settled, "versions", "tiny", "--to", place, "--json"))
        assert version["version"] == 1
        assert "champion" in version["aliases"]
        assert version["digest"] == read(settled / "finished" / "published.json")["digest"]


@pytest.mark.timeout(900)
def test_an_interrupted_run_resumes_and_ends_near_the_recorded_weights(project: Path) -> None:
    """With the same data and draws. Later versions add numbers up in another order, and say so."""
    run, expected = project / "interrupted", read(project / "expected.json")
    assert not (run / "train" / "result.json").exists()
    output = elmwright(project, "run", "tiny.toml", "--set", "run.name=interrupted")
    assert "Already done: corpus." in output
    warnings = [record for record in journal(run) if record["kind"] == "warning"]
    assert sum("not bit for bit" in record["text"] for record in warnings) == 1
    last = f"train/checkpoints/step-{expected['steps']:08d}"
    mine, other = run / last, project / "finished" / last
    for name in expected["sha256"]:
        one, two = load_file(mine / name), load_file(other / name)
        assert one.keys() == two.keys()
        for key, values in one.items():
            np.testing.assert_allclose(values, two[key], rtol=1e-3, atol=1e-3, err_msg=key)


def journal(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "train" / "journal.jsonl").read_text().splitlines()]
