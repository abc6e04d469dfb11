"""From a checkpoint to a bundle: the same bytes every time, and nothing in it that was not made."""

import dataclasses
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import h5py
import numpy as np
import pytest
import yaml

import elmwright
from elmwright.jobs.bundles.base_model import BaseModel, TextSource, base_model
from elmwright.jobs.bundles.bundle import FILES, SUMS, digest, verify_bundle
from elmwright.jobs.checkpoints.checkpoint import list_checkpoints
from elmwright.jobs.cli.command import main
from elmwright.jobs.config.toml_file import load_config
from elmwright.jobs.environment.wheel import content_version, package_files
from elmwright.jobs.publishing import export as export_module
from elmwright.jobs.publishing import provenance as provenance_module
from elmwright.jobs.publishing.choose_checkpoint import Recorded, recorded
from elmwright.jobs.publishing.export import export_run
from elmwright.jobs.publishing.training_facts import training_facts, training_svg
from elmwright.jobs.runbook.runbook import write_job
from elmwright.jobs.runbook.submission import Job
from elmwright.jobs.runbook.target import Target
from elmwright.jobs.rundir.journal_records import CheckpointPruned, Evaluation, Metrics
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.secrets.hiding import without_secret
from elmwright.jobs.submit.send import prepare
from elmwright.jobs.using.pretrained import Elmo
from elmwright.model.formats.bilm_format import write_weights
from elmwright.pipeline.cleaning.words import train_sentencepiece
from elmwright.pipeline.config import Pieces
from elmwright.pipeline.errors import Failed
from elmwright.pipeline.format.manifest import Manifest
from elmwright.pipeline.records import to_data
from elmwright.pipeline.storage.files import at
from tests.support.bundles import contents, copy
from tests.support.mistakes import mistake
from tests.support.places import ROOT

pytestmark = pytest.mark.slow(3)


def test_the_same_checkpoint_gives_the_same_bytes(
    trained: Path, bundle: Path, tmp_path: Path
) -> None:
    again, checked = export_run(str(trained), "20", str(tmp_path / "again"), overrides=[])
    assert "the trainer's" in checked
    one, two = contents(bundle), contents(again)
    assert set(one) == {*FILES, SUMS, "softmax.safetensors", "training.svg"}
    assert {name for name in one if one[name] != two[name]} <= {"provenance.json", SUMS}
    assert digest(bundle) == digest(again)
    checkpoint = Path(list_checkpoints(trained / "train" / "checkpoints")[-1].path)
    for name in ("model.safetensors", "softmax.safetensors", "vocab.txt"):
        assert one[name] == (checkpoint / name).read_bytes()


def test_the_checkpoint_is_chosen_by_number_by_age_or_by_perplexity(
    trained: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run, symlinks=True)
    target, checked = export_run(str(run), "18", "", overrides=[])
    assert target == run / "bundle-step-00000018"
    assert "computed from the bundle" in checked  # it was not evaluated in training
    config = json.loads((target / "config.json").read_text())
    manifest = Manifest.load(trained / "corpus")
    assert config["evaluation"]["heldout"]["tokens"] == manifest.splits["heldout"].steps
    # 12 was measured on 200 tokens and 20 on all: they are compared on all.
    target, _ = export_run(str(run), "best", "", overrides=[])
    assert target == run / "bundle-step-00000020"
    with mistake("checkpoint-missing", "7", "12, 18"):
        export_run(str(run), "7", "", overrides=[])
    target, _ = export_run(str(run), "latest", "", overrides=[])
    assert target == run / "bundle"


def test_what_is_there_is_replaced_only_by_force_and_only_if_it_is_a_bundle(
    trained: Path, bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.txt").write_text("years of work")
    assert main(["export", str(trained), "-o", str(precious)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert main(["export", str(trained), "-o", str(precious), "--force"]) == 2
    assert "is not a bundle" in capsys.readouterr().err
    assert (precious / "thesis.txt").read_text() == "years of work"
    old = copy(bundle, tmp_path / "old")
    (old / "README.md").write_text("damaged")
    assert main(["export", str(trained), "-o", str(old), "--force"]) == 0
    verify_bundle(old)
    assert main(["export", str(tmp_path), "-o", str(tmp_path / "x")]) == 2
    assert "is not a run's folder" in capsys.readouterr().err


def test_a_bundle_without_softmax_embeds_and_says_that_it_cannot_score(
    trained: Path, bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = tmp_path / "small"
    assert main(["export", str(trained), "-o", str(small), "--without-softmax"]) == 0
    verify_bundle(small)
    assert not (small / "softmax.safetensors").exists()
    assert "comes without its softmax" in (small / "README.md").read_text()
    words = [["The", "old", "cat"]]
    np.testing.assert_array_equal(
        Elmo.from_pretrained(small).embed(words)[0], Elmo.from_pretrained(bundle).embed(words)[0]
    )
    assert main(["eval", str(small), "--corpus", str(trained)]) == 2
    assert "no softmax" in capsys.readouterr().err


def test_a_bundle_with_another_perplexity_than_the_trainers_is_never_written(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = list_checkpoints(trained / "train" / "checkpoints")[-1]
    run = RunFolder.at(trained)
    saved = recorded(info, run, Manifest.load(run.corpus))
    assert saved is not None
    probe = {"heldout": dataclasses.replace(saved.probe["heldout"], perplexity=43.9)}
    whole = {"heldout": dataclasses.replace(saved.evaluation["heldout"], perplexity=43.9)}
    for changed in (Recorded(saved.evaluation, probe), Recorded(whole, {})):
        monkeypatch.setattr(export_module, "recorded", lambda *_, changed=changed: changed)
        with pytest.raises(Failed, match=r"perplexity of .*the trainer had 43\.9"):
            export_run(str(trained), "latest", str(tmp_path / "bundle"), overrides=[])
        assert not list(tmp_path.iterdir())


def test_weights_that_were_not_copied_exactly_are_never_written(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = Path(list_checkpoints(trained / "train" / "checkpoints")[-1].path)
    other = list_checkpoints(trained / "train" / "checkpoints")[0].path
    copyfile = shutil.copyfile

    def copy_other(source: Path, target: Path) -> None:
        wrong = source == checkpoint / "model.safetensors"
        copyfile(Path(other) / source.name if wrong else source, target)

    monkeypatch.setattr(shutil, "copyfile", copy_other)
    monkeypatch.setattr(export_module, "measure", lambda *_: ({}, ""))
    with pytest.raises(Failed, match="were not copied exactly"):
        export_run(str(trained), "latest", str(tmp_path / "bundle"), overrides=[])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["char_embed", "RNN_1/RNN/MultiRNNCell/Cell1/LSTMCell/B"])
def test_a_bundle_whose_weights_differ_a_little_is_never_written(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def write_wrong(path: Path, *rest: Any) -> None:
        write_weights(path, *rest)
        with h5py.File(path, "r+") as file:
            file[name][...] = file[name][()] + 0.01

    monkeypatch.setattr(export_module, "write_weights", write_wrong)
    with pytest.raises(Failed, match="gives other vectors than the trained model"):
        export_run(str(trained), "latest", str(tmp_path / "bundle"), overrides=[])
    assert not list(tmp_path.iterdir())


def test_the_card_has_a_header_the_licences_and_snippets_that_run(
    trained: Path, bundle: Path
) -> None:
    card = (bundle / "README.md").read_text(encoding="utf-8")
    header = yaml.safe_load(card.split("---")[1])
    assert header["language"] == "en"
    assert header["library_name"] == "elmwright"
    manifest = Manifest.load(trained / "corpus")
    for part in (
        f"{manifest.splits['train'].words:,} training words",
        "| text.txt | not stated | 1 |",
        "| kept |",
        "![Held-out perplexity and training loss by training tokens](training.svg)",
        "tokens per second (median)",
        "| held-out set | this model | forward | backward | states carried over | unigram model |",
        "known limits",
    ):
        assert part in card
    score = json.loads((bundle / "config.json").read_text())["evaluation"]["heldout"]
    assert f"| heldout | {score['perplexity']:.2f} |" in card
    snippets = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    assert len(snippets) == 4
    for snippet in snippets[:2]:  # the third is in test_serving.py
        names: dict[str, object] = {}
        exec(snippet.replace("FOLDER", str(bundle)), names)  # noqa: S102
        assert "vectors" in names or "output" in names
    compile(snippets[3], "README.md", "exec")  # AllenNLP: tests/bench/interop_allennlp.py runs it
    for path in re.findall(r'"(FOLDER/.*?)"', snippets[3]):
        assert Path(path.replace("FOLDER", str(bundle))).is_file()
    picture = ElementTree.fromstring((bundle / "training.svg").read_text())  # noqa: S314 - ours
    assert picture.tag == "{http://www.w3.org/2000/svg}svg"
    assert any(node.get("class") == "curve" for node in picture.iter())


def test_licences_of_sources_and_of_the_model_are_told(trained: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run, symlinks=True)
    saved = json.loads((run / "config.json").read_text())
    saved["corpus"]["sources"][0] |= {"licence": "CC BY 4.0", "name": "stories | tales"}
    saved["export"]["licence"] = 'mine: "all"'
    (run / "config.json").write_text(json.dumps(saved))
    target, _ = export_run(str(run), "latest", "", overrides=[])
    card = (target / "README.md").read_text(encoding="utf-8")
    assert "| stories \\| tales | CC BY 4.0 | 1 |" in card
    assert yaml.safe_load(card.split("---")[1])["license"] == 'mine: "all"'


def test_a_model_that_began_with_another_names_it_and_its_sources(
    trained: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run, symlinks=True)
    base = BaseModel("/home/me/base", "wiki", "ab" * 32, (TextSource("Wikipedia", "CC-BY-SA"),))
    (run / "train/base.json").write_text(json.dumps(to_data(base)))
    target, _ = export_run(str(run), "latest", "", overrides=[])
    card = (target / "README.md").read_text()
    assert "**wiki**" in card
    assert "| Wikipedia | CC-BY-SA |" in card
    assert "/home/me" not in card
    assert json.loads((target / "provenance.json").read_text())["base"] == to_data(base)
    found = base_model("tuned", target)  # what is trained from this one has all sources
    assert found.sources[0] == base.sources[0]
    assert len(found.sources) > 1


def test_lanes_that_changed_since_do_not_change_the_perplexity(
    trained: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run, symlinks=True)
    saved = json.loads((run / "config.json").read_text())
    saved["eval"]["lanes"] = 1
    (run / "config.json").write_text(json.dumps(saved))
    target, checked = export_run(str(run), "latest", "", overrides=[])
    assert "the trainer's" in checked
    assert json.loads((target / "config.json").read_text())["eval_lanes"] == 4
    saved["model"]["dim"] = 32
    (run / "config.json").write_text(json.dumps(saved))
    with mistake("model-invalid", "step-00000018"):
        export_run(str(run), "18", "", overrides=[])


def test_training_facts_leave_out_pauses_and_later_steps() -> None:
    records = [
        Metrics(step=10, values={"train/loss": 5.0}),
        Metrics(step=20, values={"train/loss": 4.0, "train/tokens_per_s": 100.0}),
        Evaluation(step=20, values={"valid/fresh_perplexity": 50.0, "valid/perplexity": 49.0}),
        CheckpointPruned(step=20),
        Metrics(step=30, values={"train/loss": 3.0, "train/tokens_per_s": 50.0}),
        Metrics(step=40, values={"train/loss": 9.0, "train/tokens_per_s": 1.0}),
    ]
    facts = training_facts(records, 30, 10, "valid")
    assert facts.losses == ((10, 5.0), (20, 4.0), (30, 3.0))
    assert facts.heldout == ((20, 50.0),)
    assert facts.tokens_per_s == 75.0
    assert facts.seconds == pytest.approx(100 / 75 + 1 + 2)
    assert training_svg(facts, "valid") is not None
    assert training_svg(training_facts([], 30, 10, "valid"), "valid") is None


def test_provenance_tells_what_made_it_and_no_secret(trained: Path, bundle: Path) -> None:
    found = json.loads((bundle / "provenance.json").read_text())
    info = list_checkpoints(trained / "train" / "checkpoints")[-1]
    assert found["checkpoint_sha256"] == info.sha256
    assert found["corpus_fingerprint"] == Manifest.load(trained / "corpus").fingerprint
    assert found["seeds"] == {"run.seed": 15}
    assert {"torch", "mlflow", "numpy"} <= set(found["packages"])
    assert found["config"]["train"]["lanes"] == 4
    assert len(found["config_sha256"]) == 64
    assert found["elmwright"] == elmwright.__version__
    assert found["code"] == content_version(package_files())
    if (ROOT / ".git").exists():
        done = subprocess.run(
            ["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True, check=True
        )
        assert found["git"]["commit"] == done.stdout.strip()
    assert without_secret("http://me:secret@host:5000/x") == "http://host:5000/x"
    assert without_secret("sqlite:////tmp/mlflow.db") == "sqlite:////tmp/mlflow.db"


def test_provenance_names_the_mlflow_run_and_what_a_submission_came_from(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a job there is no checkout: the submission below run.dir knows the commit."""
    run = tmp_path / "run"
    shutil.copytree(trained, run, symlinks=True)
    at(run / "tracking.json").write_json({"run_id": "abc123", "offset": 0})
    config = export_module._run_config(str(run), [])
    target = Target("ray", address="http://head:8265")
    for version, commit in (
        (content_version(package_files()), "1" * 40),
        ("0.0.1+000000000000", "2" * 40),
    ):
        sent = prepare(config, target, "publish")
        changes = {"version": version, "dir": str(run), "git": f"{commit}+changes"}
        write_job(Job(dataclasses.replace(sent, **changes)))  # type: ignore[arg-type]
    monkeypatch.setattr(provenance_module, "own_git", lambda: None)
    target_folder, _ = export_run(str(run), "12", "", overrides=[])
    found = json.loads((target_folder / "provenance.json").read_text())
    assert found["mlflow_run_id"] == "abc123"
    assert found["git"]["commit"] == "1" * 40, "that of the code that runs, not of the newest"
    assert found["git"]["dirty"] is True
    (note,) = run.glob(f"submissions/{found['git']['submission']}/job.json")
    note.write_text("{ garbage")
    assert provenance_module.submitted_git(str(run)) is None


def test_a_sentencepiece_run_publishes_its_pieces(trained: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run, symlinks=True)
    (run / "corpus").unlink()
    shutil.copytree(trained / "corpus", run / "corpus")
    lines = (f"the cat number {n} sees a dog" for n in range(200))
    pieces = train_sentencepiece(lines, Pieces(size=40), "en")
    (run / "corpus" / "sentencepiece.model").write_bytes(pieces)
    manifest = Manifest.load(run / "corpus")
    dataclasses.replace(manifest, extra_files={"sentencepiece.model": "0" * 64}).save(
        run / "corpus"
    )
    target, _ = export_run(str(run), "latest", "", overrides=[])
    verify_bundle(target)
    assert (target / "sentencepiece.model").read_bytes() == pieces


def test_a_name_that_no_registry_takes_is_said_before_training() -> None:
    for setting in ("export.name=a/b", "export.alias=v3", "export.alias=3"):
        with mistake("setting", setting.partition("=")[0]):
            load_config("demo", [setting])
