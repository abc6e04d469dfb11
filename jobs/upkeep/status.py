"""What a run has come to, read from the files below `run.dir`, on a disk or in an object store.

The run may have been submitted or started here by hand. This is the only place of the commands
around runs that looks into a run's folder. It never needs Ray, the cluster or a lock; a run that is
running is read as far as it has come.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from elmwright.jobs.checkpoints.contents import TrainingResult, perplexities_of, read_result
from elmwright.jobs.registry.find_registry import short
from elmwright.jobs.runbook.find_run import last_holder, running_command
from elmwright.jobs.runbook.runbook import outcome_of
from elmwright.jobs.runbook.submission import State, Submission, state_of_exit
from elmwright.jobs.runbook.target import Target
from elmwright.jobs.rundir.journal_lines import read_journal
from elmwright.jobs.rundir.journal_records import Evaluation, Metrics
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.rundir.metrics import TOKENS_PER_S, Regime, perplexities
from elmwright.jobs.rundir.stage_names import STAGES
from elmwright.jobs.terminal.wording import nearby, scores_text
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.records import to_data
from elmwright.pipeline.storage.files import at, join


@dataclass(frozen=True)
class Progress:
    """The progress of a run."""

    stage: str = ""
    """The stage it is at; "done" behind the last one asked for; empty if nothing is there."""
    step: int = 0
    """Optimiser steps done, according to the journal."""
    max_steps: int = 0
    """Steps asked for."""
    perplexity: dict[str, float] | None = None
    """Newest held-out perplexity, by set."""
    perplexity_states: Regime = "fresh"
    """How the held-out text was read for it."""
    tokens_per_s: float = 0.0
    """Newest measured speed."""
    restarts: int = 0
    """How often training was started again."""
    checkpoint_step: int = -1
    """Step of the newest checkpoint; -1 if there is none."""
    checkpoint: str = ""
    """Its folder or URL."""
    tracking: str = ""
    """Where the curves are."""


def submission_here(folder: RunFolder, until: str = STAGES[-1]) -> Submission:
    """A run that was started here by hand, as if it had been submitted: one without an id."""
    config = at(folder.config).read_json() or {}
    name = config.get("run", {}).get("name") or Path(folder.root).name
    return Submission("", name, folder.root, until, Target("local"), config, "", "")


def state_here(folder: RunFolder, progress: Progress | None) -> State:
    """The state of a run that was started here, from its lock and its progress."""
    command = running_command(folder)
    if command:
        return State("running", command)
    if progress is not None and progress.stage == "done":
        return State("finished")
    return State("interrupted")


def requested_until(folder: RunFolder) -> str:
    """The last stage that the newest command for this run requested."""
    words = last_holder(folder).command.split()
    for word, after in pairwise([*words, ""]):
        if word == "--until" and after in STAGES:
            return after
        if word.startswith("--until=") and word.removeprefix("--until=") in STAGES:
            return word.removeprefix("--until=")
    return words[1] if len(words) > 1 and words[1] in STAGES else STAGES[-1]


def read_progress(submission: Submission) -> Progress | None:
    """The progress of a run; None if its folder is not visible from here."""
    root = submission.dir
    try:
        if not at(root).is_folder():
            return None
        newest = _newest_checkpoint(root)
        records = [record for record, _ in read_journal(RunFolder(root, Path()).journal, 0)]
        result = read_result(join(root, "train", "result.json"))
        attempt = (at(join(root, "train", "attempt.json")).read_json() or {}).get("attempt", 1)
        stage = _stage(submission, result)
    except (OSError, UserError):
        return None
    evaluations = [record.values for record in records if isinstance(record, Evaluation)]
    speeds = [
        record.values[TOKENS_PER_S.key]
        for record in records
        if isinstance(record, Metrics) and TOKENS_PER_S.key in record.values
    ]
    scores, states = perplexities(evaluations[-1] if evaluations else {})
    if result and result.evaluation:
        scores, states = perplexities_of(result.evaluation)
    return Progress(
        stage=stage,
        step=max([record.step for record in records] + [newest[0], 0]),
        max_steps=submission.setting("train", "max_steps", 0),
        perplexity=scores or None,
        perplexity_states=states,
        tokens_per_s=speeds[-1] if speeds else 0.0,
        restarts=max(0, attempt - 1),
        checkpoint_step=newest[0],
        checkpoint=newest[1],
        tracking=submission.setting("tracking", "uri", "")
        or f"sqlite:///{join(root, 'mlflow', 'mlflow.db')}",
    )


def has_checkpoint(submission: Submission) -> bool | None:
    """Whether there is anything to resume from; None if its folder is not visible from here."""
    progress = read_progress(submission)
    return None if progress is None else progress.checkpoint_step >= 0


def state_by_files(submission: Submission, progress: Progress, why: str) -> State:
    """What has become of a run whose target cannot be asked, because of `why`."""
    code = outcome_of(submission)
    state = state_of_exit(code) if code is not None else State("unknown")
    if state.word in ("finished", "failed"):
        return state
    # One that stopped may have been started again since.
    return State("finished" if progress.stage == "done" else "unknown", why)


def corpus_folder(submission: Submission) -> str:
    """Where a run's corpus is, or its URL."""
    corpus = submission.setting("corpus", "dir", "") or join(submission.dir, "corpus")
    # Relative to where the run was submitted, not to the folder of this command.
    return at(join(submission.cwd or ".", corpus) if at(corpus).is_relative else corpus).absolute()


def _stage(submission: Submission, result: TrainingResult | None) -> str:
    """The first stage asked for that is not done."""
    root = submission.dir
    corpus = corpus_folder(submission)
    done: dict[str, Callable[[], bool]] = {
        "corpus": lambda: at(join(corpus, "MANIFEST.json")).exists(),
        "train": lambda: (
            result is not None
            and (
                result.step >= submission.setting("train", "max_steps", 0)
                or result.stopped_early > 0
            )
        ),
        "export": lambda: at(join(root, "bundle", "SHA256SUMS")).exists(),
        "publish": lambda: at(join(root, "published.json")).exists(),
    }
    for stage in STAGES[: STAGES.index(submission.until) + 1]:
        if not done[stage]():
            return stage
    return "done"


def _newest_checkpoint(root: str) -> tuple[int, str]:
    found = (-1, "")
    for file in at(join(root, "train", "checkpoints")).list_files():
        match = re.search(r"/(step-(\d+))/MANIFEST\.json$", file.path)
        if match and int(match[2]) > found[0]:
            found = int(match[2]), file.path.removesuffix("/MANIFEST.json")
    return found


@dataclass(frozen=True)
class Status:
    """A run as `elmwright status --json` prints it."""

    run: str
    id: str
    target: str
    dir: str
    until: str
    version: str
    git: str
    config_sha256: str
    submitted: str
    state: str
    why: str
    exit_code: int | None
    progress: Progress | None


def as_json(submission: Submission, state: State, progress: Progress | None) -> str:
    """The status of a run as JSON."""
    status = Status(
        run=submission.run,
        id=submission.id,
        target=str(submission.target),
        dir=submission.dir,
        until=submission.until,
        version=submission.version,
        git=submission.git,
        config_sha256=submission.config_sha256,
        submitted=submission.time,
        state=state.word,
        why=state.why,
        exit_code=state.exit_code,
        progress=progress,
    )
    return json.dumps(to_data(status), indent=1)


def as_lines(submission: Submission, state: State, progress: Progress | None) -> list[str]:
    """The status of a run for a reader."""
    here = not submission.id
    rows = [
        ("run", submission.run if here else f"{submission.run}  ({submission.id})"),
        ("state", state.word if here else str(state)),
        ("folder", nearby(submission.dir)),
    ]
    if here and state.why:
        rows[2:2] = [("used by", state.why)]
    if not here:
        git = f", git {_short(submission.git)}" if submission.git else ""
        rows[2:2] = [("target", str(submission.target))]
        rows.append(("code", submission.version + git))
    if progress is None:
        rows.append(("stage", "its folder cannot be seen from this machine; see its log"))
        return [f"{name:<12} {text}" for name, text in rows]
    until = "" if progress.stage == "done" else f" (until {submission.until})"
    rows.append(("stage", progress.stage + until))
    rows.append(("step", f"{progress.step:,} of {progress.max_steps:,}"))
    if progress.perplexity:
        scores = scores_text(progress.perplexity, progress.perplexity_states)
        rows.append(("perplexity", f"{scores} (held-out)"))
    if progress.tokens_per_s:
        rows.append(("speed", f"{progress.tokens_per_s:,.0f} tokens/s"))
    rows.append(("restarts", str(progress.restarts)))
    newest = f"step {progress.checkpoint_step:,}  {nearby(progress.checkpoint)}"
    rows.append(("checkpoint", newest if progress.checkpoint_step >= 0 else "none yet"))
    rows.append(("curves", short(progress.tracking)))
    return [f"{name:<12} {text}" for name, text in rows]


def _short(git: str) -> str:
    return git[:12] + git[40:]
