"""Which checkpoint `--step` means, and what the trainer measured of it."""

from dataclasses import dataclass, replace

from elmwright.jobs.bundles.model_folder import local_folder
from elmwright.jobs.checkpoints.checkpoint import CheckpointInfo, list_checkpoints, read_state
from elmwright.jobs.checkpoints.contents import (
    Probes,
    Scores,
    TrainingResult,
    perplexities_of,
    read_result,
)
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.rundir.metrics import Regime
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.format.manifest import Manifest
from elmwright.pipeline.progress import Progress, silent


def list_scored(folder: RunFolder) -> list[CheckpointInfo]:
    """The checkpoints of a run, oldest first, with the perplexity of each.

    The checkpoint that training ended with is written before its evaluation, which is in
    result.json.
    """
    result = read_result(folder.result)
    return [
        _with_result(info, result) if result and not info.perplexity else info
        for info in list_checkpoints(folder.checkpoints)
    ]


def _with_result(info: CheckpointInfo, result: TrainingResult) -> CheckpointInfo:
    scores = result.evaluation
    if result.checkpoint_sha256 != info.sha256 or not scores:
        return info
    perplexity, states = perplexities_of(scores)
    return replace(info, perplexity=perplexity, tokens=_tokens(scores), perplexity_states=states)


def choose(
    infos: list[CheckpointInfo],
    step: str,
    folder: RunFolder,
    max_tokens: int | None = None,
    progress: Progress = silent,
) -> CheckpointInfo:
    """The checkpoint that `--step` means: a number, `latest`, or `best` by held-out perplexity."""
    if not infos:
        raise UserError("checkpoint-missing", f"{folder.root} has no checkpoints; train first")
    if step == "result":  # what training ended with; of a run that is not done, the newest
        result = read_result(folder.result)
        last = result.checkpoint_sha256 if result else ""
        return next((info for info in infos if info.sha256 == last), infos[-1])
    if step == "latest":
        return infos[-1]
    if step == "best":
        return _best(infos, folder, max_tokens, progress)
    for info in infos:
        if step.isdecimal() and info.step == int(step):
            return info
    known = ", ".join(str(info.step) for info in infos)
    raise UserError(
        "checkpoint-missing",
        f"there is no checkpoint {step!r}; there are best, latest and: {known}",
    )


def _best(
    infos: list[CheckpointInfo], folder: RunFolder, max_tokens: int | None, progress: Progress
) -> CheckpointInfo:
    """The lowest perplexity of the first held-out set.

    Only evaluations of equally many tokens with the same states compare: the best of each kind are
    candidates, and if there are several, the held-out set is scored with each, as far as a final
    evaluation does.
    """
    best: dict[tuple[int, Regime], tuple[float, CheckpointInfo]] = {}
    for info in infos:
        kind = info.tokens, info.perplexity_states
        for score in list(info.perplexity.values())[:1]:
            if kind not in best or score < best[kind][0]:
                best[kind] = score, info
    if not best:
        raise UserError(
            "checkpoint-missing",
            f"no checkpoint of {folder.root} was evaluated; use --step latest or its number",
        )
    candidates = [info for _, info in best.values()]
    if len(candidates) == 1:
        return candidates[0]
    from elmwright.jobs.using.evaluate_model import evaluate_folder

    def measure(info: CheckpointInfo) -> Scores:
        place = local_folder(info.path)
        return evaluate_folder(place, folder.corpus, None, max_tokens=max_tokens, progress=progress)

    manifest = Manifest.load(folder.corpus)
    known = [recorded(info, folder, manifest) for info in candidates]
    scores = [
        found.evaluation if found else measure(info)
        for found, info in zip(known, candidates, strict=True)
    ]
    if len({_tokens(one) for one in scores}) > 1:  # eval.final_tokens was changed in between
        scores = [measure(info) for info in candidates]
    reached = [next(iter(one.values())).perplexity for one in scores]
    return candidates[reached.index(min(reached))]


def _tokens(scores: Scores) -> int:
    return sum(score.tokens for score in scores.values())


@dataclass(frozen=True)
class Recorded:
    """What the trainer measured when it was done with a checkpoint."""

    evaluation: Scores
    """Of every held-out set, up to `eval.final_tokens`."""
    probe: Probes
    """Of the first sentences of every set; empty where an older version trained."""


def recorded(info: CheckpointInfo, folder: RunFolder, manifest: Manifest) -> Recorded | None:
    """The trainer's final evaluation of a checkpoint with fresh states, if there was one.

    It is in result.json if training ended with this checkpoint; earlier versions wrote it into
    the checkpoint, too, but with states carried over, which does not count. Nor does an evaluation
    in passing, unless it was of all held-out tokens.
    """
    everything = sum(s.steps for name, s in manifest.splits.items() if name != "train")
    if not everything:
        return None
    result = read_result(folder.result)
    if result and result.checkpoint_sha256 == info.sha256 and _is_fresh(result.evaluation):
        return Recorded(result.evaluation, result.probe)
    state = read_state(info.path)
    if (state.probe or info.tokens == everything) and _is_fresh(state.evaluation):
        return Recorded(state.evaluation, state.probe)
    return None


def _is_fresh(scores: Scores) -> bool:
    return perplexities_of(scores)[1] == "fresh"
