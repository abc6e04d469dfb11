"""Scores of version 0.1, which did not name their states, are those of states carried over."""

import shutil
from pathlib import Path

import pytest

from elmwright.jobs.bundles.bundle_json import read_bundle_config
from elmwright.jobs.checkpoints.checkpoint import list_checkpoints, read_state
from elmwright.jobs.checkpoints.contents import read_result
from elmwright.jobs.publishing.choose_checkpoint import list_scored, recorded
from elmwright.jobs.registry.contract import describe_bundle
from elmwright.jobs.registry.plain_folder import FolderRegistry
from elmwright.jobs.rundir.journal_lines import read_journal
from elmwright.jobs.rundir.journal_records import CheckpointSaved, Evaluation
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.rundir.metrics import perplexities
from elmwright.jobs.using.evaluate_model import evaluate_folder
from elmwright.pipeline.format.manifest import Manifest
from tests.support.places import ROOT

EARLIER = ROOT / "tests" / "fixtures" / "compat" / "0.1"
PERPLEXITY = 4.741355472159186


def test_results_checkpoints_and_the_journal_are_read_as_carried() -> None:
    folder = RunFolder.at(EARLIER / "finished")
    result = read_result(folder.result)
    assert result is not None
    assert {score.states for score in result.evaluation.values()} == {"carried"}
    assert {probe.states for probe in result.probe.values()} == {"carried"}
    assert result.evaluation["heldout"].perplexity_with("carried") == PERPLEXITY
    assert result.evaluation["heldout"].perplexity_with("fresh") is None
    infos = list_checkpoints(folder.checkpoints)
    assert {info.perplexity_states for info in infos} == {"carried"}
    assert {read_state(info.path).best_states for info in infos} == {"carried"}
    assert list_scored(folder)[-1].perplexity_states == "carried"
    records = [record for record, _ in read_journal(folder.journal, 0)]
    saved = [record for record in records if isinstance(record, CheckpointSaved)]
    assert {record.perplexity_states for record in saved} == {"carried"}
    evaluations = [record for record in records if isinstance(record, Evaluation)]
    assert perplexities(evaluations[-1].values) == ({"heldout": PERPLEXITY}, "carried")


def test_a_carried_score_is_not_the_one_to_publish() -> None:
    """The export of such a run scores the held-out sets again."""
    folder = RunFolder.at(EARLIER / "finished")
    newest = list_checkpoints(folder.checkpoints)[-1]
    assert recorded(newest, folder, Manifest.load(folder.corpus)) is None


def test_published_versions_have_a_carried_perplexity_only(tmp_path: Path) -> None:
    about = describe_bundle(EARLIER / "finished" / "bundle")
    assert (about.perplexity, about.fresh_perplexity) == ({"heldout": PERPLEXITY}, {})
    assert read_bundle_config(EARLIER / "finished" / "bundle").eval_lanes == 4
    shutil.copytree(EARLIER / "shelf", tmp_path / "shelf")
    (version,) = FolderRegistry(str(tmp_path / "shelf")).versions("tiny")
    assert version.about.shown_perplexity == ({"heldout": PERPLEXITY}, "carried")


def test_the_carried_perplexity_is_measured_as_before() -> None:
    finished = EARLIER / "finished"
    score = evaluate_folder(finished / "bundle", str(finished / "corpus"), None)["heldout"]
    assert score.states == "fresh"
    assert score.carried_perplexity == pytest.approx(PERPLEXITY, rel=1e-6)
