"""`elmwright run`: corpus → train → export → publish, each stage only if it is not done.

The first stage (`stage.py`) that is not done is run, and all after it, because they depend on it.
Ray is started once for the stages that use it.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack

from elmwright.jobs.cluster.connection import is_remote, ray_cluster
from elmwright.jobs.config.resume_settings import kept_settings
from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.config.toml_file import to_dict
from elmwright.jobs.rundir.layout import open_run_folder
from elmwright.jobs.rundir.run_lock import locked
from elmwright.jobs.rundir.stage_names import STAGES
from elmwright.jobs.secrets.in_configs import take_out_secrets
from elmwright.jobs.stages.closing import Outcome, closing_lines, find_outcome
from elmwright.jobs.stages.corpus import Corpus, kept_sentence
from elmwright.jobs.stages.export import Export
from elmwright.jobs.stages.preflight import preflight
from elmwright.jobs.stages.publish import Publish
from elmwright.jobs.stages.stage import Run, Stage, find_run
from elmwright.jobs.stages.train import Train
from elmwright.jobs.terminal.console import Console, console_for_run
from elmwright.jobs.terminal.signals import AGAIN, Stop, resumable, stop_signals
from elmwright.jobs.terminal.wording import duration
from elmwright.pipeline.errors import Interrupted
from elmwright.pipeline.storage.files import at

ALL_STAGES: tuple[Stage, ...] = (Corpus(), Train(), Export(), Publish())

OpenConsole = Callable[..., AbstractContextManager[Console]]
Connect = Callable[..., AbstractContextManager[None]]


def run(
    config: RunConfig,
    *,
    until: str = STAGES[-1],
    config_name: str = "",
    quiet: bool = False,
    brief: bool = False,
    force: bool = False,
    stages: Sequence[Stage] = ALL_STAGES,
    connect: Connect = ray_cluster,
    open_console: OpenConsole = console_for_run,
) -> Outcome:
    """Run every stage up to `until` that is not done yet, and return the outcome.

    `quiet` keeps standard output free; `brief` (-q) prints only warnings, errors and the result.
    `force` builds a corpus of an earlier recipe, or of other settings, anew even if it was trained
    on.
    """
    if force:
        stages = (Corpus(force=True), *stages[1:])
    current = find_run(config, open_run_folder(config))
    kept = kept_settings(config, current.config)
    config, folder = current.config, current.folder
    requested = stages[: STAGES.index(until) + 1]
    with locked(folder), open_console(folder.log, to_stderr=quiet, quiet=brief) as console:
        started = time.monotonic()
        for file in take_out_secrets([folder.config, folder.tracking, folder.published]):
            console.warn(
                f"{file} held a password or token, and was written again without it; give the "
                "server another one if others could read it"
            )
        remaining = pending(current, requested, console.warn)
        names = [stage.name for stage in remaining]
        preflight(current, requested, names).raise_all()
        if requested[0].name == "corpus" and not force and (sentence := kept_sentence(current)):
            console.say(sentence)
        if not remaining:
            console.say(f"Everything is up to date in {folder.root}.\n")
            return _close(current, until, config_name, console)
        at(folder.config).write_json(to_dict(config))
        console.say(f"Run {config.run.name} in {folder.root} (log: {folder.log})")
        if kept:
            console.say(kept)
        done = [stage.name for stage in requested if stage not in remaining]
        if done:
            console.say(f"Already done: {', '.join(done)}.")
        with stop_signals() as stop:
            _run_stages(remaining, current, console, stop, connect)
        console.say(f"\nDone in {duration(time.monotonic() - started)}.\n")
        return _close(current, until, config_name, console)


def pending(
    run: Run, stages: Sequence[Stage], warn: Callable[[str], object] | None = None
) -> Sequence[Stage]:
    """The first stage that is not done, and all after it, which depend on it.

    With `warn`, the input of that stage is verified. If it is damaged, the stage before is pending.
    """
    first = next((n for n, stage in enumerate(stages) if not stage.is_done(run)), len(stages))
    while warn and 0 < first < len(stages) and (damage := stages[first].input_damage(run)):
        warn(damage)
        first -= 1
    return stages[first:]


def _run_stages(
    stages: Sequence[Stage], run: Run, console: Console, stop: Stop, connect: Connect
) -> None:
    with ExitStack() as stack:
        for number, stage in enumerate(stages):
            if stage.uses_ray and number == 0:
                stack.enter_context(
                    resumable("at once; the same command resumes from what is on disk")
                )
                _connect(run, console, stop, connect, stack)
            elif not stage.uses_ray:
                stack.close()  # free the memory and processes of Ray
            stop_between(stop)
            stage.run(run, console, stop)


def _connect(run: Run, console: Console, stop: Stop, connect: Connect, stack: ExitStack) -> None:
    name = "connecting" if is_remote(run.config) else "starting Ray"
    with (
        stop.saving(f"stopping when Ray is up {AGAIN}", console.say),
        console.progress(name, 1, ""),
    ):
        stack.enter_context(connect(run.config, stop.take, stop.is_set, console.say))


def stop_between(stop: Stop) -> None:
    """Raise `Interrupted` if a stop was requested; finished stages are on disk."""
    if stop.is_set():
        raise Interrupted("between two stages; the same command resumes from there")


def _close(run: Run, until: str, config_name: str, console: Console) -> Outcome:
    """Print the last screen, and return the outcome."""
    outcome = find_outcome(run.config, run.folder, until)
    for line in closing_lines(outcome, config_name, console.width):
        console.result(line)
    return outcome
