"""Refuses to promote a version that is worse than the one it would replace.

Perplexities can be compared only if vocabulary and held-out text are the same (by digest), and if
the text was read in the same way. Then the geometric mean over the common held-out sets decides: of
the fresh perplexities, or, where one of the versions is too old to have them, of those with states
carried over. Otherwise the user has to give a text. Each model splits and tokenises it in its own
way, and bits per character of the raw text decide. A word outside a model's vocabulary costs the
bits of `<UNK>` plus 8 bits per byte of the word, so a small vocabulary is no advantage.
"""

import math
from dataclasses import dataclass
from pathlib import Path

from elmwright.jobs.bundles.bundle_json import BundleConfig, read_bundle_config
from elmwright.jobs.registry.contract import About, Registry, Version
from elmwright.jobs.rundir.metrics import Regime
from elmwright.jobs.terminal.wording import states_note
from elmwright.pipeline.cleaning.tokeniser import Tokenisation, Tokeniser
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.records import from_data

TOLERANCE = 1e-9
"""Relative differences up to this are rounding errors."""


def compare(registry: Registry, name: str, old: Version, new: Version, text_file: str) -> str:
    """A sentence with the scores of both versions; `UserError` if the new one is worse."""
    common = _common_perplexities(old.about, new.about)
    if common:
        unit = f"held-out perplexity on {', '.join(common.old)}{states_note(common.states)}"
        before, after = _geometric_mean(common.old), _geometric_mean(common.new)
    elif text_file:
        unit = f"bits per character of {Path(text_file).name}"
        before = bits_per_character(registry.fetch(name, old.version), Path(text_file))
        after = bits_per_character(registry.fetch(name, new.version), Path(text_file))
    else:
        raise UserError(
            "not-comparable",
            f"versions {old.version} and {new.version} of {name} have different vocabularies or "
            "held-out sets, or were measured differently, so their perplexities cannot be "
            "compared; give a text with --on, or --force",
        )
    result = f"{unit}: {after:.4f}, version {old.version} has {before:.4f}"
    if not after <= before * (1 + TOLERANCE):
        raise UserError(
            "worse",
            f"version {new.version} of {name} is worse than version {old.version} ({result}); "
            "--force promotes it anyway",
        )
    return result


@dataclass(frozen=True)
class _Common:
    """Perplexities of two versions on the same text, read in the same way."""

    states: Regime
    old: dict[str, float]
    """Held-out set → perplexity."""
    new: dict[str, float]
    """The same sets."""


def _common_perplexities(old: About, new: About) -> _Common | None:
    """What can be compared: fresh perplexities if both have them, else carried ones."""
    if old.vocab_sha256 != new.vocab_sha256:
        return None
    pairs: tuple[tuple[Regime, dict[str, float], dict[str, float]], ...] = (
        ("fresh", old.fresh_perplexity, new.fresh_perplexity),
        ("carried", old.perplexity, new.perplexity),
    )
    for states, before, after in pairs:
        sets = [
            split
            for split, sha256 in old.heldout_sha256.items()
            if new.heldout_sha256.get(split) == sha256 and split in before and split in after
        ]
        if sets:
            return _Common(
                states, {name: before[name] for name in sets}, {name: after[name] for name in sets}
            )
    return None


def _geometric_mean(perplexity: dict[str, float]) -> float:
    return math.exp(sum(map(math.log, perplexity.values())) / len(perplexity))


def bits_per_character(bundle: Path, path: Path) -> float:
    """Bits per character that a model needs for a text file, the mean of both directions."""
    from elmwright.jobs.using.score import Scorer

    text = _read_text(path)
    scorer = Scorer(bundle)
    nats, unknown_bytes = 0.0, 0
    for score in scorer.score(_sentences(bundle, text)):
        nats -= float(score.mean.sum())
        unknown = [word for word in score.words if word not in scorer.ids]
        unknown_bytes += sum(len(word.encode()) + 1 for word in unknown)
    return (nats / math.log(2) + 8 * unknown_bytes) / len(text)


def _read_text(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        is_missing = isinstance(error, FileNotFoundError)
        raise UserError(
            "file-missing" if is_missing else "file-unreadable",
            f"{path} cannot be read: {error.strerror}; check the path",
        ) from error
    except UnicodeDecodeError as error:
        raise UserError(
            "file-unreadable", f"{path} is not UTF-8 ({error.reason}); convert it first"
        ) from error
    if not text.strip():
        raise UserError("no-text", f"{path} is empty; give a text to compare on")
    return text


def _sentences(bundle: Path, text: str) -> list[list[str]]:
    """The tokenised sentences of a text, split in the same way as the model's corpus."""
    config = read_bundle_config(bundle)
    how = config.tokenisation or _earlier_tokenisation(config, bundle)
    model = bundle / "sentencepiece.model"
    sentences = Tokeniser(how, model if model.is_file() else None).split(text)
    return [[word.text for word in sentence.words] for sentence in sentences if sentence.words]


def _earlier_tokenisation(config: BundleConfig, bundle: Path) -> Tokenisation:
    """That of a bundle whose config.json says only three things about it."""
    for key in ("tokenizer", "sentences", "language"):
        if not getattr(config, key):
            raise UserError(
                "file-damaged", f"{bundle / 'config.json'} does not say its {key}; export again"
            )
    said = {
        "kind": config.tokenizer,
        "version": 1,
        "sentences": config.sentences,
        "language": config.language,
    }
    try:
        return from_data(Tokenisation, said)
    except ValueError as error:
        raise UserError(
            "file-damaged", f"{bundle / 'config.json'} is not as export writes it ({error})"
        ) from error
