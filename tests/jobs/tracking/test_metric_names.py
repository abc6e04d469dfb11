"""What MLflow shows: curves as charts in a good order, single values as tags, names that last."""

import json
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.registry import version_page
from elmwright.jobs.registry.contract import About
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.tracking.metric_names import NAMES, charted, heldout_metric, readable, tagged
from elmwright.jobs.tracking.tracker import Tracker
from tests.support.tiny import manifest
from tests.support.tiny_runs.shown_run import write_journal, write_run

pytestmark = pytest.mark.slow(3)


def feed(config: RunConfig, folder: RunFolder) -> MlflowClient:
    tracker = Tracker(config, folder, manifest())
    tracker.start()
    assert tracker.finish("FINISHED") is None
    uri = f"sqlite:///{folder.mlflow / 'mlflow.db'}"
    return MlflowClient(uri, uri)


@pytest.fixture
def run(tmp_path: Path, empty_database: Path) -> tuple[RunConfig, RunFolder]:
    config, folder = write_run(tmp_path)
    folder.mlflow.mkdir()
    shutil.copyfile(empty_database, folder.mlflow / "mlflow.db")
    return config, folder


def points(folder: RunFolder) -> dict[str, list[tuple[int, float]]]:
    """Every metric of the database: (step, value)."""
    found: dict[str, list[tuple[int, float]]] = {}
    with closing(sqlite3.connect(folder.mlflow / "mlflow.db")) as opened:
        for key, step, value in opened.execute("SELECT key, step, value FROM metrics"):
            found.setdefault(key, []).append((step, value))
    return found


def test_charts_are_curves_and_the_important_ones_sort_first(
    run: tuple[RunConfig, RunFolder],
) -> None:
    client = feed(*run)
    found = points(run[1])
    charts = [name for name in sorted(found) if not name.startswith("system/")]
    assert charts[:2] == ["heldout/fresh_perplexity", "heldout/perplexity"]
    assert charts[2:5] == ["train/loss", "train/lr", "train/tokens_per_s"]
    assert {name.partition("/")[0] for name in charts[5:]} == {"under_the_hood"}
    assert all(len(values) > 1 for values in found.values()), "a chart of one dot"
    assert sorted(step for step, _ in found["heldout/perplexity"]) == [20, 40, 60, 80, 100]
    (one,) = client.search_runs([client.get_experiment_by_name("elmwright").experiment_id])
    for key in ("fresh_perplexity", "perplexity"):
        assert one.data.tags[f"heldout_{key}"] == readable(dict(found[f"heldout/{key}"])[100])
    assert one.data.tags["heldout_tokens"] == "400"
    assert one.data.tags["heldout_unk_share"] == "1.00%"
    assert one.data.tags["step"] == "100"


def test_a_checkpoint_has_its_perplexity_and_a_pruned_one_leaves_no_file(
    run: tuple[RunConfig, RunFolder],
) -> None:
    client = feed(*run)
    experiment = client.get_experiment_by_name("elmwright").experiment_id
    models = {model.name: model for model in client.search_logged_models([experiment])}
    assert sorted(models) == ["tiny-step-100", "tiny-step-60", "tiny-step-80"]
    on_disk = {path.parents[1].name for path in run[1].mlflow.rglob("MLmodel")}
    assert on_disk == {model.model_id for model in models.values()}
    values = dict(points(run[1])["heldout/fresh_perplexity"])
    for step in (60, 80, 100):
        (score,) = models[f"tiny-step-{step}"].metrics
        assert (score.key, score.value) == ("heldout/fresh_perplexity", values[step])
        place = f"{run[1].checkpoints}/step-{step:08d}"
        assert models[f"tiny-step-{step}"].params["uri"] == place


def test_a_run_that_was_begun_under_the_names_of_before_keeps_them(
    run: tuple[RunConfig, RunFolder],
) -> None:
    config, folder = run
    feed(config, folder)
    state = Path(folder.tracking)
    saved = json.loads(state.read_text())
    assert saved.pop("names") == NAMES
    state.write_text(json.dumps(saved))  # as an older version left it
    write_journal(folder, range(102, 121, 2))
    feed(config, folder)
    found = points(folder)
    assert [step for step, _ in sorted(found["train/gradient_norm"])] == list(range(102, 121, 2))
    assert max(step for step, _ in found["under_the_hood/gradient_norm"]) == 100
    assert max(step for step, _ in found["train/loss"]) == 120


def test_values_that_say_nothing_are_not_charted() -> None:
    quiet = {"train/skipped_updates": 0, "train/softmax_mb_exchanged": 0.0}
    constant = {"train/dense_mb_exchanged": 3.25}
    assert charted("metrics", {**quiet, **constant, "new/metric": 1.0}, NAMES) == {"new/metric": 1}
    assert tagged("metrics", 5, constant) == {"dense_mb_exchanged_per_step": "3.2500"}
    assert charted("metrics", {"train/skipped_updates": 2}, NAMES) == {
        "under_the_hood/skipped_updates": 2
    }
    values = {"news/tokens": 5, "news/perplexity": 9.0, "news/fresh_perplexity": 9.5}
    assert charted("eval", values, NAMES) == {
        "heldout/news_perplexity": 9.0,
        "heldout/news_fresh_perplexity": 9.5,
    }
    assert heldout_metric("heldout", "carried") == "heldout/perplexity"
    assert heldout_metric("heldout", "fresh") == "heldout/fresh_perplexity"


def test_a_journal_of_an_earlier_version_keeps_its_charts_and_tags() -> None:
    values = {"news/perplexity": 9.0, "news/bits_per_character": 2.0, "news/forward_nll": 2.2}
    assert charted("eval", values, NAMES) == {
        "heldout/news_perplexity": 9.0,
        "under_the_hood/news_bits_per_character": 2.0,
    }
    final = {f"final/{name}": value for name, value in values.items()}
    assert tagged("final", 7, final) == {
        "step": "7",
        "news_perplexity": "9",
        "news_bits_per_character": "2",
    }


def card(folder: Path, text: str, **origin: Any) -> Path:
    """A bundle with what every version has written into it, and `origin`."""
    folder.mkdir(exist_ok=True)
    (folder / "README.md").write_text(text, encoding="utf-8")
    config = {"step": 10, "vocab": {"size": 7, "sha256": "0" * 64}, "heldout_sha256": {}}
    (folder / "config.json").write_text(json.dumps(config))
    always = {"corpus_fingerprint": "1" * 64, "mlflow_run_id": ""}
    (folder / "provenance.json").write_text(json.dumps({**always, **origin}))
    return folder


def test_the_description_is_the_card_without_what_mlflow_cannot_show(tmp_path: Path) -> None:
    text = (
        "---\nlanguage: en\n---\n# demo\n![curve](training.svg)\n\nA model.\n\n## Use\nLike so.\n"
    )
    found = version_page.description(card(tmp_path, text))
    assert found == "# demo\n\nA model.\n\n## Use\nLike so."
    long = text + "".join(f"## Section {n}\n{'word ' * 300}\n" for n in range(9))
    found = version_page.description(card(tmp_path, long))
    assert len(found) <= version_page.LONGEST
    assert "## Section 1" in found
    assert found.endswith("data/README.md` among the files of this model.")


def test_facts_are_single_tags_and_an_older_bundle_just_has_fewer(tmp_path: Path) -> None:
    scores = {"news": 12.34567, "heldout": 9.0}
    about = About("0" * 64, 10, scores, "", {}, "", "", signed=False)
    train = {"lanes": 4, "window": 5, "accumulate": 2}
    config = {"train": train, "export": {"licence": "CC0"}}
    found = version_page.facts(card(tmp_path, "", config=config, corpus_words=99), about)
    assert found == {
        "news_perplexity": "12.3457",
        "heldout_perplexity": "9",
        "perplexity": "12.3457",
        "step": "10",
        "tokens": "400",
        "vocabulary": "7",
        "corpus_words": "99",
        "licence": "CC0",
    }
    fresh = replace(about, fresh_perplexity={"news": 13.0, "heldout": 9.5})
    found = version_page.facts(card(tmp_path, ""), fresh)
    assert (found["perplexity"], found["fresh_perplexity"]) == ("12.3457", "13")
    assert (found["heldout_perplexity"], found["heldout_fresh_perplexity"]) == ("9", "9.5000")
    found = version_page.facts(card(tmp_path, ""), replace(about, perplexity={}))
    assert found == {"step": "10", "vocabulary": "7"}


def test_a_held_out_set_may_be_called_final() -> None:
    values = {"final/fresh_perplexity": 9.0, "final/tokens": 5.0}
    assert heldout_metric("final", "fresh") in charted("eval", values, NAMES)
