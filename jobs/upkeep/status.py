"""The progress and the state of a run, read from the files below `run.dir`, also in a store.

The run may have been submitted, or started here by hand, and may still be running. Nothing here
needs Ray, the cluster or a lock.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from elmwright.jobs.checkpoints.contents import TrainingResult, perplexities_of, read_result
from elmwright.jobs.registry.find_registry import short_uri
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

    stage: str
    """The first requested stage that is not done; "done" if there is none."""
    step: int
    """Optimiser steps done, according to the journal and the newest checkpoint."""
    max_steps: int
    """Steps requested (train.max_steps)."""
    perplexity: dict[str, float] | None
    """Newest held-out perplexity, by set."""
    perplexity_states: Regime
    """How the held-out text was read for it."""
    tokens_per_s: float
    """Newest measured speed."""
    restarts: int
    """How often training was started again."""
    checkpoint_step: int
    """Step of the newest checkpoint; -1 if there is none."""
    checkpoint: str
    """Its folder or URL."""
    tracking: str
    """The address of the MLflow that has the learning curves."""


def submission_here(folder: RunFolder, until: str = STAGES[-1]) -> Submission:
    """A run that was started here by hand, as a submission without an id."""
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
    folder = RunFolder(submission.dir, Path())
    try:
        if not at(folder.root).is_folder():
            return None
        checkpoint_step, checkpoint = _newest_checkpoint(folder.checkpoints)
        records = [record for record, _ in read_journal(folder.journal, 0)]
        result = read_result(folder.result)
        attempt = (at(folder.attempt).read_json() or {}).get("attempt", 1)
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
        step=max([record.step for record in records] + [checkpoint_step, 0]),
        max_steps=submission.setting("train", "max_steps", 0),
        perplexity=scores or None,
        perplexity_states=states,
        tokens_per_s=speeds[-1] if speeds else 0.0,
        restarts=max(0, attempt - 1),
        checkpoint_step=checkpoint_step,
        checkpoint=checkpoint,
        tracking=submission.setting("tracking", "uri", "")
        or f"sqlite:///{join(folder.root, 'mlflow', 'mlflow.db')}",
    )


def has_checkpoint(submission: Submission) -> bool | None:
    """Whether there is anything to resume from; None if its folder is not visible from here."""
    progress = read_progress(submission)
    return None if progress is None else progress.checkpoint_step >= 0


def state_by_files(submission: Submission, progress: Progress, why: str) -> State:
    """The state of a run as far as its files show it; `why` says why its target cannot tell."""
    code = outcome_of(submission)
    state = state_of_exit(code) if code is not None else State("unknown")
    if state.word in ("finished", "failed"):
        return state
    # A run that stopped may have been started again since.
    return State("finished" if progress.stage == "done" else "unknown", why)


def corpus_folder(submission: Submission) -> str:
    """The folder or URL of a run's corpus."""
    corpus = submission.setting("corpus", "dir", "") or join(submission.dir, "corpus")
    # Relative to where the run was submitted, not to the folder of this command.
    return at(join(submission.cwd or ".", corpus) if at(corpus).is_relative else corpus).absolute()


def _stage(submission: Submission, result: TrainingResult | None) -> str:
    """The first requested stage that is not done; "done" if there is none."""
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


def _newest_checkpoint(checkpoints: str) -> tuple[int, str]:
    """The step and the folder of the newest checkpoint; -1 and "" if there is none."""
    found = (-1, "")
    for file in at(checkpoints).list_files():
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
    folder = ("folder", nearby(submission.dir))
    if submission.id:
        git = f", git {_short_commit(submission.git)}" if submission.git else ""
        rows = [
            ("run", f"{submission.run}  ({submission.id})"),
            ("state", str(state)),
            ("target", str(submission.target)),
            folder,
            ("code", submission.version + git),
        ]
    else:
        rows = [("run", submission.run), ("state", state.word)]
        rows += [("used by", state.why)] * bool(state.why)
        rows.append(folder)
    if progress is None:
        rows.append(("stage", "its folder cannot be seen from this machine; see its log"))
    else:
        rows += _progress_rows(progress, submission.until)
    return [f"{name:<12} {text}" for name, text in rows]


def _progress_rows(progress: Progress, until: str) -> list[tuple[str, str]]:
    stage = progress.stage if progress.stage == "done" else f"{progress.stage} (until {until})"
    rows = [("stage", stage), ("step", f"{progress.step:,} of {progress.max_steps:,}")]
    if progress.perplexity:
        scores = scores_text(progress.perplexity, progress.perplexity_states)
        rows.append(("perplexity", f"{scores} (held-out)"))
    if progress.tokens_per_s:
        rows.append(("speed", f"{progress.tokens_per_s:,.0f} tokens/s"))
    rows.append(("restarts", str(progress.restarts)))
    newest = f"step {progress.checkpoint_step:,}  {nearby(progress.checkpoint)}"
    rows.append(("checkpoint", newest if progress.checkpoint_step >= 0 else "none yet"))
    rows.append(("curves", short_uri(progress.tracking)))
    return rows


def _short_commit(git: str) -> str:
    """The first 12 of the 40 digits of a commit, and "+changes" if that follows."""
    return git[:12] + git[40:]
