"""What is slow to make and never changed, made once for all tests of this room."""

from pathlib import Path

import pytest
import ray
from mlflow import MlflowClient

from elmwright.jobs.config_file import load_config
from elmwright.pipeline.build import build_corpus
from elmwright.pipeline.progress import silent
from tests.jobs.tiny import write_config, write_text


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished tiny corpus, built once."""
    home = tmp_path_factory.mktemp("corpus")
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
    return home / "corpus"


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow database with its tables and nothing in them: creating one takes seconds."""
    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    MlflowClient(f"sqlite:///{path}").search_experiments()
    return path
