"""Which checkpoint `--step` means: a number, the newest, the best, or what training ended with."""

import json
from typing import Any

from elmwright.jobs.checkpoint import CheckpointInfo
from elmwright.jobs.layout import RunFolder
from elmwright.jobs.models import local_folder
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.files import join, read_bytes, read_json
from elmwright.pipeline.manifest import Manifest


def choose(infos: list[CheckpointInfo], step: str, folder: RunFolder) -> CheckpointInfo:
    """The checkpoint that `--step` means: a number, `latest`, or `best` by held-out perplexity."""
    if not infos:
        raise UserError(f"{folder.root} has no checkpoints; train first")
    if step == "result":  # what training ended with; of a run that goes on, the newest
        ended = (read_json(folder.result) or {}).get("checkpoint_sha256")
        return next((info for info in infos if info.sha256 == ended), infos[-1])
    if step == "latest":
        return infos[-1]
    if step == "best":
        return _best(infos, folder)
    for info in infos:
        if step.isdecimal() and info.step == int(step):
            return info
    known = ", ".join(str(info.step) for info in infos)
    raise UserError(f"there is no checkpoint {step!r}; there are best, latest and: {known}")


def _best(infos: list[CheckpointInfo], folder: RunFolder) -> CheckpointInfo:
    """The lowest perplexity of the first held-out set.

    Only evaluations of equally many tokens compare: the best of each kind are candidates, and if
    there are several, all of the held-out set is scored with each.
    """
    best: dict[int, tuple[float, CheckpointInfo]] = {}
    for info in infos:
        for score in list(info.perplexity.values())[:1]:
            if info.tokens not in best or score < best[info.tokens][0]:
                best[info.tokens] = score, info
    if not best:
        raise UserError(
            f"no checkpoint of {folder.root} was evaluated; use --step latest or its number"
        )
    candidates = [info for _, info in best.values()]
    if len(candidates) == 1:
        return candidates[0]
    manifest = Manifest.load(folder.corpus)
    full: dict[int, float] = {}
    for info in candidates:
        scores = recorded(info, manifest) or _evaluate(info, folder)
        full[info.step] = next(iter(scores.values()))["perplexity"]
    return min(candidates, key=lambda info: full[info.step])


def recorded(info: CheckpointInfo, manifest: Manifest) -> dict[str, dict[str, Any]] | None:
    """The trainer's evaluation of a checkpoint, if it was of all held-out tokens."""
    everything = sum(s.steps for name, s in manifest.splits.items() if name != "train")
    if not everything or info.tokens != everything:
        return None
    state = json.loads(read_bytes(join(info.path, "state.json")))
    return dict(state["evaluation"])


def _evaluate(info: CheckpointInfo, folder: RunFolder) -> dict[str, dict[str, Any]]:
    from elmwright.jobs.evaluate import evaluate_folder

    return evaluate_folder(local_folder(info.path), folder.corpus, None)
