"""Starts the training processes, watches them, stops them, starts them again.

Ray Train places the processes and sets up their process group; where a run stands is known from our
own checkpoints alone. Ray Train runs the training function off the main thread of its workers,
where no signal handler can live, so stopping is the driver's business: SIGINT or SIGTERM here
leaves a note that rank 0 reads at the next step boundary; all ranks then checkpoint and return, and
the command exits with 75. Failed workers are started again from the newest checkpoint by the loop
in `launch`, with growing pauses (Ray Train itself would retry at once).
"""

import json
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from elmwright.jobs.checkpoint import begin_attempt, list_checkpoints
from elmwright.jobs.config import RESUMABLE, TRAINING_SECTIONS, RunConfig
from elmwright.jobs.config_file import config_from, to_dict
from elmwright.jobs.console import Bar, Console
from elmwright.jobs.journal import read_journal
from elmwright.jobs.layout import RunFolder
from elmwright.pipeline.errors import Failed, Interrupted, UserError
from elmwright.pipeline.manifest import Manifest
from elmwright.pipeline.storage import explain, read_json

log = logging.getLogger("elmwright")

POLL_SECONDS = 0.5
BACK_OFF = (2.0, 10.0, 30.0, 60.0)
"""Seconds before the first, second, … restart."""


def check_resumable(config: RunConfig, folder: RunFolder, manifest: Manifest) -> None:
    """Refuse to continue checkpoints of a different training, naming what differs."""
    for info in reversed(list_checkpoints(folder.checkpoints)):
        saved, state = read_json(info.path / "config.json"), read_json(info.path / "state.json")
        if saved and state:  # else it is damaged, and will be skipped
            break
    else:
        return
    advice = "give the run another run.name, or set it back"
    if state["corpus_fingerprint"] != manifest.fingerprint:
        raise UserError(
            f"the corpus in {folder.corpus} is not the one that {info.path} was trained on; "
            "give the run another run.name"
        )
    saved, now = saved["run_config"], to_dict(config)
    if saved["run"]["seed"] != now["run"]["seed"]:
        raise UserError(
            f"run.seed is {now['run']['seed']}, but the run was begun with "
            f"{saved['run']['seed']}; {advice}"
        )
    for section in TRAINING_SECTIONS:
        for key, value in now[section].items():
            name = f"{section}.{key}"
            before = saved[section].get(key, value)
            if value != before and name not in RESUMABLE:
                raise UserError(
                    f"{name} is {json.dumps(value)}, but the run was begun with "
                    f"{json.dumps(before)}; {advice}"
                )


def check_size(config: RunConfig, manifest: Manifest) -> None:
    """A corpus must fill at least one window of every lane."""
    split, train = manifest.splits["train"], config.train
    if manifest.block_steps % train.window:
        raise UserError(
            f"the corpus has blocks of {manifest.block_steps} steps, not a multiple of "
            f"train.window = {train.window}"
        )
    if split.steps < train.lanes * train.window:
        raise UserError(
            f"the corpus has {split.steps:,} training tokens, less than one batch of "
            f"train.lanes × train.window = {train.lanes * train.window:,}; "
            "add text or make train.lanes smaller"
        )


def launch(
    config: RunConfig, folder: RunFolder, console: Console, stopped: Callable[[], bool]
) -> None:
    """Train to the end; raises Interrupted when asked to stop, UserError or the failure else."""
    folder.stop_request.unlink(missing_ok=True)
    folder.result.unlink(missing_ok=True)  # of a shorter training, or of a damaged checkpoint
    restarts = 0
    with console.bar("train", config.train.max_steps, "steps") as bar:
        watcher = _Watcher(folder.journal, bar)
        while True:
            attempt = begin_attempt(folder.attempt)
            error = _attempt(config, folder, attempt, watcher, stopped)
            if error is None:
                break
            _raise_users_mistake(error, folder, attempt)
            log.error("attempt %d failed", attempt, exc_info=error)
            if stopped():
                break
            if restarts >= config.train.max_restarts:
                raise Failed(
                    f"training stopped unexpectedly {restarts + 1} times, the last time because of "
                    f"{_reason(error)}; details are in {folder.log}, checkpoints are safe, and the "
                    "same command goes on from the newest"
                )
            pause = BACK_OFF[min(restarts, len(BACK_OFF) - 1)]
            restarts += 1
            console.warn(
                f"training stopped unexpectedly ({_reason(error)}); starting again from the newest "
                f"checkpoint in {pause:.0f} s (restart {restarts} of {config.train.max_restarts})"
            )
            until = time.monotonic() + pause
            while time.monotonic() < until and not stopped():
                time.sleep(POLL_SECONDS)
            if stopped():
                break
    result = read_json(folder.result)
    if not result or result["step"] < config.train.max_steps:
        raise Interrupted(f"training is at {_where(folder)}; the same command goes on from there")


def _attempt(
    config: RunConfig,
    folder: RunFolder,
    attempt: int,
    watcher: "_Watcher",
    stopped: Callable[[], bool],
) -> Exception | None:
    """Run the workers once; what went wrong, or None."""
    outcome: list[Exception] = []

    def fit() -> None:
        try:
            _fit(config, folder, attempt)
        except Exception as error:
            outcome.append(error)

    # fit() blocks and would take SIGINT for itself on the main thread.
    thread = threading.Thread(target=fit, name="fit", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(POLL_SECONDS)
        watcher.look()
        if stopped() and not folder.stop_request.exists():
            folder.stop_request.touch()
    watcher.look()
    return outcome[0] if outcome else None


def _fit(config: RunConfig, folder: RunFolder, attempt: int) -> None:
    import ray
    from ray.train import FailureConfig, ScalingConfig
    from ray.train import RunConfig as RayRunConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    use_gpu = config.train.device == "cuda" or (
        config.train.device == "auto"
        and ray.cluster_resources().get("GPU", 0) >= config.train.processes
    )
    _check_resources(config, ray.cluster_resources(), use_gpu)
    trainer = TorchTrainer(
        worker,
        train_loop_config={
            "config": to_dict(config),
            "folder": [str(folder.root), folder.corpus_dir, folder.scratch_dir],
            "attempt": attempt,
            "cuda": use_gpu,
        },
        scaling_config=ScalingConfig(
            num_workers=config.train.processes,
            use_gpu=use_gpu,
            resources_per_worker={"CPU": config.train.threads, **({"GPU": 1} if use_gpu else {})},
        ),
        run_config=RayRunConfig(
            name=f"{config.run.name}-{attempt}",
            storage_path=str(folder.scratch / "ray"),
            failure_config=FailureConfig(max_failures=0),
        ),
        torch_config=TorchConfig(backend="nccl" if use_gpu else "gloo"),
    )
    trainer.fit()


def _check_resources(config: RunConfig, have: dict[str, float], use_gpu: bool) -> None:
    """Ray would wait for ever for what the cluster does not have."""
    train = config.train
    cpus = train.processes * train.threads
    if have.get("CPU", 0) < cpus:
        raise UserError(
            f"train.processes × train.threads needs {cpus} CPUs, the cluster has "
            f"{have.get('CPU', 0):.0f}; lower them or raise cluster.cpus"
        )
    if use_gpu and have.get("GPU", 0) < train.processes:
        raise UserError(
            f'train.device = "cuda" needs {train.processes} GPUs, the cluster has '
            f"{have.get('GPU', 0):.0f}"
        )


def worker(job: dict[str, Any]) -> None:
    """What each training process runs (called by Ray Train)."""
    import ray.train
    import torch

    from elmwright.jobs.console import log_to
    from elmwright.jobs.exchange import Ranks
    from elmwright.jobs.train import train

    root, corpus, scratch = job["folder"]
    folder = RunFolder(Path(root), corpus, scratch)
    log_to(folder.log)
    context = ray.train.get_context()
    device = torch.device("cpu")
    if job["cuda"]:
        device = ray.train.torch.get_device()
        torch.cuda.set_device(device)
    ranks = Ranks(context.get_world_rank(), context.get_world_size(), device)
    try:
        train(config_from(job["config"], "config"), folder, int(job["attempt"]), ranks)
    except (UserError, OSError) as error:
        # Left on disk, because peers that lose this process may be the first to be reported.
        with suppress(OSError):
            _mistake_file(folder, job["attempt"]).write_text(_mistake(error, folder))
        raise


def _mistake(error: BaseException, folder: RunFolder) -> str:
    """What the user can do about an error, if anything."""
    if isinstance(error, OSError):
        return explain(error, Path(error.filename or folder.root)) or ""
    return str(error) if isinstance(error, UserError) else ""


def _mistake_file(folder: RunFolder, attempt: int) -> Path:
    return folder.train / f"mistake-{attempt}.txt"


def _raise_users_mistake(error: Exception, folder: RunFolder, attempt: int) -> None:
    """If an attempt failed by something the user can put right, say that and nothing else."""
    path = _mistake_file(folder, attempt)
    sentences = [path.read_text()] if path.is_file() else []
    path.unlink(missing_ok=True)
    failures = getattr(error, "worker_failures", None) or {}
    sentences += [_mistake(failure, folder) for failure in (error, *failures.values())]
    for sentence in sentences:
        if sentence:
            raise UserError(sentence)


def _reason(error: Exception) -> str:
    failures = getattr(error, "worker_failures", None)
    if failures:
        rank, failure = sorted(failures.items())[0]
        return f"rank {rank}: {str(failure).strip().splitlines()[-1][:200]}"
    return str(error).strip().splitlines()[0][:200] if str(error).strip() else repr(error)


def _where(folder: RunFolder) -> str:
    infos = list_checkpoints(folder.checkpoints)
    return f"step {infos[-1].step:,} ({infos[-1].path})" if infos else "its beginning"


class _Watcher:
    """Moves the progress bar by what the journal says."""

    def __init__(self, journal: Path, bar: Bar) -> None:
        self._journal, self._bar = journal, bar
        self._position = self._step = 0
        self._shown: dict[str, str] = {}

    def look(self) -> None:
        for record, position in read_journal(self._journal, self._position):
            self._position = position
            self._step = max(self._step, record["step"])
            values = record.get("values", {})
            if record["kind"] == "metrics":
                self._shown["loss"] = f"loss {values['train/loss']:.2f}"
                if "train/tokens_per_s" in values:
                    self._shown["speed"] = f"{values['train/tokens_per_s']:,.0f} tokens/s"
            elif record["kind"] == "eval":
                scores = [v for k, v in values.items() if k.endswith("/perplexity")]
                self._shown["held-out"] = f"held-out ppl {scores[0]:.1f}"
            elif record["kind"] == "checkpoint":
                self._shown["saved"] = f"saved at {record['step']:,}"
        self._bar.set(self._step, ", ".join(self._shown.values()) or "starting the processes")
