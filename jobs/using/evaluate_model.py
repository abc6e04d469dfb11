"""Held-out perplexity of a finished model: `elmwright eval`, the export and `--step best`."""

from dataclasses import replace
from pathlib import Path

from elmwright.jobs.checkpoints.contents import Probes, Scores
from elmwright.jobs.registry.resolve import resolve
from elmwright.jobs.training.loop.evaluate import (
    Score,
    evaluate_probe,
    evaluate_sets,
    planned_tokens,
)
from elmwright.jobs.training.loop.exchange import Ranks
from elmwright.jobs.training.loop.heldout_pass import HeldOut
from elmwright.jobs.training.loop.side_by_side import side_by_side
from elmwright.jobs.using.pretrained import load_language_model
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.format.manifest import Manifest
from elmwright.pipeline.progress import Advance, Progress, silent
from elmwright.pipeline.storage.files import at, join
from elmwright.pipeline.storage.untrusted import is_int, read_object

MOST_LANES = 1 << 16
"""More than any run evaluates with. The states of each lane are in memory."""


def evaluate_model(
    model: str, corpus: str, split: str | None, progress: Progress = silent
) -> Scores:
    """The scores of a MODEL on the held-out sets of a corpus, with the model's vocabulary."""
    if (
        not at(join(corpus, "MANIFEST.json")).exists()
        and at(join(corpus, "corpus/MANIFEST.json")).exists()
    ):
        corpus = join(corpus, "corpus")
    return evaluate_folder(resolve(model), corpus, split, name=model, progress=progress)


def evaluate_folder(
    folder: Path,
    corpus: str,
    split: str | None,
    name: str = "",
    max_tokens: int | None = None,
    progress: Progress = silent,
) -> Scores:
    """The scores of a verified folder on the held-out sets of a corpus; `name` is the user's name
    for it in errors."""
    manifest = Manifest.load(corpus)
    splits = [name for name in manifest.splits if name != "train"]
    if split is not None and split not in splits:
        raise UserError(
            "split-missing", f"{corpus} has no held-out set {split!r} (it has: {', '.join(splits)})"
        )
    if not splits:
        raise UserError("split-missing", f"{corpus} has no held-out set; set corpus.heldout")
    heldout = _heldout(folder, corpus, manifest, name)

    def work(ranks: Ranks, advance: Advance) -> dict[str, Score]:
        return evaluate_sets(replace(heldout, ranks=ranks, advance=advance), max_tokens, only=split)

    with progress("evaluating", planned_tokens(manifest, max_tokens, split), "tokens") as advance:
        scores = side_by_side(heldout.lanes, work, advance)
    return {name: score.saved for name, score in scores.items()}


def probe_folder(folder: Path, corpus: str, probes: Probes, progress: Progress = silent) -> Probes:
    """The scores of a verified folder on the first sentences that the trainer scored, too."""
    heldout = _heldout(folder, corpus, Manifest.load(corpus))
    total = sum(probe.tokens for probe in probes.values())

    def work(ranks: Ranks, advance: Advance) -> Probes:
        part = replace(heldout, ranks=ranks, advance=advance)
        return {
            split: evaluate_probe(part, split, probe.sentences) for split, probe in probes.items()
        }

    with progress("comparing", total, "tokens") as advance:
        return side_by_side(heldout.lanes, work, advance)


def _heldout(folder: Path, corpus: str, manifest: Manifest, name: str = "") -> HeldOut:
    """The model of a folder on a corpus, with the lanes that it was measured with in training."""
    model = load_language_model(folder, name=name)
    return HeldOut(
        model.bilm,
        model.softmax,
        corpus,
        manifest,
        lanes=recorded_lanes(folder),
        # The largest divisor of a block up to 64 steps: the window does not change the result.
        window=max(steps for steps in range(1, 65) if manifest.block_steps % steps == 0),
        word_ids=model.word_ids,
    )


def recorded_lanes(folder: Path) -> int:
    """The lanes that a bundle or checkpoint was evaluated with: its perplexity with states carried
    over can be compared only with that of equally many."""
    path = folder / "config.json"
    content = read_object(path)
    try:
        trained = content.get("run_config")
        lanes = trained["eval"]["lanes"] if trained else content["eval_lanes"]
    except (KeyError, TypeError):
        lanes = None
    if not is_int(lanes, 1, MOST_LANES):
        raise UserError(
            "file-damaged", f"{path} does not say with how many lanes the model was measured"
        )
    return int(lanes)
