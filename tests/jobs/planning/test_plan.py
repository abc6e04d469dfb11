"""`elmwright check`: what matters first, in a screen, and exit 2 with what is wrong."""

import io
import json
import os
import socket
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path

import pytest

from elmwright.jobs.cli.command import main
from elmwright.jobs.config.toml_file import config_hash, load_config
from elmwright.jobs.planning import estimate
from elmwright.jobs.planning.plan import describe
from elmwright.jobs.planning.plan_record import Plan, Speed
from elmwright.jobs.planning.plan_text import plan_lines
from elmwright.jobs.training.loop.evaluate import final_limit
from tests.support.tiny import write_config, write_text

ENGLISH = "The old river was high that spring, and nobody in the village could cross it.\n\n"
GERMAN = "Der alte Fluss war in jenem Frühling sehr hoch, und niemand konnte hinüber gehen.\n\n"


def check(*arguments: object) -> tuple[int, str]:
    out = io.StringIO()
    with redirect_stdout(out):
        code = main(["check", *map(str, arguments)])
    return code, out.getvalue()


def plan_of(tmp_path: Path, text: str, **changes: object) -> Plan:
    (tmp_path / "text.txt").write_text(text)
    return describe(load_config(str(write_config(tmp_path, tmp_path / "text.txt", **changes))))


def warnings_of(tmp_path: Path, text: str, **changes: object) -> str:
    plan = plan_of(tmp_path, text, **changes)
    assert plan.problems == ()
    return "\n".join(plan.warnings)


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_the_plan_fits_the_terminal_and_has_every_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    write_config(tmp_path, write_text(tmp_path / "text.txt", 60))
    monkeypatch.chdir(tmp_path)
    code, shown = check(
        "tiny.toml", "--set", "corpus.sources=['text.txt']", "--set", "run.dir='run'"
    )
    assert code == 0
    lines = shown.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= columns
    labels = [line[2:13].strip() for line in lines if line.startswith("  ") and line[2] != " "]
    assert labels == [
        "run",
        "text",
        "sample",
        "vocabulary",
        "model",
        "training",
        "cores",
        "processor",
        "disk",
        "time",
        "MLflow",
    ]
    assert "1 file, " in shown
    assert "100% English (en) as in corpus.language;" in " ".join(shown.split())
    assert "2 processes × 1 thread on" in shown
    assert "[corpus]" not in shown


def test_full_prints_the_resolved_config(tmp_path: Path) -> None:
    config = write_config(tmp_path, write_text(tmp_path / "text.txt", 60))
    code, shown = check(config, "--full")
    assert code == 0
    assert "[corpus]\n" in shown
    assert config_hash(load_config(str(config))) in shown


def test_json_has_the_whole_plan(tmp_path: Path) -> None:
    path = write_config(tmp_path, write_text(tmp_path / "text.txt", 60))
    code, shown = check(path, "--json")
    plan = json.loads(shown)
    assert code == 0
    assert plan["hash"] == config_hash(load_config(str(path)))
    assert {"parameters", "checkpoint", "step", "training"} <= plan["sizes"].keys()
    assert plan["parameters"]["softmax"] == 200 * 9
    size = (tmp_path / "text.txt").stat().st_size
    assert plan["sources"] == [{"path": str(tmp_path / "text.txt"), "files": 1, "bytes": size}]
    assert plan["sample"]["documents"] == 60
    assert plan["sample"]["whole"] is True
    assert 500 < plan["text"]["tokens"] < 5000
    assert plan["cores"]["here"] == len(os.sched_getaffinity(0))
    assert plan["disk"]["needed"] > 3 * size
    assert plan["time"]["train"] > 0
    assert plan["reachable"]["mlflow"]["answers"] is True
    assert plan["problems"] == []
    assert not (tmp_path / "run").exists(), "checking writes nothing"


def test_sources_that_match_nothing_are_refused_with_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(tmp_path, tmp_path / "nothere" / "*.txt", corpus_language="english")
    code, shown = check(config)
    assert code == 2
    assert "nothing found" in shown
    output = capsys.readouterr().err
    assert "2 things to fix:" in output
    assert 'did you mean "en"?' in output
    assert "nothere/*.txt in corpus.sources matches no file" in output
    code, shown = check(config, "--json")
    assert code == 2
    assert len(json.loads(shown)["problems"]) == 2


def test_text_in_another_language_gets_a_warning(tmp_path: Path) -> None:
    shown = " ".join(plan_lines(plan_of(tmp_path, GERMAN * 40), "x"))
    assert "German (de);" in shown
    assert "as in corpus" not in shown
    assert '"de"' in warnings_of(tmp_path, GERMAN * 40)
    assert warnings_of(tmp_path, GERMAN * 40, corpus_language="de").find("German") < 0
    assert "English, which is dropped" in "\n".join(
        plan_of(tmp_path, ENGLISH * 60 + GERMAN * 9, corpus_languages=["de"]).warnings
    )
    asked = {"corpus_languages": ["de"], "corpus_language_threshold": 0.9}
    mostly_german = warnings_of(tmp_path, ENGLISH * 9 + GERMAN * 30, **asked)
    assert "most of the rest is English, which is dropped" in mostly_german


def test_a_heldout_share_smaller_than_a_document_gets_a_warning(tmp_path: Path) -> None:
    novel = ENGLISH * 200
    alone = {"corpus_documents": "file", "corpus_heldout": {"heldout": 0.01}}
    assert "corpus.cut_documents" in warnings_of(tmp_path, novel, **alone)
    cut = warnings_of(tmp_path, novel * 10, corpus_cut_documents=600, **alone)
    assert "corpus.cut_documents" not in cut


def test_more_processes_than_cores_get_a_warning(tmp_path: Path) -> None:
    many = 2 * len(os.sched_getaffinity(0))
    warned = warnings_of(
        tmp_path, ENGLISH * 60, train_processes=many, train_lanes=2 * many, eval_lanes=many
    )
    assert f"= {many}, more than the {many // 2} core" in warned


def test_adagrad_in_a_short_run_gets_a_warning(tmp_path: Path) -> None:
    assert "Adagrad" in warnings_of(tmp_path, ENGLISH * 60)
    assert "Adagrad" not in warnings_of(tmp_path, ENGLISH * 60, optim_name="adamw")


def test_a_sample_that_the_rules_drop_and_too_few_pieces_are_problems(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, ENGLISH * 60, corpus_min_words=500)
    assert "--sample 1000" in plan.problems[0]
    plan = plan_of(
        tmp_path, "日本語の文字はたくさんあります。" * 40, corpus_tokenizer="sentencepiece"
    )
    assert plan.problems == ()
    config = load_config(str(tmp_path / "tiny.toml"), ["corpus.sentencepiece.size=12"])
    assert "characters of the sample" in describe(config).problems[0]


def test_a_finished_corpus_does_not_count_as_disk_space_of_training(tmp_path: Path) -> None:
    before = plan_of(tmp_path, ENGLISH * 50).disk.needed
    run = tmp_path / "run"
    (run / "corpus").mkdir(parents=True)
    (run / "corpus" / "shard").write_bytes(bytes(50_000_000))
    (run / "train").mkdir()
    config = load_config(str(tmp_path / "tiny.toml"))
    training = estimate.training_bytes(config, config.vocab.max_size)
    needed = plan_of(tmp_path, ENGLISH * 50).disk.needed
    assert needed == training < before
    (run / "train" / "one").write_bytes(bytes(1000))
    os.link(run / "train" / "one", run / "train" / "two")
    needed = plan_of(tmp_path, ENGLISH * 50).disk.needed
    assert needed == training - 1000


def test_an_average_is_counted_in_the_size_of_a_checkpoint() -> None:
    without, with_average = (
        estimate.checkpoint_bytes(load_config("original", [f"train.average_steps={n}"]), 1000)
        for n in (0, 500)
    )
    model = load_config("original").model
    weights = sum(model.parameter_counts().values()) + 1000 * (model.projection_dim + 1)
    assert with_average - without == 4 * weights


def test_the_last_evaluation_is_counted_up_to_its_limit() -> None:
    config = load_config("original", ["eval.every_steps=0"])

    def seconds(final: int, *sets: int) -> float:
        section = replace(config.eval, final_tokens=final)
        return estimate.duration(
            replace(config, eval=section),
            Speed(1.0),
            cores=1,
            vocabulary=800_000,
            text_bytes=0,
            heldout_tokens=sets,
            steps_left=1,
        ).evaluate

    assert seconds(1000, 5000) == seconds(0, 1000)
    assert seconds(1000, 5000, 200) == pytest.approx(seconds(0, 1200))
    assert seconds(0, 50_000_000) == seconds(0, 1_000_000), "a million tokens are enough by default"
    for vocabulary in (10, 99_999, 100_000, 800_000):
        for final in (0, 7):
            section = replace(config.eval, final_tokens=final)
            found = estimate.final_tokens(replace(config, eval=section), vocabulary)
            assert found == final_limit(final, vocabulary)


def test_a_database_outside_the_run_is_named(tmp_path: Path) -> None:
    def mlflow(**changes: object) -> str:
        lines = plan_lines(plan_of(tmp_path, ENGLISH * 50, **changes), "x")
        return next(line for line in lines if line.startswith("  MLflow")).split(None, 1)[1]

    assert mlflow() == "a file in the run's folder"
    assert mlflow(tracking_uri=f"sqlite:///{tmp_path}/all.db") == f"{tmp_path}/all.db"


def test_servers_that_do_not_answer_are_reported(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    plan = plan_of(tmp_path, ENGLISH * 60, tracking_uri=f"http://127.0.0.1:{port}")
    assert plan.reachable.mlflow.answers is False
    assert any("does not answer" in warning for warning in plan.warnings)
    assert plan.problems == ()
    there = {"tracking_uri": f"http://127.0.0.1:{port}", "cluster_address": f"127.0.0.1:{port}"}
    plan = plan_of(tmp_path, ENGLISH * 60, **there)
    assert "cannot connect to the Ray cluster" in plan.problems[0]


def test_measure_times_real_steps(tmp_path: Path) -> None:
    config = load_config(str(write_config(tmp_path, write_text(tmp_path / "text.txt", 60))))
    plan = describe(config, measure=True)
    assert plan.time.measured is True
    assert plan.time.steps >= 2
    assert plan.time.seconds >= 1
    assert plan.time.text == "the sample"
    assert "training measured: " in " ".join(" ".join(plan_lines(plan, "x")).split())
    demo = describe(load_config("demo", ["model.dim=8", "run.dir=" + str(tmp_path)]), measure=True)
    assert demo.time.text == "Python's own documentation"


def test_the_rule_of_thumb_counts_the_arithmetic_of_a_step() -> None:
    """Against the exact count of `model.flops` on a typical batch: the same within a third."""
    import torch

    from elmwright.model.chars import char_ids
    from elmwright.model.flops import step_flops

    words = [line.split()[0][:12] for line in ["river", "was", "village", "understand", "of"] * 128]
    for recipe in ("demo", "small", "original"):
        config = load_config(recipe)
        chars = torch.from_numpy(char_ids(words, config.model.max_chars))
        exact = step_flops(config.model, 1280, config.train.negatives, chars) / 1280
        rule = estimate.flops_per_token(config, 1_000_000)
        assert rule == pytest.approx(exact, rel=0.34), recipe


def test_durations_in_words() -> None:
    expected = {
        5: "5 s",
        100: "2 min",
        4000: "67 min",
        6000: "1 h 40 min",
        7200: "2 h",
        50_000: "14 h",
        604_800: "7 days",
    }
    assert {seconds: estimate.in_words(seconds) for seconds in expected} == expected
