"""Held-out perplexity of a finished model: `elmwright eval`, the export and `--step best`."""

from pathlib import Path

from elmwright.jobs.checkpoints.contents import Probes, Scores
from elmwright.jobs.registry.resolve import resolve
from elmwright.jobs.training.loop.evaluate import (
    MOST_LANES,
    Score,
    _eval_window,
    evaluate_probe,
    evaluate_sets,
    planned_tokens,
)
from elmwright.jobs.training.loop.exchange import Ranks
from elmwright.jobs.training.loop.side_by_side import side_by_side
from elmwright.model.bilm import BiLM
from elmwright.model.formats.folder import load_folder
from elmwright.model.softmax import Softmax
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.format.manifest import Manifest
from elmwright.pipeline.progress import Advance, Progress, silent
from elmwright.pipeline.storage.files import at, join
from elmwright.pipeline.storage.untrusted import read_object, whole


def evaluate_model(
    model: str, corpus: str, split: str | None, progress: Progress = silent
) -> Scores:
    """`elmwright eval`: a MODEL on the held-out sets of a corpus, with the model's vocabulary."""
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
    """A verified folder on the held-out sets of a corpus; `name` is what the user calls it."""
    manifest = Manifest.load(corpus)
    splits = [name for name in manifest.splits if name != "train"]
    if split is not None and split not in splits:
        raise UserError(
            "split-missing", f"{corpus} has no held-out set {split!r} (it has: {', '.join(splits)})"
        )
    if not splits:
        raise UserError("split-missing", f"{corpus} has no held-out set; set corpus.heldout")
    bilm, softmax, word_ids, lanes = _load(folder, name)

    def work(ranks: Ranks, advance: Advance) -> dict[str, Score]:
        return evaluate_sets(
            bilm,
            softmax,
            corpus,
            manifest,
            ranks,
            lanes=lanes,
            window=_eval_window(manifest.block_steps),
            max_tokens=max_tokens,
            word_ids=word_ids,
            only=split,
            advance=advance,
        )

    with progress("evaluating", planned_tokens(manifest, max_tokens, split), "tokens") as advance:
        scores = side_by_side(lanes, work, advance)
    return {name: score.saved() for name, score in scores.items()}


def probe_folder(folder: Path, corpus: str, probes: Probes, progress: Progress = silent) -> Probes:
    """Score the same first sentences as the trainer did with a model's own files."""
    manifest = Manifest.load(corpus)
    bilm, softmax, word_ids, lanes = _load(folder)
    total = sum(probe.tokens for probe in probes.values())

    def work(ranks: Ranks, advance: Advance) -> Probes:
        return {
            split: evaluate_probe(
                bilm,
                softmax,
                corpus,
                manifest,
                split,
                probe.sentences,
                ranks,
                lanes=lanes,
                window=_eval_window(manifest.block_steps),
                word_ids=word_ids,
                advance=advance,
            )
            for split, probe in probes.items()
        }

    with progress("comparing", total, "tokens") as advance:
        return side_by_side(lanes, work, advance)


def _load(folder: Path, name: str = "") -> tuple[BiLM, Softmax, dict[str, int], int]:
    """A model that can score: biLM, softmax, vocabulary, and the lanes it was measured with."""
    loaded = load_folder(folder, with_softmax=True)
    if loaded.softmax is None or loaded.vocab is None:
        raise UserError(
            "model-incomplete",
            f"{name or folder} has no softmax, so it cannot score text; use a bundle or "
            "a checkpoint",
        )
    word_ids = {word: number for number, word in enumerate(loaded.vocab)}
    return loaded.bilm, loaded.softmax, word_ids, recorded_lanes(loaded.folder)


def recorded_lanes(folder: Path) -> int:
    """The evaluation lanes a bundle or checkpoint was measured with, so that scores compare."""
    path = folder / "config.json"
    content = read_object(path)
    try:
        trained = content.get("run_config")
        lanes = trained["eval"]["lanes"] if trained else content["eval_lanes"]
    except (KeyError, TypeError):
        lanes = None
    if not whole(lanes, 1, MOST_LANES):
        raise UserError(
            "file-damaged", f"{path} does not say with how many lanes the model was measured"
        )
    return int(lanes)
