"""A project folder that was moved or copied continues to work."""

import hashlib
import json
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import ray
from mlflow import MlflowClient

from elmwright.jobs.bundles.bundle import digest
from elmwright.jobs.checkpoints.checkpoint import begin_attempt, read_info
from elmwright.jobs.cli.command import main
from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.config.toml_file import load_config, to_dict
from elmwright.jobs.publishing.promotion import promote, publish_bundle, rollback
from elmwright.jobs.registry.contract import describe_bundle
from elmwright.jobs.registry.logged_models import DATA, DIGEST, KIND, NAME
from elmwright.jobs.registry.mlflow_registry import MlflowRegistry
from elmwright.jobs.registry.mlflow_signature import LOADER, signature
from elmwright.jobs.rundir.journal_lines import read_journal
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.rundir.run_lock import locked
from elmwright.jobs.stages.corpus import current_corpus
from elmwright.jobs.stages.stage import Run
from elmwright.jobs.tracking.tracker import OWN_STORE, Tracker
from elmwright.jobs.training.loop.exchange import Ranks
from elmwright.jobs.training.loop.train import train
from elmwright.pipeline.build.driver import build_corpus
from elmwright.pipeline.format.manifest import Manifest
from elmwright.pipeline.records import to_data
from elmwright.pipeline.storage.files import at
from tests.support.tiny import write_config, write_text

pytestmark = pytest.mark.slow(12)

STEPS = 12


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory, empty_database: Path) -> Path:
    """A project whose training was stopped after step 6, with everything relative."""
    project = tmp_path_factory.mktemp("begun") / "my project"
    project.mkdir()
    write_text(project / "text.txt")
    changes = {"corpus_sources": ["text.txt"], "run_dir": "runs/{name}", "train_processes": 1}
    write_config(project, project / "text.txt", train_max_steps=STEPS, **changes)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(project)
        config, folder = opened()
        Path(folder.train).mkdir(parents=True)
        ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
        try:
            build_corpus(
                config.corpus,
                config.vocab,
                config.shards,
                seed=config.run.seed,
                folder=folder.corpus,
            )
        finally:
            ray.shutdown()
        at(folder.config).write_json(to_dict(config))
        folder.mlflow.mkdir()
        shutil.copyfile(empty_database, folder.mlflow / "mlflow.db")
        train(config, folder, begin_attempt(folder.attempt), Ranks(), lambda step: step >= 5)
        send(config, folder, "KILLED")
    return project


def opened() -> tuple[RunConfig, RunFolder]:
    """The project of the current folder."""
    config = load_config("tiny.toml")
    return config, RunFolder.of(config)


def send(config: RunConfig, folder: RunFolder, status: str) -> None:
    tracker = Tracker(config, folder, Manifest.load(folder.corpus))
    tracker.start()
    assert tracker.finish(status) is None


def finish(project: Path, patch: pytest.MonkeyPatch) -> RunFolder:
    """Train the rest, in this process, then export and publish by the command."""
    patch.chdir(project)
    config, folder = opened()
    with locked(folder):
        assert current_corpus(Run(config, folder)) is not None
        train(config, folder, begin_attempt(folder.attempt), Ranks())
        send(config, folder, "FINISHED")
    assert main(["run", "tiny.toml"]) == 0
    return folder


def weights(folder: RunFolder) -> str:
    return read_info(f"{folder.checkpoints}/step-{STEPS:08d}").sha256


def bytes_of(folder: RunFolder) -> dict[str, str]:
    """Digests of what must not change: corpus, checkpoints, bundle, journal, notes."""
    root = Path(folder.root)
    skipped = {"elmwright.log", "run.lock", "mlflow.db", ".inputs.json", ".mlflow.db.lock"}
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in root.rglob("*")
        if path.is_file() and path.name not in skipped
    }


def names(folder: RunFolder, place: Path) -> list[str]:
    """Files of a run, and rows of its database, that name a place."""
    found = [
        str(path)
        for path in Path(folder.root).rglob("*")
        if path.is_file()
        and path.name not in ("elmwright.log", "mlflow.db", "MLmodel")
        and str(place).encode() in path.read_bytes()
    ]
    with closing(sqlite3.connect(folder.mlflow / "mlflow.db")) as database:
        texts = [str(place), place.as_uri()]
        rows = [row for row in database.iterdump() if any(text in row for text in texts)]
    # MLflow's own experiment, which is not used, is where the first command was run.
    return found + [row for row in rows if "'Default'" not in row]


@pytest.fixture(scope="module")
def kept(begun: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project as it was when it was stopped."""
    keep = tmp_path_factory.mktemp("keep") / "kept"
    shutil.copytree(begun, keep)
    return keep


@pytest.fixture(scope="module")
def straight(begun: Path, kept: Path) -> Iterator[RunFolder]:
    """The same run, finished where it was begun."""
    assert kept.is_dir()
    with pytest.MonkeyPatch.context() as patch:
        yield finish(begun, patch)


@pytest.fixture
def halfway(kept: Path, tmp_path: Path) -> Path:
    """A copy of that, to be moved."""
    target = tmp_path / "project"
    subprocess.run(["cp", "-r", kept, target], check=True)
    return target


@pytest.mark.parametrize("how", ["move", "copy"])
def test_stopped_run_resumes_elsewhere_with_the_same_bytes(
    straight: RunFolder,
    halfway: Path,
    how: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    target = halfway.with_name(f"{how} here")
    if how == "move":
        halfway.rename(target)
    else:
        subprocess.run(["cp", "-r", halfway, target], check=True)
        shutil.rmtree(halfway)
    folder = finish(target, monkeypatch)
    assert weights(folder) == weights(straight)
    moved, other = Path(folder.bundle), Path(straight.bundle)
    for file in moved.iterdir():
        if file.name not in ("provenance.json", "SHA256SUMS"):
            same = file.read_bytes() == (other / file.name).read_bytes()
            # The card has the speed of training.
            assert same or file.name in ("README.md", "training.svg"), file.name
    steps = [r.step for r, _ in read_journal(folder.journal, 0) if r.kind == "metrics"]
    assert steps == sorted(set(steps)), "no step is recorded twice"
    assert set(range(2, STEPS + 1, 2)) <= set(steps)

    client = MlflowClient(f"sqlite:///{folder.mlflow}/mlflow.db")
    (run,) = client.search_runs([client.get_experiment_by_name("elmwright").experiment_id])
    points = client.get_metric_history(run.info.run_id, "train/loss")
    assert sorted(point.step for point in points) == steps, "one MLflow run, one curve"
    assert run.info.artifact_uri.startswith((target / "runs").as_uri())
    assert client.list_artifacts(run.info.run_id, "corpus")
    assert run.data.tags["elmwright.run_dir"] == folder.root
    assert json.loads(Path(folder.tracking).read_text())["uri"] == OWN_STORE
    assert names(folder, halfway) == []
    capfd.readouterr()
    assert main(["run", "tiny.toml"]) == 0
    assert "up to date" in capfd.readouterr().out


def test_moved_project_is_up_to_date_and_serves_its_versions(
    straight: RunFolder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    worse_bundle: Path,
) -> None:
    project = Path(straight.root).parents[1]
    first, second = tmp_path / "one", tmp_path / "two"
    subprocess.run(["cp", "-r", project, first], check=True)
    monkeypatch.chdir(first)
    _, folder = opened()
    before = bytes_of(folder)
    capfd.readouterr()
    assert main(["run", "tiny.toml"]) == 0
    assert "up to date" in capfd.readouterr().out
    assert bytes_of(folder) == before
    assert names(folder, project) == []

    first.rename(second)
    monkeypatch.chdir(second)
    to = ["--to", "sqlite:///runs/tiny/mlflow/mlflow.db"]
    publish = ["publish", str(worse_bundle), "--name", "tiny", "--alias", "champion", "--force"]
    assert main(["promote", "tiny", "1", "--alias", "champion", *to]) == 0
    assert main([*publish, *to]) == 0
    assert main(["rollback", "tiny", "--alias", "champion", *to]) == 0
    assert "champion is version 1 of tiny again (was 2)" in capfd.readouterr().out
    registry = MlflowRegistry("sqlite:///runs/tiny/mlflow/mlflow.db")
    assert [version.version for version in registry.versions("tiny")] == [1, 2]
    for version in (1, 2):
        assert registry.fetch("tiny", version).is_relative_to(second)
    assert names(RunFolder.at("runs/tiny"), first) == []


def publish_as_before(uri: str, bundle: Path, name: str) -> None:
    """Make a version as version 0.1 of elmwright did, with MLflow's own client."""
    from mlflow.models import Model
    from mlflow.pyfunc import add_to_model

    client, facts = MlflowClient(uri, uri), describe_bundle(bundle)
    if not client.search_registered_models(f"name = '{name}'"):
        client.create_registered_model(name)
    place = (Path(uri.removeprefix("sqlite:///")).absolute().parent / "artifacts").as_uri()
    found = client.get_experiment_by_name("elmwright")
    home = found.experiment_id if found else client.create_experiment("elmwright", place)
    model = client.create_logged_model(
        home,
        name=f"{name}-{facts.digest[:12]}",
        tags={NAME: name, DIGEST: facts.digest},
        params={"step": str(facts.step)},
        model_type=KIND,
    )
    files = bundle.parent / f"as-before-{model.model_id}"
    files.mkdir()
    described = Model(
        model_id=model.model_id, signature=signature(), metadata={DIGEST: facts.digest}
    )
    add_to_model(described, loader_module=LOADER, data=DATA)
    described.save(str(files / "MLmodel"))
    client.log_model_artifacts(model.model_id, str(files))
    client.log_model_artifacts(model.model_id, str(bundle), DATA)
    client.finalize_logged_model(model.model_id, "READY")
    tags = {"elmwright.about": json.dumps(to_data(facts)), "elmwright.step": str(facts.step)}
    tags |= {f"{split}_perplexity": f"{v:.4f}" for split, v in facts.perplexity.items()}
    import mlflow

    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(uri)
    try:
        version = client.create_model_version(
            name, f"models:/{model.model_id}", tags=tags, model_id=model.model_id
        )
    finally:
        mlflow.set_tracking_uri(before)
    client.set_registered_model_tag(name, "elmwright.history.candidate", f"[{version.version}]")
    client.set_registered_model_alias(name, "candidate", version.version)


def test_registry_of_an_earlier_version_works_after_a_move(
    tmp_path: Path,
    empty_database: Path,
    bundle: Path,
    worse_bundle: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    there, here = tmp_path / "there", tmp_path / "here"
    (there / "run" / "mlflow").mkdir(parents=True)
    (there / "run" / "config.json").write_text("{}")
    shutil.copyfile(empty_database, there / "run" / "mlflow" / "mlflow.db")
    publish_as_before(f"sqlite:///{there}/run/mlflow/mlflow.db", worse_bundle, "tiny")
    there.rename(here)

    registry = MlflowRegistry(f"sqlite:///{here}/run/mlflow/mlflow.db")
    (old,) = registry.versions("tiny")
    assert old.aliases == ("candidate",)
    assert old.about.digest == digest(worse_bundle)
    assert registry.fetch("tiny", 1).is_relative_to(here)
    assert publish_bundle(registry, worse_bundle, "tiny", "candidate") == 1, "the same bundle"
    promote(registry, "tiny", 1, "champion")
    assert publish_bundle(registry, bundle, "tiny", "candidate") == 2
    assert "champion is now version 2" in promote(registry, "tiny", 2, "champion")
    assert "champion is version 1" in rollback(registry, "tiny", "champion")
    assert registry.history("tiny", "candidate") == [1, 2]
    version = registry._client.get_model_version("tiny", "2")
    assert version.description.startswith("# tiny")
    assert version.tags["vocabulary"] == str(
        json.loads((bundle / "config.json").read_text())["vocab"]["size"]
    )
    assert "elmwright.about" not in version.tags


def test_run_folder_finds_scratch_and_corpus_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "project" / "runs" / "tiny"
    root.mkdir(parents=True)
    saved = {
        "run": {"dir": "runs/tiny", "scratch": "runs/tiny/scratch"},
        "corpus": {"dir": "corpora/one"},
    }
    (root / "config.json").write_text(json.dumps(saved))
    monkeypatch.chdir(tmp_path)
    found = RunFolder.at("project/runs/tiny")
    assert found.scratch == root / "scratch"
    assert found.corpus == str(tmp_path / "project" / "corpora" / "one")
    (root / "config.json").write_text(json.dumps({"run": {"dir": "x", "scratch": "/fast/disk"}}))
    assert RunFolder.at(root).scratch == Path("/fast/disk")
    relative = {"run": {"dir": "runs/tiny", "scratch": "cache"}}
    (root / "config.json").write_text(json.dumps(relative))
    assert RunFolder.at(root).scratch == tmp_path / "project" / "cache"
    moved = root.rename(tmp_path / "alone")
    assert RunFolder.at(moved).scratch == moved / "scratch", "not a folder of whoever asks"
