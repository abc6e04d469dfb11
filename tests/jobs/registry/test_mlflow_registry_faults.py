"""Faults of MLflow as a registry: deleted or changed entries, lost answers, failing stores."""

import os
import shutil
from pathlib import Path
from typing import Any

import mlflow
import pytest
from botocore.exceptions import EndpointConnectionError
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from elmwright.jobs.bundles.bundle import SUMS, verify_bundle, write_sums
from elmwright.jobs.cli.command import main
from elmwright.jobs.publishing.promotion import promote, publish_bundle
from elmwright.jobs.registry import mlflow_registry
from elmwright.jobs.registry.logged_models import TESTED_MLFLOW, LoggedModels
from elmwright.jobs.serving import Embedder
from elmwright.jobs.tracking.store import default_uri
from tests.support.mistakes import mistake
from tests.support.tiny_runs.registries import change, leftovers, sqlite

pytestmark = pytest.mark.slow(3)


def test_files_of_a_deleted_version_are_kept_for_its_copy(
    tmp_path: Path,
    empty_database: Path,
    monkeypatch: pytest.MonkeyPatch,
    bundle: Path,
    worse_bundle: Path,
) -> None:
    registry = sqlite(tmp_path, empty_database, monkeypatch)
    client = registry._client
    publish_bundle(registry, bundle, "tiny", "candidate")
    publish_bundle(registry, worse_bundle, "tiny", "candidate")
    client.copy_model_version("models:/tiny/2", "prod")
    client.delete_model_version("tiny", "2")
    assert publish_bundle(registry, bundle, "tiny", "candidate") == 1
    verify_bundle(registry.fetch("prod", 1))
    assert publish_bundle(registry, worse_bundle, "prod", "candidate") == 1  # the copy


def test_an_mlflow_without_a_private_function_is_refused_before_anything_is_stored(
    tmp_path: Path, empty_database: Path, monkeypatch: pytest.MonkeyPatch, bundle: Path
) -> None:
    registry = sqlite(tmp_path, empty_database, monkeypatch)
    with monkeypatch.context() as patch:
        patch.delattr(mlflow.models.utils, "_save_example")
        with mistake("tracking-server", mlflow.__version__, f"mlflow=={TESTED_MLFLOW}"):
            publish_bundle(registry, bundle, "tiny", "candidate")
    assert leftovers(registry) == 0
    tested = Path(__file__).parents[3].joinpath("constraints.txt").read_text()
    assert f"\nmlflow=={TESTED_MLFLOW}." in tested


@pytest.mark.parametrize("environment", ["", "sqlite:///elsewhere.db"])
def test_mlflows_default_uri_is_restored_with_public_functions(
    monkeypatch: pytest.MonkeyPatch, environment: str
) -> None:
    monkeypatch.delattr(mlflow.tracking._tracking_service.utils, "_use_tracking_uri")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    if environment:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", environment)
    before = mlflow.get_tracking_uri()
    with default_uri("sqlite:///here.db"):
        assert mlflow.get_tracking_uri() == "sqlite:///here.db"
    assert mlflow.get_tracking_uri() == before
    assert os.environ.get("MLFLOW_TRACKING_URI", "") == environment
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///third.db")
    assert mlflow.get_tracking_uri() == "sqlite:///third.db", "the variable is used again"


def test_leftovers_are_found_on_every_page(
    tmp_path: Path, empty_database: Path, monkeypatch: pytest.MonkeyPatch, bundle: Path
) -> None:
    registry = sqlite(tmp_path, empty_database, monkeypatch)
    real = MlflowClient.search_logged_models

    def one_at_a_time(self: MlflowClient, *args: Any, **kwargs: Any) -> Any:
        return real(self, *args, **{**kwargs, "max_results": 1})

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(MlflowClient, "search_logged_models", one_at_a_time)
    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "create_model_version", interrupted)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                publish_bundle(registry, bundle, "tiny", "candidate")
    assert leftovers(registry) == 2
    publish_bundle(registry, bundle, "tiny", "candidate")
    assert leftovers(registry) == 1


def test_a_version_keeps_its_files_if_the_answer_to_its_creation_is_lost(
    tmp_path: Path, empty_database: Path, monkeypatch: pytest.MonkeyPatch, bundle: Path
) -> None:
    registry = sqlite(tmp_path, empty_database, monkeypatch)
    real = MlflowClient.create_model_version

    def unanswered(self: MlflowClient, *args: Any, **kwargs: Any) -> None:
        real(self, *args, **kwargs)
        raise MlflowException("timed out")

    monkeypatch.setattr(MlflowClient, "create_model_version", unanswered)
    assert publish_bundle(registry, bundle, "tiny", "candidate") == 1
    verify_bundle(registry.fetch("tiny", 1))


def test_the_slower_of_two_publishers_removes_its_late_upload(
    tmp_path: Path, empty_database: Path, monkeypatch: pytest.MonkeyPatch, bundle: Path
) -> None:
    """Without the lock beside a SQLite file, as on a server."""
    registry = sqlite(tmp_path, empty_database, monkeypatch)
    monkeypatch.setattr(mlflow_registry, "sqlite_file", lambda _uri: None)
    real = LoggedModels.upload
    first: list[int] = []

    def slow(self: LoggedModels, *args: Any) -> Any:
        if not first:
            first.append(0)
            first[0] = publish_bundle(registry, bundle, "tiny", "candidate")
            stored = Path(args[1].artifact_location.removeprefix("file://"))
            stored.mkdir(parents=True, exist_ok=True)
            (stored / "sent-late").write_text("")
        return real(self, *args)

    monkeypatch.setattr(LoggedModels, "upload", slow)
    assert publish_bundle(registry, bundle, "tiny", "candidate") == 1
    assert first == [1]
    assert leftovers(registry) == 1
    verify_bundle(registry.fetch("tiny", 1))


def test_pyfunc_refuses_files_without_checksums_and_files_of_another_model(
    tmp_path: Path,
    empty_database: Path,
    monkeypatch: pytest.MonkeyPatch,
    bundle: Path,
    worse_bundle: Path,
) -> None:
    registry = sqlite(tmp_path, empty_database, monkeypatch)
    publish_bundle(registry, bundle, "tiny", "champion")
    stored = registry.fetch("tiny", 1)
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(registry.uri)
    try:
        (stored / SUMS).unlink()
        with mistake("file-damaged", SUMS):
            mlflow.pyfunc.load_model("models:/tiny@champion")
        for path in worse_bundle.iterdir():
            shutil.copyfile(path, stored / path.name)
        with mistake("untrusted", str(stored)):
            mlflow.pyfunc.load_model("models:/tiny@champion")
    finally:
        mlflow.set_tracking_uri(before)
    Embedder(stored)  # an undamaged bundle, but not the published one


@pytest.mark.parametrize(
    "error",
    [EndpointConnectionError(endpoint_url="http://s3"), NotADirectoryError(20, "a file", "x")],
)
def test_a_failing_artifact_store_is_reported_as_a_mistake(
    tmp_path: Path,
    empty_database: Path,
    monkeypatch: pytest.MonkeyPatch,
    bundle: Path,
    error: Exception,
) -> None:
    registry = sqlite(tmp_path, empty_database, monkeypatch)

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(MlflowClient, "log_model_artifacts", fail)
    with mistake("tracking-server", str(bundle)):
        publish_bundle(registry, bundle, "tiny", "candidate")


def test_a_bundle_is_published_after_its_run_or_experiment_was_deleted_in_mlflow(
    tmp_path: Path, empty_database: Path, monkeypatch: pytest.MonkeyPatch, bundle: Path
) -> None:
    registry = sqlite(tmp_path, empty_database, monkeypatch)
    client = registry._client
    experiment = client.create_experiment("mine", (tmp_path / "artifacts").as_uri())
    run_id = client.create_run(experiment).info.run_id
    mine = tmp_path / "mine"
    shutil.copytree(bundle, mine)
    change(mine / "provenance.json", lambda saved: saved.update(mlflow_run_id=run_id))
    write_sums(mine)
    client.delete_run(run_id)
    assert publish_bundle(registry, mine, "one", "candidate") == 1
    client.restore_run(run_id)
    client.delete_experiment(experiment)
    assert publish_bundle(registry, mine, "two", "candidate") == 1
    client.delete_experiment(client.get_experiment_by_name("elmwright").experiment_id)
    with mistake("tracking-server", "mlflow experiments restore"):
        publish_bundle(registry, mine, "three", "candidate")


def test_an_alias_moves_from_a_version_of_another_tool_only_by_force(
    tmp_path: Path, empty_database: Path, monkeypatch: pytest.MonkeyPatch, bundle: Path
) -> None:
    registry = sqlite(tmp_path, empty_database, monkeypatch)
    registry._client.create_registered_model("tiny")
    registry._client.create_model_version("tiny", (tmp_path / "foreign").as_uri())
    registry._client.set_registered_model_alias("tiny", "champion", "1")
    assert publish_bundle(registry, bundle, "tiny", "candidate") == 2
    with mistake("not-comparable", "version 1", "--force"):
        promote(registry, "tiny", 2, "champion")
    assert "now version 2" in promote(registry, "tiny", 2, "champion", force=True)


def test_reading_a_missing_database_does_not_create_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to = ["--to", f"sqlite:///{tmp_path / 'typo' / 'mlflow.db'}"]
    for command in (
        ["versions", "tiny"],
        ["promote", "tiny", "1", "--alias", "champion"],
        ["rollback", "tiny", "--alias", "champion"],
    ):
        assert main([*command, *to]) == 2
        assert "there is no MLflow database" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_error_names_a_changed_tag(
    tmp_path: Path, empty_database: Path, monkeypatch: pytest.MonkeyPatch, bundle: Path
) -> None:
    registry = sqlite(tmp_path, empty_database, monkeypatch)
    publish_bundle(registry, bundle, "tiny", "candidate")
    registry._client.set_registered_model_tag("tiny", "elmwright.history.candidate", "{")
    assert registry.history("tiny", "candidate") == [1]
    registry._client.set_model_version_tag("tiny", "1", "mlflow.elmwright.about", "[]")
    with mistake("tracking-server", "mlflow.elmwright.about", "version 1 of tiny"):
        registry.versions("tiny")
