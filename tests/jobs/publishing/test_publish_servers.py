"""Publishing as it is installed: PostgreSQL, an S3 store, an MLflow server; `make publish-test`."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import h5py
import numpy as np
import pytest

from elmwright.jobs.cli.command import main
from elmwright.jobs.publishing.promotion import promote, publish_bundle, rollback
from elmwright.jobs.registry.logged_models import LoggedModels
from elmwright.jobs.registry.mlflow_registry import MlflowRegistry
from elmwright.jobs.registry.open_registry import open_registry
from elmwright.jobs.registry.plain_folder import FolderRegistry
from elmwright.jobs.using.pretrained import Elmo
from tests.support.mistakes import mistake
from tests.support.places import DOCS
from tests.support.servers import (
    BUCKET,
    answers,
    environment,
    free_port,
    mlflow_server,
    postgres,
    running,
    s3_server,
    wait_for,
)
from tests.support.tiny_runs.registries import SENTENCE, kill_often

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An S3 store, in this process's environment; the folder with its buckets."""
    folder = tmp_path_factory.mktemp("store")
    with s3_server(folder) as settings, environment(settings):
        yield folder / "buckets"


@pytest.fixture(scope="module")
def server(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("server")
    with (
        postgres(folder) as database,
        mlflow_server(folder, database, f"s3://{BUCKET}/mlflow") as uri,
    ):
        yield uri


@pytest.fixture(autouse=True)
def cache(tmp_path: Path) -> Iterator[Path]:
    with environment({"ELMWRIGHT_CACHE": str(tmp_path / "cache"), "MLFLOW_TRACKING_URI": ""}):
        yield tmp_path / "cache"


def clean_process(model: str, out: Path) -> np.ndarray:
    """The vectors of a process that knows nothing but the model's name."""
    code = (
        "import sys, numpy; from elmwright import Elmo\n"
        f"numpy.save(sys.argv[2], Elmo.from_pretrained(sys.argv[1]).embed([{SENTENCE!r}])[0])"
    )
    subprocess.run([sys.executable, "-c", code, model, out], check=True)
    return np.load(out)


def test_from_checkpoint_to_a_clean_process_that_loads_by_alias(
    server: str, trained: Path, worse_bundle: Path, tmp_path: Path, cache: Path, store: Path
) -> None:
    os.environ["MLFLOW_TRACKING_URI"] = server
    out = tmp_path / "new"
    assert main(["export", str(trained), "-o", str(out)]) == 0
    assert main(["publish", str(worse_bundle), "--name", "tiny", "--alias", "champion"]) == 0
    assert main(["publish", str(out), "--name", "tiny"]) == 0
    assert main(["publish", str(out), "--name", "tiny"]) == 0
    assert main(["promote", "tiny", "2", "--alias", "champion"]) == 0
    assert main(["promote", "tiny", "1", "--alias", "champion"]) == 2
    assert main(["versions", "tiny"]) == 0
    shutil.rmtree(cache, ignore_errors=True)
    shutil.rmtree(out)
    checkpoint = sorted((trained / "train" / "checkpoints").iterdir())[-1]
    expected = Elmo.from_pretrained(checkpoint).embed([SENTENCE])[0]
    found = clean_process("models:/tiny@champion", tmp_path / "vectors.npy")
    np.testing.assert_array_equal(found, expected)
    (kept,) = cache.iterdir()  # what was fetched is fetched once
    before = kept.stat().st_mtime_ns
    Elmo.from_pretrained("models:/tiny@champion")
    assert kept.stat().st_mtime_ns == before
    registry = MlflowRegistry(server)
    assert len(registry.versions("tiny")) == 2
    assert "version 1 of tiny again" in rollback(registry, "tiny", "champion")
    assert list((store / BUCKET / "mlflow").rglob("data/model.safetensors"))


def stored(store: Path) -> set[Path]:
    """The logged models that have files in the store, whole or not."""
    home = store / BUCKET / "mlflow"
    files = [path.relative_to(home) for path in home.rglob("*") if path.is_file()]
    return {Path(*path.parts[:3]) for path in files}  # experiment, "models", id


def logged(server: str, names: set[str]) -> int:
    """The logged models that MLflow knows for these names."""
    client = MlflowRegistry(server)._client
    everywhere = [found.experiment_id for found in client.search_experiments()]
    models = client.search_logged_models(everywhere)
    return sum(model.tags.get("elmwright.name") in names for model in models)


def test_two_publishes_at_once_give_one_version(server: str, bundle: Path, store: Path) -> None:
    before = stored(store)

    def publish(_: int) -> int:
        return publish_bundle(open_registry(server), bundle, "twice", "candidate")

    with ThreadPoolExecutor(3) as pool:
        found = set(pool.map(publish, range(3)))
    registry = MlflowRegistry(server)
    (version,) = registry.versions("twice")
    assert found == {version.version}
    assert version.aliases == ("candidate",)
    registry.fetch("twice", version.version)
    assert len(stored(store) - before) == logged(server, {"twice"}) == 1


def test_killed_at_ten_moments_every_listed_version_verifies_and_the_retry_leaves_one(
    server: str, bundle: Path, store: Path
) -> None:
    before = stored(store)
    kill_often(MlflowRegistry(server), server, bundle, 10)
    names = {"first", "measured", *(f"killed-{number}" for number in range(10))}
    assert len(stored(store) - before) == logged(server, names) == len(names)


def test_a_server_that_dies_in_the_middle_costs_a_sentence_and_a_retry(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    real = LoggedModels.upload
    with ExitStack() as running_server:
        uri = running_server.enter_context(mlflow_server(tmp_path))

        def upload_and_die(self: LoggedModels, *arguments: Any) -> Any:
            model = real(self, *arguments)
            running_server.close()
            return model

        monkeypatch.setattr(LoggedModels, "upload", upload_and_die)
        with mistake("tracking-server"):
            publish_bundle(MlflowRegistry(uri), bundle, "tiny", "candidate")
        monkeypatch.setattr(LoggedModels, "upload", real)
    with mlflow_server(tmp_path) as uri:  # the same files, another port
        registry = MlflowRegistry(uri)
        assert registry.versions("tiny") == []
        assert publish_bundle(registry, bundle, "tiny", "candidate") == 1
    assert len(list((tmp_path / "artifacts").rglob("data/SHA256SUMS"))) == 1


def test_a_shelf_in_an_object_store(
    store: Path, bundle: Path, worse_bundle: Path, tmp_path: Path
) -> None:
    uri = f"s3://{BUCKET}/models"
    shelf = FolderRegistry(uri)
    assert publish_bundle(shelf, worse_bundle, "tiny", "champion") == 1
    assert publish_bundle(shelf, bundle, "tiny", "candidate") == 2
    assert publish_bundle(shelf, bundle, "tiny", "candidate") == 2
    promote(shelf, "tiny", 2, "champion")
    expected = Elmo.from_pretrained(bundle).embed([SENTENCE])[0]
    folder = shelf.versions("tiny")[1].about.folder
    for model in (f"{uri}/tiny@champion", f"{uri}/tiny/2", f"{uri}/tiny/{folder}"):
        np.testing.assert_array_equal(Elmo.from_pretrained(model).embed([SENTENCE])[0], expected)
    found = clean_process(f"{uri}/tiny@champion", tmp_path / "vectors.npy")
    np.testing.assert_array_equal(found, expected)
    rollback(shelf, "tiny", "champion")
    assert shelf.history("tiny", "champion") == [1]
    changed = store / BUCKET / "models" / "tiny" / folder / "vocab.txt"
    changed.write_bytes(changed.read_bytes()[:-1] + b"x")
    shutil.rmtree(os.environ["ELMWRIGHT_CACHE"])
    with mistake("file-damaged", "vocab.txt"):
        Elmo.from_pretrained(f"{uri}/tiny/2")


def test_the_server_of_mlflow_answers_the_request_in_the_docs_with_the_vectors_of_embed(
    bundle: Path, tmp_path: Path
) -> None:
    docs = DOCS
    page = (docs / "using.md").read_text(encoding="utf-8")
    request = json.loads(re.search(r"/invocations .*?-d '(\{.*?\})'", page, re.DOTALL)[1])  # type: ignore[index]
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    publish_bundle(MlflowRegistry(uri), bundle, "demo", "champion")
    port = free_port()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    mlflow = str(Path(sys.executable).with_name("mlflow"))
    command = [
        mlflow,
        "models",
        "serve",
        "-m",
        "models:/demo@champion",
        "--env-manager",
        "local",
        "-p",
        str(port),
    ]
    settings = {**os.environ, "PATH": path, "MLFLOW_TRACKING_URI": uri}
    with running(command, tmp_path / "serve.log", env=settings):
        url = f"http://127.0.0.1:{port}"
        wait_for(lambda: answers(f"{url}/ping"), 180)
        asked = Request(  # noqa: S310 - our own server
            f"{url}/invocations", json.dumps(request).encode(), {"Content-Type": "application/json"}
        )
        with urlopen(asked, timeout=60) as response:  # noqa: S310
            answer = json.load(response)["predictions"]
    text = tmp_path / "text.txt"
    text.write_text("\n".join(request["inputs"]) + "\n")
    out = tmp_path / "out.hdf5"
    assert main(["embed", str(bundle), str(text), "-o", str(out)]) == 0
    with h5py.File(out) as file:
        assert len(answer) == len(file) == len(request["inputs"])
        for number, vectors in enumerate(answer):
            np.testing.assert_allclose(np.array(vectors), file[str(number)][()], atol=1e-6)
