"""What several tests of this room need; what is slow to make and never changed is made once."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from mlflow import MlflowClient

from elmwright.jobs.checkpoints.checkpoint import begin_attempt
from elmwright.jobs.config.toml_file import load_config, to_dict
from elmwright.jobs.publishing.export import export_run
from elmwright.jobs.runbook.submission import Submission
from elmwright.jobs.training.loop.exchange import Ranks
from elmwright.jobs.training.loop.train import train
from elmwright.pipeline.build.driver import build_corpus
from elmwright.pipeline.progress import silent
from elmwright.pipeline.storage.files import at
from tests.support.cluster.dashboard import Dashboard, submission_to
from tests.support.made_once import made_once
from tests.support.tiny import write_config, write_text
from tests.support.tiny_runs.started_run import start
from tests.support.tiny_runs.training import prepare


def build_tiny_corpus(home: Path) -> None:
    config = load_config(str(write_config(home, write_text(home / "text.txt"))))
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        build_corpus(
            config.corpus,
            config.vocab,
            config.shards,
            seed=config.run.seed,
            folder=home / "corpus",
            progress=silent,
        )
    finally:
        ray.shutdown()


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished tiny corpus."""
    return made_once(tmp_path_factory, "corpus", build_tiny_corpus) / "corpus"


def create_database(folder: Path) -> None:
    MlflowClient(f"sqlite:///{folder / 'mlflow.db'}").search_experiments()


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow database with its tables and nothing in them: creating one takes seconds."""
    return made_once(tmp_path_factory, "mlflow", create_database) / "mlflow.db"


@pytest.fixture(scope="session")
def trained(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny finished run: checkpoints 12 and 18 in passing, 20 with all measured."""
    home = tmp_path_factory.mktemp("trained")
    # With this seed, and evaluated on 200 tokens, 12 is the best in passing and not 18.
    config, run = prepare(home, corpus, eval_max_tokens=200, run_seed=15)
    begin_attempt(run.attempt)
    train(config, run, 1, Ranks())
    at(run.config).write_json(to_dict(config))
    return Path(run.root)


@pytest.fixture(scope="session")
def bundle(trained: Path) -> Path:
    """The bundle of its last checkpoint."""
    return export_run(str(trained), "latest", str(trained.parent / "bundle"), overrides=[])[0]


@pytest.fixture(scope="session")
def worse_bundle(trained: Path) -> Path:
    """The bundle of an earlier checkpoint, whose perplexity is higher."""
    return export_run(str(trained), "12", str(trained.parent / "worse"), overrides=[])[0]


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without targets, runs or tokens."""
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


@pytest.fixture
def dashboard() -> Iterator[Dashboard]:
    """Of a Ray cluster with four CPUs."""
    one = Dashboard()
    yield one
    one.close()


@pytest.fixture
def submission(dashboard: Dashboard, tmp_path: Path) -> Submission:
    """To that cluster."""
    return submission_to(dashboard, tmp_path)


@pytest.fixture
def project(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with one run in runs/ that was made by hand."""
    home = own_home / "project"
    home.mkdir()
    monkeypatch.chdir(home)
    config = write_config(home, home / "text.txt", run_dir="runs/{name}")
    start(config)
    return home
