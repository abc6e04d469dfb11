"""`elmwright run`: corpus → train → export → publish, each stage only if it is not done.

Whether a stage is done is read from what it left on disk, never from a state file of its own: the
corpus manifest, `train/result.json`, the bundle's digests and provenance, `published.json`. So a
run that was killed anywhere is resumed by the same command, and a finished one is recognised
without importing Ray, torch or MLflow.
"""

import threading
import time
from contextlib import ExitStack
from functools import partial
from typing import Any

from elmwright.jobs.bundles.bundle import SUMS, is_whole, verify_bundle
from elmwright.jobs.checkpoints.checkpoint import (
    CheckpointInfo,
    list_checkpoints,
    verify_checkpoint,
)
from elmwright.jobs.cluster.connection import is_remote, machines_for, ray_cluster
from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.config.toml_file import to_dict
from elmwright.jobs.publishing.publish import is_published, publish
from elmwright.jobs.rundir.layout import RunFolder, open_run_folder
from elmwright.jobs.rundir.run_lock import locked
from elmwright.jobs.secrets.in_configs import take_out_secrets
from elmwright.jobs.stages.closing import closing_lines, find_outcome
from elmwright.jobs.stages.preflight import check_before
from elmwright.jobs.terminal.console import Console, console_for_run
from elmwright.jobs.terminal.listing import corpus_lines
from elmwright.jobs.terminal.signals import Stop, resumable, stop_signals
from elmwright.jobs.terminal.wording import duration
from elmwright.jobs.tracking.check_server import check_server
from elmwright.jobs.tracking.tracker import Tracker, is_caught_up, tracking_uri
from elmwright.jobs.training.driver.devices import bound_device, settle_device
from elmwright.jobs.training.driver.launch import check_resumable, check_size, launch
from elmwright.pipeline.build.driver import build_corpus
from elmwright.pipeline.build.up_to_date import corpus_key, is_current
from elmwright.pipeline.errors import Interrupted, UserError
from elmwright.pipeline.format.manifest import Manifest, finished_corpus
from elmwright.pipeline.progress import plural
from elmwright.pipeline.storage.files import exists, join, place, read_bytes, read_json, write_json

STAGES = ("corpus", "train", "export", "publish")
AGAIN = "(Ctrl-C again ends at once)"
CLOSING = 5.0
"""Seconds in which MLflow may hear of it when training is interrupted."""


def run(
    config: RunConfig,
    *,
    until: str = "publish",
    config_name: str = "",
    quiet: bool = False,
    brief: bool = False,
) -> dict[str, Any]:
    """Do every stage up to `until` that is not done yet; what there is at the end.

    `quiet` keeps standard output free; `brief` (-q) prints only warnings, errors and the result.
    """
    folder = open_run_folder(config)
    wanted = STAGES[: STAGES.index(until) + 1]
    with locked(folder), console_for_run(folder.log, to_stderr=quiet, quiet=brief) as console:
        started = time.monotonic()
        for file in take_out_secrets([folder.config, folder.tracking, folder.published]):
            console.warn(
                f"{file} held a password or token, and was written again without it; give the "
                "server another one if others could read it"
            )
        pending = _pending(wanted, config, folder, console)
        if "train" in wanted and "corpus" not in pending:
            # Also of a finished run: it is not "up to date" with settings it was not trained with.
            _check_training(config, folder)
        if not pending:
            console.say(f"Everything is up to date in {folder.root}.\n")
            return _close(config, folder, until, config_name, console)
        _refuse_mistakes(pending, config, folder)
        write_json(folder.config, to_dict(config))
        console.say(f"Run {config.run.name} in {folder.root} (log: {folder.log})")
        done = [stage for stage in wanted if stage not in pending]
        if done:
            console.say(f"Already done: {', '.join(done)}.")
        with stop_signals() as stop:
            _do(pending, config, folder, console, stop)
        console.say(f"\nDone in {duration(time.monotonic() - started)}.\n")
        return _close(config, folder, until, config_name, console)


def _close(
    config: RunConfig, folder: RunFolder, until: str, config_name: str, console: Console
) -> dict[str, Any]:
    """Tell what was made, how good it is and what to type next; the same as data."""
    outcome = find_outcome(config, folder, until)
    for line in closing_lines(outcome, config_name, console.width):
        console.result(line)
    return outcome.as_data()


def _pending(
    wanted: tuple[str, ...], config: RunConfig, folder: RunFolder, console: Console
) -> tuple[str, ...]:
    """The first stage that is not done, and all after it: they depend on it."""
    first = next((n for n, stage in enumerate(wanted) if not is_done(stage, config, folder)), None)
    if first is None:
        return ()
    if wanted[first] == "export":
        # The one stage that reads the final checkpoint: if that is damaged, train is not done.
        try:
            info = final_checkpoint(folder, read_json(folder.result) or {})
            verify_checkpoint(info.path if info else folder.checkpoints)
        except UserError as error:
            console.warn(f"checkpoint skipped: {error}; training resumes from the one before")
            first -= 1
    if wanted[first] == "publish":
        # Likewise the one stage that reads the whole bundle.
        try:
            verify_bundle(folder.bundle)
        except UserError as error:
            console.warn(f"the bundle is written again: {error}")
            first -= 1
    return wanted[first:]


def is_done(stage: str, config: RunConfig, folder: RunFolder) -> bool:
    """Has this stage been completed for exactly this config and what the stages before it left?"""
    if stage == "corpus":
        return current_corpus(config, folder) is not None
    if stage == "publish":
        return is_published(config, folder) and is_caught_up(config, folder)
    result = read_json(folder.result)
    if not result or final_checkpoint(folder, result) is None:
        return False
    if stage == "train":
        early = result.get("stopped_early", 0)
        return bool(result["step"] >= config.train.max_steps or 0 < early == config.eval.patience)
    made = read_json(folder.bundle / "provenance.json")
    if not made or made["checkpoint_sha256"] != result["checkpoint_sha256"]:
        return False
    told = _card_settings(made["config"]) == _card_settings(to_dict(config))
    return told and is_whole(folder.bundle) and _is_shared(folder)


def _card_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """What a bundle's card takes from [export]; what it takes from elsewhere cannot change."""
    return {key: settings["export"].get(key) for key in ("name", "licence")}


def final_checkpoint(folder: RunFolder, result: dict[str, Any]) -> CheckpointInfo | None:
    """The checkpoint that training ended with, if it is there."""
    infos = list_checkpoints(folder.checkpoints)
    return next((i for i in infos if i.sha256 == result.get("checkpoint_sha256")), None)


def current_corpus(config: RunConfig, folder: RunFolder) -> Manifest | None:
    key = corpus_key(config.corpus, config.vocab, config.shards, config.run.seed)
    return is_current(folder.corpus, key, config.corpus, config.vocab.file)


def _refuse_mistakes(pending: tuple[str, ...], config: RunConfig, folder: RunFolder) -> None:
    """Mistakes that can be seen now are reported before anything is started or written."""
    if "corpus" in pending:
        _guard_corpus(folder)
    check_before(config, folder, pending)


def _do(
    pending: tuple[str, ...], config: RunConfig, folder: RunFolder, console: Console, stop: Stop
) -> None:
    if "corpus" in pending or "train" in pending:
        again = "the same command resumes from what is on disk"
        with resumable(f"at once; {again}"), ExitStack() as stack:
            name = "connecting" if is_remote(config) else "starting Ray"
            with (
                stop.saving(f"stopping when Ray is up {AGAIN}", console.say),
                console.progress(name, 1, ""),
            ):
                stack.enter_context(ray_cluster(config, stop.take, stop.is_set, console.say))
            _stop_here(stop, before=pending)
            if "corpus" in pending:
                with (
                    stop.saving(f"stopping: tasks at work may finish {AGAIN}", console.say),
                    machines_for(config, folder, gpu=False, stopped=stop.is_set, say=console.say),
                ):
                    _corpus(config, folder, console, stop)
            later = tuple(stage for stage in pending if stage != "corpus")
            _stop_here(stop, before=later)
            if "train" in pending:
                begun = threading.Event()
                with stop.saving(partial(stopping_sentence, begun), console.say):
                    _train(config, folder, console, stop, begun)
    _stop_here(stop, before=tuple(stage for stage in pending if stage in ("export", "publish")))
    if "export" in pending:
        from elmwright.jobs.publishing.export import export

        with resumable("in the export; the same command starts it again"):
            checks = export(config, folder, console.progress)
            if folder.remote:
                _share_bundle(folder)
        console.say(f"Bundle written and checked: {checks}")
    _stop_here(stop, before=tuple(stage for stage in pending if stage == "publish"))
    if "publish" in pending:
        with resumable("before the model was published; the same command publishes it"):
            _catch_up(config, folder)
            version = publish(config, folder, console.progress)
        console.say(
            f"Registered {version['name']} version {version['version']}, "
            f"alias {version['alias']!r}."
        )


def _is_shared(folder: RunFolder) -> bool:
    """Whether a run in a store has its bundle there, too."""
    if not folder.remote:
        return True
    there = join(folder.root, "bundle", SUMS)
    return exists(there) and read_bytes(there) == (folder.bundle / SUMS).read_bytes()


def _share_bundle(folder: RunFolder) -> None:
    """Lay a copy of the bundle into a run that lives in a store, its list of digests last."""
    there = join(folder.root, "bundle")
    for path in sorted(folder.bundle.iterdir(), key=lambda path: (path.name == SUMS, path.name)):
        place(path, join(there, path.name))


def _guard_corpus(folder: RunFolder) -> None:
    """A corpus that has been trained on is never replaced by another.

    One that is gone or damaged is built again; that it is the same is checked before training.
    """
    infos = list_checkpoints(folder.checkpoints)
    if infos and finished_corpus(folder.corpus) is not None:
        raise UserError(
            f"the sources or the [corpus], [vocab] or [shards] settings have changed since "
            f"{infos[-1].path} was trained on this run's corpus; give the run another run.name, "
            "or set them back"
        )


def _check_training(config: RunConfig, folder: RunFolder) -> None:
    manifest = Manifest.load(folder.corpus)
    check_resumable(config, folder, manifest)
    check_size(config, manifest)


def _corpus(config: RunConfig, folder: RunFolder, console: Console, stop: Stop) -> None:
    manifest = build_corpus(
        config.corpus,
        config.vocab,
        config.shards,
        seed=config.run.seed,
        folder=folder.corpus,
        progress=console.progress,
        stop=stop.is_set,
    )
    console.say("\n" + "\n".join(corpus_lines(manifest, console.width)) + "\n")
    for name in config.corpus.heldout.keys() - manifest.splits.keys():
        console.warn(
            f"the held-out set {name!r} came out empty: there are too few documents that are not "
            "copies of others; ask for a larger share in corpus.heldout"
        )
    broken = {step.rule: step.documents for step in manifest.funnel}.get("broken", 0)
    if broken:
        console.warn(
            f"{plural(broken, 'record or file', 'records or files')} could not be read and "
            f"{'was' if broken == 1 else 'were'} left out; "
            f"{join(folder.corpus, 'quarantine.jsonl')} says which and why"
        )


def stopping_sentence(begun: threading.Event) -> str:
    """What is said when training is asked to stop: before it has begun nothing is saved."""
    return f"stopping: saving a checkpoint first {AGAIN}" if begun.is_set() else f"stopping {AGAIN}"


def _train(
    config: RunConfig, folder: RunFolder, console: Console, stop: Stop, begun: threading.Event
) -> None:
    _check_training(config, folder)
    silent = check_server(tracking_uri(config, folder))
    if silent:
        console.warn(silent)
    gpu = bound_device(config, folder) == "cuda"
    with machines_for(config, folder, gpu=gpu, stopped=stop.is_set, say=console.say):
        settled = settle_device(config, folder, console.say, console.warn)
        tracker = Tracker(config, folder, Manifest.load(folder.corpus))
        tracker.start()
        status = "FAILED"
        try:
            launch(settled, folder, console, stop.is_set, begun)
            status = "FINISHED"
        except Interrupted:
            status = "KILLED"
            raise
        finally:
            if stop.is_set() and status != "FINISHED":
                status = "KILLED"
            # Pressed twice, nobody may be kept waiting: the next command sends the rest.
            if not stop.raised:
                problem = tracker.finish(status, CLOSING if stop.is_set() else 60.0)
                if problem and status != "KILLED":
                    console.warn(problem)


def _catch_up(config: RunConfig, folder: RunFolder) -> None:
    """Send MLflow what it missed: its server was down, or the driver was killed at the very end."""
    if is_caught_up(config, folder):
        return
    tracker = Tracker(config, folder, Manifest.load(folder.corpus))
    tracker.start()
    problem = tracker.finish("FINISHED")
    if problem:
        raise UserError(
            f"{problem}; the bundle is safe in {folder.bundle}: run the same command again when "
            "the server answers"
        )


def _stop_here(stop: Stop, *, before: tuple[str, ...]) -> None:
    """Between stages there is nothing to save: what is done is on disk.

    After the last stage that was asked for there is nothing to stop, either.
    """
    if before and stop.is_set():
        raise Interrupted("between two stages; the same command resumes from there")
