"""Is a bundle the model that was trained? Compared before the bundle gets its name.

Its weights in bilm format go through a reader that shares no line with the rest, on a few
sentences; its own files score the probe of the held-out sets (evaluate.py), or, where the trainer
left none, the sets themselves.
"""

from pathlib import Path

import numpy as np

from elmwright.jobs.checkpoints.contents import Scores
from elmwright.jobs.publishing.choose_checkpoint import Recorded
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.using.evaluate_model import evaluate_folder, probe_folder
from elmwright.model.inference.elmo import Elmo
from elmwright.model.reference import ReferenceBiLM
from elmwright.pipeline.errors import Failed
from elmwright.pipeline.format.manifest import Manifest
from elmwright.pipeline.format.shards import ShardReader
from elmwright.pipeline.progress import Progress
from elmwright.pipeline.storage.files import join

PROBES = 8
"""Sentences compared between the trained model and the bundle."""
PROBE_WORDS = 20
"""Words of each that are compared: every weight takes part, and rounding cannot grow. A model of
few steps may amplify it along a sentence (1.5e-4 at 38 words where the first 20 differ by 3e-6)."""
TOLERANCE = 1e-4
"""Largest difference allowed between torch in float32 and the reference in float64; values are
of the order of 1, and the trained demo differs by about 1e-6."""
SAME = 1e-6
"""Relative difference allowed between the trainer's perplexity and the bundle's, both on a CPU with
the same kernels."""
NEAR = 1e-3
"""The same where the trainer computed on a GPU or with other kernels, and the export does not."""


def measure(
    target: Path,
    folder: RunFolder,
    manifest: Manifest,
    trainers: Recorded | None,
    allowed: float,
    limit: int | None,
    progress: Progress,
) -> tuple[Scores, str]:
    """The held-out scores for the card, after the bundle's own files were compared with them."""
    if len(manifest.splits) == 1:
        return {}, ""
    if trainers and trainers.probe:
        mine = probe_folder(target, folder.corpus, trainers.probe, progress)
        for split, probe in mine.items():
            wanted = trainers.probe[split]
            _check_same(split, probe.tokens, wanted.tokens, "tokens", 0)
            _check_same(split, probe.perplexity, wanted.perplexity, "perplexity", allowed)
        return trainers.evaluation, "; held-out perplexity is the trainer's"
    found = evaluate_folder(target, folder.corpus, None, max_tokens=limit, progress=progress)
    if not trainers or _tokens(found) != _tokens(trainers.evaluation):
        return found, "; held-out perplexity was computed from the bundle"
    for split, score in trainers.evaluation.items():
        _check_same(split, found[split].perplexity, score.perplexity, "perplexity", allowed)
    return trainers.evaluation, "; held-out perplexity is the trainer's"


def _tokens(scores: Scores) -> dict[str, int]:
    return {split: score.tokens for split, score in scores.items()}


def _check_same(split: str, mine: float, trainers: float, what: str, allowed: float) -> None:
    if not abs(mine - trainers) <= allowed * trainers:
        raise Failed(
            f"the bundle has a {what} of {mine!r} on {split!r}, the trainer had {trainers!r}; it "
            "was not written: please report this"
        )


def heldout_sentences(corpus: str, manifest: Manifest) -> list[list[str]]:
    """The first sentences of a held-out set (of train, where there is none)."""
    split = list(manifest.splits.values())[-1]
    block = ShardReader(join(corpus, split.shards[0].tar)).read(0)
    ends = np.cumsum(block.lengths)[:PROBES]
    words = [block.types[token] for token in block.tokens]
    starts = [0, *ends[:-1]]
    return [words[a:b] for a, b in zip(starts, ends, strict=True)]


def compare_vectors(bundle: Path, elmo: Elmo, corpus: str, manifest: Manifest) -> str:
    """Compare the trained model's vectors with those of an independent reader; a sentence."""
    sentences = [words[:PROBE_WORDS] for words in heldout_sentences(corpus, manifest)]
    elmo.eval()
    expected = elmo.embed(sentences)
    reference = ReferenceBiLM(bundle / "options.json", bundle / "weights.hdf5")
    worst = 0.0
    for sentence, vectors in zip(sentences, expected, strict=True):
        found, _ = reference.embed(sentence)
        if found.shape != vectors.shape:
            raise Failed(f"shape {found.shape} from the bundle, {vectors.shape} from training")
        worst = max(worst, float(np.abs(found - vectors).max()))
    if not worst <= TOLERANCE:
        raise Failed(
            f"the bundle gives other vectors than the trained model (difference {worst:.3g}); "
            "it was not written: please report this"
        )
    count = len(sentences)
    return f"{count} sentences give the same vectors through an independent reader (Δ {worst:.1e})"
