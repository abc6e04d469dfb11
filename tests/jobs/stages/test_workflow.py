"""Which stages of a run are done, and what is done again; training runs in this process."""

import io
import json
import os
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from elmwright.jobs.bundles import bundle
from elmwright.jobs.bundles.bundle import read_sums
from elmwright.jobs.checkpoints.checkpoint import begin_attempt, list_checkpoints, verify_checkpoint
from elmwright.jobs.cli.command import main
from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.config.toml_file import load_config
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.rundir.stop_request import ask_to_stop
from elmwright.jobs.stages import workflow
from elmwright.jobs.stages.closing import Outcome
from elmwright.jobs.stages.corpus import Corpus
from elmwright.jobs.stages.export import Export
from elmwright.jobs.stages.publish import Publish
from elmwright.jobs.stages.train import Train
from elmwright.jobs.terminal import exit_codes
from elmwright.jobs.terminal.console import Console
from elmwright.jobs.tracking import tracker
from elmwright.jobs.tracking.tracker import is_caught_up
from elmwright.jobs.training.driver import launch as launching
from elmwright.jobs.training.driver.launch import Fit, launch
from elmwright.jobs.training.loop.exchange import Ranks
from elmwright.jobs.training.loop.train import train
from elmwright.pipeline.errors import Interrupted
from elmwright.pipeline.format.manifest import Manifest, canonical
from elmwright.pipeline.storage.disk import sha256_bytes
from elmwright.pipeline.storage.files import at
from elmwright.pipeline.storage.location import Location
from tests.support.mistakes import mistake
from tests.support.tiny_runs.training import prepare

pytestmark = pytest.mark.slow(43)


class Flow:
    """A run whose Ray is a stand-in: the loop is called directly."""

    def __init__(
        self, home: Path, corpus: Path, database: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        _, self.folder = prepare(home, corpus)
        self.folder.mlflow.mkdir()
        shutil.copyfile(database, self.folder.mlflow / "mlflow.db")
        self.path = home / "tiny.toml"
        self.trained: list[int] = []
        self.console = Console(io.StringIO())
        self.fit: Fit = self.train
        monkeypatch.setattr(launching, "POLL_SECONDS", 0.05)
        self.stages = (
            Corpus(find=lambda _run: Manifest.load(self.folder.corpus)),
            Train(launch=self.launch, settle=lambda config, *_: config),
            Export(),
            Publish(),
        )

    def launch(self, *arguments: Any) -> None:
        launch(*arguments, fit=self.fit)

    def train(self, config: RunConfig, folder: RunFolder, attempt: int, _again: bool) -> None:
        train(config, folder, attempt, Ranks())
        self.trained.append(config.train.max_steps)

    @contextmanager
    def no_ray(self, *_: object) -> Iterator[None]:
        yield

    @contextmanager
    def quiet(self, *_: object, **__: object) -> Iterator[Console]:
        yield self.console

    def run(self, *overrides: str, until: str = "publish") -> Outcome:
        return workflow.run(
            load_config(str(self.path), list(overrides)),
            until=until,
            stages=self.stages,
            connect=self.no_ray,
            open_console=self.quiet,
        )

    @property
    def provenance(self) -> dict[str, object]:
        return dict(json.loads((self.folder.bundle / "provenance.json").read_text()))

    @property
    def output(self) -> str:
        return self.console.stream.getvalue()  # type: ignore[attr-defined,no-any-return]


@pytest.fixture
def flow(
    tmp_path: Path, corpus: Path, empty_database: Path, monkeypatch: pytest.MonkeyPatch
) -> Flow:
    return Flow(tmp_path, corpus, empty_database, monkeypatch)


def test_more_steps_give_a_new_bundle_and_a_new_version(flow: Flow) -> None:
    flow.run()
    assert flow.provenance["checkpoint_step"] == 20
    found = flow.run("train.max_steps=24")
    assert flow.trained == [20, 24]
    assert flow.provenance["checkpoint_step"] == 24
    assert found.published.version == 2
    config = json.loads((flow.folder.bundle / "config.json").read_text())
    result = at(flow.folder.result).read_json()
    assert config["evaluation"] == result["evaluation"]
    flow.run("train.max_steps=24")
    assert flow.trained == [20, 24], "up to date"


def test_finished_run_with_other_settings_is_refused(flow: Flow) -> None:
    flow.run()
    with mistake("run-changed", "optim.lr", "0.5", "0.2"):
        flow.run("optim.lr=0.5")
    flow.run("eval.max_tokens=100")  # may change, and asks for nothing new


def test_model_trained_further_is_evaluated_before_export(flow: Flow) -> None:
    """Trained on past the goal and interrupted there, then asked for less again."""
    flow.run()
    config = load_config(str(flow.path), ["train.max_steps=1000"])
    ask_to_stop(flow.folder.stop_request)
    train(config, flow.folder, begin_attempt(flow.folder.attempt), Ranks())
    assert list_checkpoints(flow.folder.checkpoints)[-1].step == 21
    flow.run()
    assert flow.provenance["checkpoint_step"] == 20, "the result of then is still there"
    shutil.rmtree(Path(flow.folder.checkpoints, "step-00000020"))
    flow.run()
    result = at(flow.folder.result).read_json()
    assert (result["step"], flow.provenance["checkpoint_step"]) == (21, 21)
    assert result["evaluation"]["heldout"]["tokens"] > 400


def test_a_damaged_final_checkpoint_is_computed_again(flow: Flow) -> None:
    flow.run()
    before = list_checkpoints(flow.folder.checkpoints)[-1]
    weights = Path(before.path, "model.safetensors")
    data = bytearray(weights.read_bytes())
    data[-5] ^= 1
    weights.write_bytes(data)
    shutil.rmtree(flow.folder.bundle)
    flow.run()
    assert "model.safetensors does not match its digest" in flow.output
    assert list_checkpoints(flow.folder.checkpoints)[-1].sha256 == before.sha256
    assert flow.provenance["checkpoint_sha256"] == before.sha256


def test_a_run_with_a_checkpoint_of_a_later_version_is_refused(flow: Flow) -> None:
    flow.run(until="train")
    path = Path(list_checkpoints(flow.folder.checkpoints)[-1].path, "MANIFEST.json")
    manifest = json.loads(path.read_text()) | {"format": 2}
    del manifest["sha256"]
    path.write_text(json.dumps(manifest | {"sha256": sha256_bytes(canonical(manifest))}))
    for clear in (lambda: None, Path(flow.folder.result).unlink):
        clear()
        with mistake("format", "MANIFEST.json", "format 2"):
            flow.run("train.max_steps=24")
    assert flow.trained == [20], "no step is repeated"


@pytest.mark.parametrize("name", ["config.json", "state.json"])
def test_damaged_settings_in_the_newest_checkpoint_are_ignored(flow: Flow, name: str) -> None:
    """A flipped bit must not look like a setting that was changed."""
    flow.run()
    newest = Path(list_checkpoints(flow.folder.checkpoints)[-1].path, name)
    before = newest.read_text()
    lanes = '"lanes": 4' if name == "config.json" else '"corpus_fingerprint": "'
    newest.write_text(before.replace(lanes, lanes.replace("4", "6").replace('nt": "', 'nt": "0')))
    assert newest.read_text() != before
    shutil.rmtree(flow.folder.bundle)
    flow.run()
    assert f"{name} does not match its digest" in flow.output
    verify_checkpoint(newest.parent)  # computed again
    assert lanes in newest.read_text()


def test_a_bundle_that_lacks_a_file_is_exported_again_as_the_same_version(flow: Flow) -> None:
    first = flow.run()
    for name in ("provenance.json", "model.safetensors", "SHA256SUMS"):
        (flow.folder.bundle / name).unlink()
        again = flow.run()
        assert (flow.folder.bundle / name).is_file()
        assert again.published == first.published
    assert flow.trained == [20]


@pytest.mark.parametrize("alias", ["candidate", "champion"])
def test_each_file_of_a_bundle_is_hashed_once_at_export_and_once_at_publish(
    flow: Flow, monkeypatch: pytest.MonkeyPatch, alias: str
) -> None:
    hashed: Counter[tuple[str, int]] = Counter()

    def note(path: Path) -> Location:
        if path.name != bundle.SUMS:
            hashed[path.name, path.stat().st_ino] += 1
        return at(path)

    monkeypatch.setattr(bundle, "at", note)
    monkeypatch.setattr(bundle, "SETTLED_NS", -(10**9))  # a run this small takes less time
    flow.run(f"export.alias={alias}")
    files = read_sums(flow.folder.bundle)
    assert Counter(name for name, _ in hashed) == dict.fromkeys(files, 2)
    assert set(hashed.values()) == {1}


def test_changed_licence_or_name_makes_a_new_bundle_but_alias_does_not(
    flow: Flow,
) -> None:
    first = flow.run().published
    found = flow.run("export.licence=cc0-1.0")
    assert 'license: "cc0-1.0"' in (flow.folder.bundle / "README.md").read_text()
    assert found.published.version == 2
    flow.run("export.name=other")
    assert "# other" in (flow.folder.bundle / "README.md").read_text()
    flow.run()
    moved = flow.run("export.alias=staging").published
    assert (moved.version, moved.digest) == (1, first.digest)
    assert flow.trained == [20]


def test_a_bundle_with_a_flipped_bit_is_written_again_before_it_is_published(flow: Flow) -> None:
    first = flow.run()
    words = flow.folder.bundle / "vocab.txt"
    data = bytearray(words.read_bytes())
    data[9] ^= 1
    words.write_bytes(data)
    Path(flow.folder.published).unlink()
    assert flow.run().published == first.published
    assert "vocab.txt does not match its digest" in flow.output


def test_damaged_state_files_raise_no_traceback(flow: Flow) -> None:
    flow.run()
    for path in (flow.folder.result, flow.folder.attempt, flow.folder.tracking):
        Path(path).write_text("{ garbage")
    Path(list_checkpoints(flow.folder.checkpoints)[-1].path, "config.json").write_text("{ garbage")
    flow.run()
    assert at(flow.folder.result).read_json()["step"] == 20


def test_server_that_was_down_receives_everything_later(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    def down(_uri: str) -> None:
        raise OSError("connection refused")

    with monkeypatch.context() as friday_night:
        friday_night.setattr(tracker, "connect", down)
        with mistake("tracking-server", "connection refused", "bundle"):
            flow.run()
    config = load_config(str(flow.path))
    assert not is_caught_up(config, flow.folder)
    found = flow.run()
    assert flow.trained == [20], "nothing was trained again"
    assert found.published.version == 1
    assert is_caught_up(config, flow.folder)


def test_run_stops_before_the_next_stage(flow: Flow) -> None:
    def fit(*arguments: Any) -> None:
        flow.train(*arguments)
        os.kill(os.getpid(), signal.SIGINT)

    flow.fit = fit
    with pytest.raises(Interrupted, match="between two stages"):
        flow.run(until="export")
    assert not flow.folder.bundle.exists()


def test_stop_at_the_end_of_the_last_stage_is_ignored(flow: Flow) -> None:
    def fit(*arguments: Any) -> None:
        flow.train(*arguments)
        os.kill(os.getpid(), signal.SIGINT)

    flow.fit = fit
    found = flow.run(until="train")
    assert found.train.step == 20
    database = f"sqlite:///{flow.folder.mlflow / 'mlflow.db'}"
    state = at(flow.folder.tracking).read_json() or {}
    assert MlflowClient(database).get_run(state["run_id"]).info.status == "FINISHED"


def test_a_closed_connection_stays_an_exception(capsys: pytest.CaptureFixture[str]) -> None:
    """With SIGPIPE at its default, a tracking server that hangs up would end the whole run."""
    assert main(["config"]) == 0
    assert "demo" in capsys.readouterr().out
    assert signal.getsignal(signal.SIGPIPE) == signal.SIG_IGN


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("When reading key 'a' in bucket 'b': AWS Error NETWORK_CONNECTION", "the object store"),
        ("Could not resolve s3 endpoint", "the object store"),
        ("cannot identify this file", "an unexpected error (OSError: cannot identify this file)"),
    ],
)
def test_only_errors_of_a_store_are_reported_as_such(
    text: str,
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("ELMWRIGHT_CACHE", str(tmp_path))

    def fail(*_: object) -> None:
        raise OSError(text)

    assert exit_codes.exit_code(fail) == 1
    assert capsys.readouterr().err.startswith(f"failed: {sentence}")


def test_broken_connection_is_not_treated_as_a_closed_pipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setenv("ELMWRIGHT_CACHE", str(tmp_path))
    assert exit_codes.exit_code(fail) == 1
    assert capsys.readouterr().err.startswith("failed: an unexpected error (BrokenPipeError")
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stream:
        assert not exit_codes._has_no_reader(stream)
        os.close(reading)
        assert exit_codes._has_no_reader(stream)
        monkeypatch.setattr("sys.stdout", stream)
        assert exit_codes.exit_code(fail) == 0
