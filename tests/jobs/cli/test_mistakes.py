"""A user's mistake gets one sentence, exit code 2 and no traceback, and loses nothing."""

import os
import subprocess
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import ray

from elmwright.jobs.cluster import connection
from elmwright.jobs.cluster.capacity import check_capacity
from elmwright.jobs.config.toml_file import load_config
from elmwright.jobs.training.driver.launch import check_size
from elmwright.pipeline.format.manifest import Manifest
from tests.support.mistakes import mistake
from tests.support.tiny import elmwright, imported, write_config, write_text

pytestmark = pytest.mark.slow(24)


def fails(*arguments: object) -> str:
    """Run the command, expect a user's mistake, return its one sentence."""
    done = elmwright(*arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    (sentence,) = done.stderr.strip().splitlines()
    assert sentence.startswith("error: ")
    return sentence


def test_a_source_that_is_not_there(tmp_path: Path) -> None:
    sentence = fails("run", write_config(tmp_path, tmp_path / "missing-*.txt"))
    assert "missing-*.txt" in sentence


def test_an_unknown_encoding(tmp_path: Path) -> None:
    text = write_text(tmp_path / "text.txt", 3)
    sentence = fails("run", write_config(tmp_path, text, corpus_encoding="utf-99"))
    assert "utf-99" in sentence
    assert "corpus.encoding" in sentence


def test_a_corpus_smaller_than_a_batch(corpus: Path) -> None:
    manifest = Manifest.load(corpus)
    check_size(load_config("demo", ["train.window=20"]), manifest)
    config = load_config("demo", ["train.lanes=6400", "train.window=20"])
    with mistake("setting", "train.lanes", "128,000"):
        check_size(config, manifest)


def test_sentence_resets_of_one_endless_sentence(corpus: Path) -> None:
    manifest = Manifest.load(corpus)
    train = manifest.splits["train"]
    endless = [replace(shard, sentences=shard.blocks) for shard in train.shards]
    manifest = replace(manifest, splits={"train": replace(train, shards=tuple(endless))})
    with mistake("setting", "corpus.sentences", "train.reset_states"):
        check_size(load_config("demo"), manifest)
    check_size(load_config("demo", ["train.reset_states=block"]), manifest)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    text = write_text(tmp_path / "secret.txt")
    text.chmod(0)
    assert "permission" in fails("run", write_config(tmp_path, text))


def test_a_run_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file where the folder should be")
    sentence = fails("run", write_config(tmp_path, write_text(tmp_path / "text.txt", 5)))
    assert "run.dir" in sentence


@pytest.fixture
def small_disk(tmp_path: Path) -> Path:
    """A disk of 3 MB, where this machine lets us have one."""
    folder = tmp_path / "small"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)],
        capture_output=True,
        check=False,
    )
    if made.returncode:
        pytest.skip("mounting a small disk needs privileges")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_is_reported_and_the_same_command_resumes_when_there_is_space(
    tmp_path: Path, small_disk: Path
) -> None:
    text = write_text(tmp_path / "text.txt", documents=200)
    config = write_config(tmp_path, text, run_dir=str(small_disk / "run"))
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * (2_900_000))
    sentence = fails("corpus", config)
    assert "space" in sentence
    filler.unlink()
    done = elmwright("corpus", config)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (small_disk / "run" / "corpus" / "MANIFEST.json").is_file()


def test_a_cluster_that_is_not_there(tmp_path: Path) -> None:
    config = write_config(
        tmp_path,
        write_text(tmp_path / "text.txt", 5),
        cluster_address="127.0.0.1:1",
        tracking_uri="http://127.0.0.1:1",
    )
    assert "127.0.0.1:1" in fails("run", config)


def test_a_run_folder_that_other_machines_cannot_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every node is really asked; here the only node answers for a folder it does not have."""
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        connection._check_shared(str(tmp_path))
        assert not list(tmp_path.iterdir())
        # As if the file were written where the cluster's nodes do not see it.
        monkeypatch.setattr(connection, "probe_file", lambda _: nullcontext("/nowhere/probe"))
        with mistake("shared-path", str(tmp_path)):
            connection._check_shared(str(tmp_path))
    finally:
        ray.shutdown()


def test_more_than_the_cluster_has_is_refused() -> None:
    train = load_config("demo", ["train.processes=4", "train.threads=2"]).train
    with mistake("capacity", "8 CPUs", "1 machine", "2 CPUs"):
        check_capacity(train, [{"CPU": 2.0}], gpu=False)
    with mistake("capacity", "4 GPUs", "1 GPU"):
        check_capacity(train, [{"CPU": 8.0, "GPU": 1.0}], gpu=True)
    with mistake("capacity", "8 machines"):
        check_capacity(train, [{"CPU": 1.0}] * 8, gpu=False)
    check_capacity(train, [{"CPU": 2.0}, {"CPU": 6.0}], gpu=False)


def test_names_and_folders_that_are_not_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    out = tmp_path / "out.hdf5"
    text = write_text(tmp_path / "text.txt", 1)
    assert "no model folder" in fails("embed", tmp_path / "nothing", text, "-o", out)
    assert "holds no model" in fails("embed", tmp_path, text, "-o", out)
    assert "MLFLOW_TRACKING_URI" in fails("embed", "models:/none@such", text, "-o", out)
    assert "neither a run" in fails("verify", tmp_path)
    assert "has no checkpoints" in fails("checkpoints", tmp_path)


def test_init_never_overwrites_and_its_file_is_a_valid_config(tmp_path: Path) -> None:
    path, books = tmp_path / "my corpus.toml", tmp_path / "*.txt"
    assert "matches no file" in fails("init", path, "--source", books)
    write_text(tmp_path / "book.txt", 50)
    done = elmwright("init", path, "--source", books)
    assert done.returncode == 0, done.stderr
    config = load_config(str(path))
    assert [source.path for source in config.corpus.sources] == [str(books)]
    assert "exists already" in fails("init", path, "--source", books)


def test_help_loads_no_large_library() -> None:
    """It takes 0.3 s on a quiet machine, and each of these would add to it."""
    done = elmwright("--help", PYTHONPROFILEIMPORTTIME="1")
    assert done.returncode == 0
    large = {"torch", "ray", "mlflow", "sqlalchemy", "pyarrow", "h5py", "sentencepiece"}
    assert imported(done.stderr).isdisjoint(large)
