"""Training's last act: all held-out text up to a limit, and the first sentences apart."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.multiprocessing as mp

from elmwright.jobs.bundles.bundle import digest
from elmwright.jobs.checkpoints.checkpoint import begin_attempt, list_checkpoints
from elmwright.jobs.publishing import export as export_module
from elmwright.jobs.publishing.choose_checkpoint import choose, list_scored
from elmwright.jobs.publishing.export import export_run
from elmwright.jobs.rundir.journal_lines import read_journal
from elmwright.jobs.rundir.stop_request import ask_to_stop
from elmwright.jobs.training.loop import evaluate_training, training_step
from elmwright.jobs.training.loop import train as loop
from elmwright.jobs.training.loop.evaluate import evaluate, evaluate_probe, final_limit
from elmwright.jobs.training.loop.exchange import Ranks
from elmwright.jobs.training.loop.heldout_pass import HeldOut
from elmwright.jobs.training.loop.train import train
from elmwright.jobs.upkeep.verify import verify_path
from elmwright.jobs.using.score import Scorer
from elmwright.model.formats.folder import load_folder
from elmwright.pipeline.format.manifest import Manifest
from elmwright.pipeline.progress import Advance
from elmwright.pipeline.storage.files import at
from tests.support.servers import free_port
from tests.support.tiny_runs.training import prepare

pytestmark = pytest.mark.slow(13)


class Bars:
    """A progress display that remembers."""

    def __init__(self) -> None:
        self.seen: dict[str, list[int]] = {}

    @contextmanager
    def __call__(self, name: str, total: int, unit: str) -> Iterator[Advance]:
        done = self.seen.setdefault(f"{name} {unit}", [0, total])

        def advance(n: int, _detail: str = "", /) -> None:
            done[0] += n

        yield advance


def test_the_limit_depends_on_the_vocabulary_unless_it_is_set() -> None:
    assert final_limit(0, 99_999) is None
    assert final_limit(0, 100_000) == 1_000_000
    assert final_limit(5_000, 50) == final_limit(5_000, 800_000) == 5_000


ONE_PROCESS = Ranks()


def heldout_of(run: Path, window: int, ranks: Ranks = ONE_PROCESS) -> HeldOut:
    loaded = load_folder(
        list_checkpoints(run / "train" / "checkpoints")[-1].path, with_softmax=True
    )
    assert loaded.softmax is not None
    corpus = run / "corpus"
    return HeldOut(
        loaded.bilm, loaded.softmax, corpus, Manifest.load(corpus), 4, window, ranks=ranks
    )


@pytest.mark.parametrize("sentences", [1, 7, 40, 10_000])
def test_the_probe_is_exactly_the_first_sentences(trained: Path, sentences: int) -> None:
    """In a pass over everything or alone, with any window."""
    heldout = heldout_of(trained, window=10)
    whole = evaluate(heldout, "heldout", probe=sentences)
    alone = evaluate_probe(heldout_of(trained, window=50), "heldout", sentences)
    assert whole.probe is not None
    there = heldout.manifest.splits["heldout"].sentences
    assert whole.probe.sentences == alone.sentences == min(sentences, there)
    assert whole.probe.tokens == alone.tokens
    assert alone.perplexity == pytest.approx(whole.probe.perplexity, rel=1e-6)
    if sentences > there:
        assert whole.probe.tokens == whole.saved.tokens
        assert whole.probe.perplexity == pytest.approx(whole.saved.perplexity, rel=1e-12)
    else:
        assert whole.probe.tokens < whole.saved.tokens


def test_the_first_sentence_of_the_probe_has_the_score_of_the_score_command(trained: Path) -> None:
    """States begin at zero there: nothing was read before it."""
    from elmwright.jobs.publishing.compare_bundle import heldout_sentences

    heldout = heldout_of(trained, window=50)
    (first, *_) = heldout_sentences(str(heldout.corpus), heldout.manifest)
    newest = list_checkpoints(trained / "train" / "checkpoints")[-1].path
    (score,) = Scorer(Path(newest)).score([first])
    probe = evaluate_probe(heldout, "heldout", 1)
    assert probe.tokens == len(first) + 1
    assert probe.perplexity == pytest.approx(float(np.exp(-score.mean.mean())), rel=1e-5)


def _on_two(rank: int, world: int, run: str, port: int) -> None:
    import torch.distributed as dist

    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=world)
    score = evaluate(heldout_of(Path(run), 10, Ranks(rank, world)), "heldout", probe=30)
    assert score.probe is not None
    at(f"{run}/probe-{rank}.json").write_json(vars(score.probe))
    dist.destroy_process_group()


def test_several_processes_agree_on_the_probe(trained: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run, symlinks=True)
    mp.spawn(_on_two, (2, str(run), free_port()), nprocs=2)
    one = evaluate(heldout_of(run, window=10), "heldout", probe=30).probe
    assert one is not None
    for rank in range(2):
        found = at(run / f"probe-{rank}.json").read_json() or {}
        assert (found["sentences"], found["tokens"]) == (30, one.tokens)
        assert found["perplexity"] == pytest.approx(one.perplexity, rel=1e-6)


def test_export_scores_only_the_probe_and_reports_the_trainers_perplexity(
    trained: Path, tmp_path: Path
) -> None:
    bars = Bars()
    target, _ = export_run(str(trained), "latest", str(tmp_path / "b"), overrides=[], progress=bars)
    result = at(trained / "train" / "result.json").read_json() or {}
    probe = result["probe"]["heldout"]
    assert (
        probe["sentences"] == 2000 or probe["tokens"] == result["evaluation"]["heldout"]["tokens"]
    )
    assert bars.seen.pop("comparing tokens") == [probe["tokens"]] * 2
    for done, total in bars.seen.values():
        assert done == total > 0
    assert set(bars.seen) == {"writing bundle bytes", "checking bundle bytes"}
    config = json.loads((target / "config.json").read_text())
    assert config["evaluation"] == result["evaluation"]


def test_a_run_of_an_older_version_is_scored_by_export_with_the_same_bytes(
    trained: Path, bundle: Path, tmp_path: Path
) -> None:
    """Its checkpoints and result.json know of no probe."""
    run = tmp_path / "run"
    shutil.copytree(trained, run, symlinks=True)
    result = at(run / "train" / "result.json").read_json() or {}
    del result["probe"]
    at(run / "train" / "result.json").write_json(result)
    bars = Bars()
    target, summary = export_run(
        str(run), "latest", str(tmp_path / "b"), overrides=[], progress=bars
    )
    assert "the trainer's" in summary
    tokens = Manifest.load(run / "corpus").splits["heldout"].steps
    assert bars.seen["evaluating tokens"] == [tokens, tokens]
    assert digest(target) == digest(bundle)


def test_a_run_measured_with_states_carried_over_is_scored_again_by_export(
    trained: Path, bundle: Path, tmp_path: Path
) -> None:
    """As version 0.1 measured: its number is neither on the card nor compared with ours."""
    run = tmp_path / "run"
    shutil.copytree(trained, run, symlinks=True)
    result = at(run / "train" / "result.json").read_json() or {}
    for score in (*result["evaluation"].values(), *result["probe"].values()):
        del score["states"]
        score["perplexity"] *= 0.9
    at(run / "train" / "result.json").write_json(result)
    target, summary = export_run(str(run), "latest", str(tmp_path / "b"), overrides=[])
    assert "computed from the bundle" in summary
    mine, theirs = (
        json.loads((folder / "config.json").read_text())["evaluation"]["heldout"]
        for folder in (target, bundle)
    )
    assert mine["states"] == "fresh"
    for key in ("perplexity", "carried_perplexity"):
        assert mine[key] == pytest.approx(theirs[key], rel=1e-6)


def test_final_tokens_limits_training_export_and_comparison(
    corpus: Path, trained: Path, bundle: Path, tmp_path: Path
) -> None:
    config, run = prepare(tmp_path, corpus, eval_final_tokens=450, train_max_steps=6)
    train(config, run, begin_attempt(run.attempt), Ranks())
    result = at(run.result).read_json() or {}
    tokens = result["evaluation"]["heldout"]["tokens"]
    assert 200 < tokens <= 450, "whole blocks"
    at(run.config).write_json(export_module.to_dict(config))
    target, _ = export_run(run.root, "result", str(tmp_path / "one"), overrides=[])
    mine = json.loads((target / "config.json").read_text())
    assert mine["evaluation"]["heldout"]["tokens"] == tokens
    whole = json.loads((bundle / "config.json").read_text())
    assert mine["heldout_sha256"] != whole["heldout_sha256"], "not to be compared by perplexity"
    target, summary = export_run(run.root, "3", str(tmp_path / "two"), overrides=[])
    assert "computed from the bundle" in summary
    other = json.loads((target / "config.json").read_text())
    assert other["evaluation"]["heldout"]["tokens"] == tokens
    assert other["heldout_sha256"] == mine["heldout_sha256"]


def test_a_checkpoint_omits_final_tokens_with_its_default(trained: Path) -> None:
    newest = list_checkpoints(trained / "train" / "checkpoints")[-1]
    saved = at(Path(newest.path) / "config.json").read_json() or {}
    assert "final_tokens" not in saved["run_config"]["eval"], "earlier versions would refuse it"


def test_a_stop_in_the_final_evaluation_is_resumable(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "whole").mkdir()
    config, whole = prepare(tmp_path / "whole", corpus, train_max_steps=6)
    train(config, whole, begin_attempt(whole.attempt), Ranks())
    (tmp_path / "run").mkdir()
    config, run = prepare(tmp_path / "run", corpus, train_max_steps=6)
    real: Callable[..., Any] = evaluate_training.evaluate_sets

    def interrupted(heldout: HeldOut, *arguments: Any) -> Any:
        if heldout.stopped is not None:
            ask_to_stop(run.stop_request)
        return real(heldout, *arguments)

    with monkeypatch.context() as now:
        now.setattr(evaluate_training, "evaluate_sets", interrupted)
        train(config, run, begin_attempt(run.attempt), Ranks())
    assert at(run.result).read_json() is None
    assert list_checkpoints(run.checkpoints)[-1].step == 6
    Path(run.stop_request).unlink()
    monkeypatch.setattr(training_step, "sampled_loss", pytest.fail)
    train(config, run, begin_attempt(run.attempt), Ranks())
    for key in ("checkpoint_sha256", "evaluation", "probe"):
        assert (at(run.result).read_json() or {})[key] == (at(whole.result).read_json() or {})[key]


def test_the_last_checkpoint_is_on_disk_before_the_final_evaluation(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill in the evaluation, which may take an hour, costs no step."""
    config, run = prepare(tmp_path, corpus, train_max_steps=6, checkpoint_every_steps=4)

    class Killed(BaseException):
        pass

    def kill(*_arguments: Any, **_named: Any) -> Any:
        raise Killed

    with monkeypatch.context() as now:
        now.setattr(loop, "evaluate_finally", kill)
        with pytest.raises(Killed):
            train(config, run, begin_attempt(run.attempt), Ranks())
    assert list_checkpoints(run.checkpoints)[-1].step == 6
    assert at(run.result).read_json() is None
    monkeypatch.setattr(training_step, "sampled_loss", pytest.fail)
    train(config, run, begin_attempt(run.attempt), Ranks())
    assert (at(run.result).read_json() or {})["step"] == 6


def test_a_drained_machine_stops_the_final_evaluation(corpus: Path, tmp_path: Path) -> None:
    """Its checkpoint is there, and the next attempt evaluates on other machines."""
    config, run = prepare(tmp_path, corpus, train_max_steps=6)
    done: list[int] = []

    def drained(step: int) -> bool:
        """Asked at every step of training first."""
        done.append(step)
        return len(done) > 6

    train(config, run, begin_attempt(run.attempt), Ranks(), drained)
    assert len(done) == 7
    assert at(run.result).read_json() is None
    assert list_checkpoints(run.checkpoints)[-1].step == 6


def test_the_last_checkpoint_is_listed_with_the_perplexity_of_the_last_evaluation(
    corpus: Path, tmp_path: Path
) -> None:
    config, run = prepare(tmp_path, corpus, train_max_steps=6, eval_every_steps=3)
    train(config, run, begin_attempt(run.attempt), Ranks())
    score = (at(run.result).read_json() or {})["evaluation"]["heldout"]
    passing, last = list_scored(run)
    assert last.perplexity == {"heldout": score["perplexity"]}
    assert last.tokens == score["tokens"] > passing.tokens > 0
    assert choose(list_scored(run), "best", run, max_tokens=None) in (passing, last)
    Path(run.result).unlink()  # what `train.max_steps` raised later does first
    assert list_scored(run)[-1].perplexity == {}


def test_the_journal_has_the_progress_of_the_final_evaluation(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluate_training, "SCORING_SECONDS", 0.0)
    config, run = prepare(tmp_path, corpus, train_max_steps=2)
    train(config, run, begin_attempt(run.attempt), Ranks())
    records = [record for record, _ in read_journal(run.journal, 0) if record.kind == "scoring"]
    tokens = (at(run.result).read_json() or {})["evaluation"]["heldout"]["tokens"]
    done = [record.done for record in records]
    assert {(record.step, record.tokens) for record in records} == {(2, tokens)}
    assert done == sorted(set(done))
    assert (done[0], done[-1]) == (0, tokens)
    assert len(done) > 3


def test_without_held_out_sets_no_progress_is_recorded(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluate_training, "planned_tokens", lambda *_: 0)
    config, run = prepare(tmp_path, corpus, train_max_steps=2)
    train(config, run, begin_attempt(run.attempt), Ranks())
    kinds = {record.kind for record, _ in read_journal(run.journal, 0)}
    assert "scoring" not in kinds
    assert "begin" in kinds


def test_verify_counts_every_byte(trained: Path, bundle: Path) -> None:
    checkpoint = Path(list_checkpoints(trained / "train" / "checkpoints")[-1].path)
    manifest = Manifest.load(trained / "corpus")
    shard = next(iter(manifest.splits.values())).shards[0]
    for path in (bundle, checkpoint, trained / "corpus" / shard.tar, trained / "corpus", trained):
        bars = Bars()
        verify_path(str(path), progress=bars)
        ((done, total),) = bars.seen.values()
        assert list(bars.seen) == ["verifying bytes"]
        assert done == total > 1000, path


def test_only_the_beginning_of_a_long_sentence_is_compared(
    trained: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounding errors may grow along a sentence; the bundle is still right."""
    from elmwright.jobs.publishing import compare_bundle
    from elmwright.model.inference.elmo import Elmo
    from elmwright.model.reference import ReferenceBiLM

    seen: list[int] = []
    embed = ReferenceBiLM.embed

    def watched(self: ReferenceBiLM, words: list[str]) -> object:
        seen.append(len(words))
        return embed(self, words)

    monkeypatch.setattr(ReferenceBiLM, "embed", watched)
    long = [["the", "cat"] * 40, ["the"]]
    monkeypatch.setattr(compare_bundle, "heldout_sentences", lambda *_: long)
    model = load_folder(bundle)
    compare_bundle.compare_vectors(
        bundle, Elmo(model.bilm), str(trained / "corpus"), Manifest.load(trained / "corpus")
    )
    assert seen == [compare_bundle.PROBE_WORDS, 1]
