"""Mistakes are reported before a run starts, all at once."""

import json
import os
import re
from pathlib import Path

import pytest

from elmwright.jobs.checkpoints.checkpoint import list_checkpoints
from elmwright.jobs.config.resume_settings import changed_settings
from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.config.toml_file import load_config, to_dict
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.rundir.stage_names import STAGES
from elmwright.jobs.stages import train
from elmwright.jobs.stages.base_model import taken_settings
from elmwright.jobs.stages.preflight import preflight
from elmwright.jobs.stages.problems import as_text
from elmwright.jobs.stages.stage import find_run
from elmwright.jobs.stages.workflow import ALL_STAGES
from elmwright.model.config import ModelConfig, shape_problem
from elmwright.pipeline.cleaning.language import code_problem
from elmwright.pipeline.storage.disk import DiskLocation
from tests.support.tiny import elmwright, write_config, write_text

pytestmark = pytest.mark.slow(103)


def problems_of(tmp_path: Path, text: object = None, **changes: object) -> list[str]:
    source = text if text is not None else write_text(tmp_path / "text.txt", 30)
    return problems_in(load_config(str(write_config(tmp_path, source, **changes))))  # type: ignore[arg-type]


def problems_in(config: RunConfig) -> list[str]:
    return preflight(find_run(config, RunFolder.of(config)), ALL_STAGES, STAGES)


def test_sound_config_has_no_problems_and_nothing_is_written(tmp_path: Path) -> None:
    assert problems_of(tmp_path) == []
    assert {path.name for path in tmp_path.iterdir()} == {"text.txt", "tiny.toml"}


def test_run_reports_all_problems_before_it_starts(tmp_path: Path) -> None:
    config = write_config(
        tmp_path,
        tmp_path / "nothere-*.txt",
        corpus_language="english",
        corpus_decontaminate=[str(tmp_path / "no-eval.txt")],
        vocab_file=str(tmp_path / "no-vocab.txt"),
        train_threads=64,
        train_init_from="no-model",
    )
    done = elmwright("run", config)
    assert done.returncode == 2
    assert not (tmp_path / "run" / "config.json").exists(), "it is not a run yet"
    assert "Traceback" not in done.stderr
    lines = done.stderr.strip().splitlines()
    assert lines[0] == "error: 6 things to fix:"
    expected = (
        'corpus.language: "english"',
        "nothere-*.txt",
        "no-eval.txt",
        "no-vocab.txt",
        "needs 128 CPUs",
        "train.init_from: there is no model folder 'no-model'",
    )
    for words, line in zip(expected, lines[1:], strict=True):
        assert words in line, line
    assert not (tmp_path / "run" / "corpus").exists()


@pytest.mark.parametrize(
    ("code", "suggestion"),
    [
        ("english", '"en"'),
        ("German", '"de"'),
        ("deutsch", '"de"'),
        ("EN", '"en"'),
        ("en_US", '"en"'),
        ("norwegain", '"no"'),
        ("eng", '"en"'),
    ],
)
def test_language_name_is_refused_with_its_code(code: str, suggestion: str) -> None:
    assert suggestion in code_problem(code)


def test_language_codes_are_accepted() -> None:
    assert [code_problem(code) for code in ("en", "de", "ko", "zh", "no", "zh-Hant")] == [""] * 6


def test_both_language_settings_are_checked(tmp_path: Path) -> None:
    problems = problems_of(tmp_path, corpus_language="english", corpus_languages=["en", "germn"])
    assert [p.partition(":")[0] for p in problems] == ["corpus.language", "corpus.languages"]


def test_missing_text_field_is_reported(tmp_path: Path) -> None:
    source = tmp_path / "text.jsonl"
    source.write_text('{"id": 1, "body": "Some text."}\n' * 200)
    [problem] = problems_of(tmp_path, source)
    assert 'no text in the field "text" (the fields are id, body' in problem
    assert problems_of(tmp_path, source, corpus_text_field="body") == []
    source.write_text('{"id": 0}\n' + '{"id": 1, "text": "Some text."}\n' * 200)
    assert problems_of(tmp_path, source) == [], "one record without text is no reason to refuse"


def test_parquet_file_without_the_text_column_is_reported(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    texts = ["Some text that is long enough for a batch."] * 50
    parquet.write_table(pyarrow.table({"text": texts}), tmp_path / "a.parquet")
    parquet.write_table(pyarrow.table({"body": texts}), tmp_path / "b.parquet")
    [problem] = problems_of(tmp_path, tmp_path / "*.parquet")
    assert 'b.parquet has no column "text"; set corpus.text_field to one of body' in problem


def test_empty_or_small_sources_are_reported(tmp_path: Path) -> None:
    source = tmp_path / "text.txt"
    source.write_text("")
    assert "hold no text" in problems_of(tmp_path, source)[0]
    source.write_text("Two words.")
    assert "less than one batch" in problems_of(tmp_path, source)[0]


def test_missing_empty_or_broken_heldout_set_is_reported(tmp_path: Path) -> None:
    write_text(tmp_path / "text.txt", 30)
    (tmp_path / "empty.txt").write_text("\n\n")
    (tmp_path / "broken.jsonl").write_text("{\n")
    names = {name: [str(tmp_path / name)] for name in ("missing", "empty.txt", "broken.jsonl")}
    heldout = {name.partition(".")[0]: paths for name, paths in names.items()}
    problems = problems_of(tmp_path, tmp_path / "text.txt", corpus_heldout=heldout)
    assert len(problems) == 3
    assert "corpus.heldout.missing does not exist" in problems[0]
    assert any("empty.txt of corpus.heldout.empty holds no text" in p for p in problems)
    assert any("broken.jsonl of corpus.heldout.broken: broken JSON" in p for p in problems)


def test_one_empty_file_of_a_heldout_set_is_accepted(tmp_path: Path) -> None:
    text = write_text(tmp_path / "text.txt", 30)
    write_text(tmp_path / "more.txt", 30)
    for name in ("empty.txt", "blank.txt"):
        (tmp_path / name).write_text("\n\n")
    names = [str(tmp_path / name) for name in ("empty.txt", "blank.txt", "more.txt")]
    assert problems_of(tmp_path, text, corpus_heldout={"valid": names}) == []
    assert problems_of(tmp_path, text, corpus_heldout={"valid": names[:2]}) == [
        "each of the 2 files of corpus.heldout.valid holds no text; check it"
    ]


def test_invalid_vocabulary_is_reported(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("a\nb\n")
    [problem] = problems_of(tmp_path, vocab_file=str(tmp_path / "vocab.txt"))
    assert "must begin with the lines" in problem


def test_unwritable_folders_are_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    [problem] = problems_of(tmp_path, run_dir=str(tmp_path / "file" / "run"))
    assert problem.startswith(f"run.dir {tmp_path}/file/run cannot be written ({tmp_path}/file is")
    other = tmp_path / "mine"
    other.mkdir()
    (other / "letter.txt").write_text("")
    [problem] = problems_of(tmp_path, corpus_dir=str(other))
    assert "is not empty and is not a corpus of elmwright" in problem


def test_foreign_files_in_the_bundle_folder_are_reported(tmp_path: Path) -> None:
    (tmp_path / "run" / "bundle").mkdir(parents=True)
    (tmp_path / "run" / "bundle" / "notes.txt").write_text("")
    [problem] = problems_of(tmp_path)
    assert "notes.txt does not belong to a bundle" in problem


def test_small_disk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DiskLocation, "free_bytes", lambda _self: 100)
    [problem] = problems_of(tmp_path)
    assert "MB of disk" in problem


def test_missing_gpu_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "has_gpu", lambda: False)
    [problem] = problems_of(tmp_path, train_device="cuda")
    assert "no NVIDIA GPU" in problem
    monkeypatch.setattr(train, "has_gpu", lambda: True)
    assert problems_of(tmp_path, train_device="cuda") == []
    remote = {"cluster_address": "head:6379", "tracking_uri": "http://127.0.0.1:9"}
    monkeypatch.setattr(train, "has_gpu", lambda: False)
    assert problems_of(tmp_path, train_device="cuda", **remote) == []


def test_wrong_mlflow_address_is_reported(tmp_path: Path) -> None:
    [problem] = problems_of(tmp_path, tracking_uri="mysql+nosuchdriver://host/db")
    assert "not a database that MLflow knows" in problem
    (tmp_path / "file").write_text("")
    [problem] = problems_of(tmp_path, tracking_uri=f"sqlite:///{tmp_path}/file/mlflow.db")
    assert "cannot be written" in problem
    problems = problems_of(tmp_path, tracking_uri="http://127.0.0.1:9")
    assert problems == [], "a run may start without its server"


def test_sentencepiece_size_too_small_for_bytes_is_reported(tmp_path: Path) -> None:
    pieces = {"size": 200, "byte_fallback": True}
    settings = {"corpus_tokenizer": "sentencepiece"}
    config = load_config(
        str(write_config(tmp_path, write_text(tmp_path / "text.txt", 30), **settings)),
        [f"corpus.sentencepiece.{key}={json.dumps(value)}" for key, value in pieces.items()],
    )
    [problem] = problems_in(config)
    assert "corpus.sentencepiece.size = 200" in problem


def test_all_changed_settings_are_reported_at_once() -> None:
    saved, now = (
        to_dict(load_config("demo", overrides))
        for overrides in ([], ["run.seed=2", "optim.lr=0.1", "train.max_steps=5", "model.dim=8"])
    )
    problem = changed_settings(saved, now)
    assert problem.count("but the run was started with") == 3
    assert all(name in problem for name in ("run.seed is 2", "optim.lr is 0.1", "model.dim is 8"))
    assert "max_steps" not in problem
    assert problem.endswith("set them back")
    assert changed_settings(saved, saved) == ""


def test_all_differences_from_init_from_are_reported_at_once() -> None:
    base = ModelConfig(dim=8, filters=((1, 4), (2, 4)), n_highway=1)
    problem = shape_problem(ModelConfig(), base)
    for words in ("model.dim is 4096", "has [[1, 4], [2, 4]]", "model.n_highway is 2"):
        assert words in problem
    assert problem.endswith("set them to that")
    assert shape_problem(base, base) == ""


def test_several_problems_are_several_lines() -> None:
    assert as_text(["one"]) == "one"
    assert as_text(["one", "two"]) == "2 things to fix:\n  - one\n  - two"


def write_model(folder: Path, config: RunConfig) -> Path:
    """A model in bilm format, of the shape of a config."""
    from elmwright.model.bilm import BiLM
    from elmwright.model.formats.bilm_format import write_options, write_weights
    from elmwright.model.formats.folder import model_tensors

    folder.mkdir()
    write_options(folder / "options.json", config.model, {})
    write_weights(folder / "weights.hdf5", config.model, model_tensors(BiLM(config.model, 3)))
    return folder


def test_init_from_model_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = write_text(tmp_path / "text.txt", 30)
    config = load_config(str(write_config(tmp_path, text)))
    write_model(tmp_path / "base", config)
    monkeypatch.chdir(tmp_path)
    assert problems_of(tmp_path, text, train_init_from="base") == []
    [problem] = problems_of(
        tmp_path, text, train_init_from="base", model_dim=24, model_projection_dim=4
    )
    assert "model.dim is 24, but the model in train.init_from has 16" in problem
    assert "model.projection_dim is 4, but the model in train.init_from has 8" in problem


def leave_out_model(path: Path) -> None:
    """Remove the section [model] from a config."""
    written = re.sub(r"(?m)^\[model\]\n(?:\w+ = .*\n)*", "", path.read_text())
    assert "projection_dim" not in written
    path.write_text(written)


def test_settings_of_the_model_that_are_not_given_come_from_the_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = write_text(tmp_path / "text.txt", 30)
    base = load_config(str(write_config(tmp_path, text)))
    write_model(tmp_path / "base", base)
    path = write_config(tmp_path, text, train_init_from="base")
    leave_out_model(path)
    monkeypatch.chdir(tmp_path)
    config = load_config(str(path))
    assert config.model == ModelConfig()
    run = find_run(config, RunFolder.of(config))
    assert run.config.model == base.model
    assert problems_in(config) == []
    told = taken_settings(config, run.config)
    assert "dim = 16" in told
    assert "from base" in told
    assert "residual" not in told, "that was the same before"
    config = load_config(str(path), ["model.dim=24", "model.n_highway=0"])
    [problem] = problems_in(config)
    assert "model.dim is 24, but the model in train.init_from has 16" in problem
    assert "model.n_highway is 0" in problem
    assert "projection_dim" not in problem


def test_a_base_that_is_missing_or_damaged_is_reported_before_the_corpus_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = write_text(tmp_path / "text.txt", 30)
    config = load_config(str(write_config(tmp_path, text, train_init_from="base")))
    monkeypatch.chdir(tmp_path)
    assert problems_in(config) == [
        "train.init_from: there is no model folder 'base' and no run of that name; give a run, a "
        "bundle, a checkpoint, a folder with options.json and one .hdf5, or models:/NAME@ALIAS"
    ]
    write_model(tmp_path / "base", config)
    (tmp_path / "base" / "options.json").write_text("{")
    [problem] = problems_in(config)
    assert "options.json" in problem


@pytest.mark.heavy
def test_relative_init_from_is_resolved_before_workers_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The saved config keeps the relative path, so the run can be resumed in a moved folder."""
    text = write_text(tmp_path / "text.txt", 60)
    path = write_config(tmp_path, text, train_init_from="base", train_max_steps=2)
    config = load_config(str(path))
    write_model(tmp_path / "base", config)
    leave_out_model(path)
    monkeypatch.chdir(tmp_path)
    done = elmwright("train", path)
    assert done.returncode == 0, done.stdout + done.stderr
    [*_, info] = list_checkpoints(RunFolder.of(config).checkpoints)
    saved = json.loads((Path(info.path) / "config.json").read_text())["run_config"]
    assert saved["train"]["init_from"] == "base"
    assert saved["model"] == to_dict(config)["model"]
    assert "[model] has from base: dim = 16" in done.stdout
    os.rename(tmp_path / "base", tmp_path / "gone")
    assert "train.init_from base has no softmax" in done.stdout
    again = elmwright("train", path, "--set", "train.max_steps=3")
    assert again.returncode == 0, "resuming does not need init_from" + again.stderr


def test_preflight_is_quick(tmp_path: Path) -> None:
    import time

    write_text(tmp_path / "text.txt", 400)
    config = load_config(str(write_config(tmp_path, tmp_path / "text.txt")))
    times = []
    for _ in range(3):
        start = time.process_time()
        assert problems_in(config) == []
        times.append(time.process_time() - start)
    assert min(times) < 0.5
