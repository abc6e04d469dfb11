"""Is a version at least as good as the one it would replace?

Perplexities compare only over the same vocabulary and the same held-out text. Where both are equal
(by digest), the geometric mean over the common sets decides. Otherwise the user has to give a text.
Each model splits and tokenises it in its own way, and bits per character of the raw text decide. A
word outside a model's vocabulary costs its `<UNK>` and 8 bits per byte to spell it, so a small
vocabulary is no advantage.
"""

import math
from pathlib import Path

from elmwright.jobs.bundles.bundle_json import read_bundle_config
from elmwright.jobs.registry.contract import About, Registry, Version
from elmwright.pipeline.cleaning import words as word_rules
from elmwright.pipeline.errors import UserError

SLACK = 1e-9
"""Relative difference that is rounding, not a result."""


def compare(registry: Registry, name: str, old: Version, new: Version, text: str) -> str:
    """How the new version compares, as a sentence; `UserError` if it is worse."""
    sets = comparable(old.about, new.about)
    if sets:
        unit = f"held-out perplexity on {', '.join(sets)}"
        before = _mean(old.about.perplexity, sets)
        after = _mean(new.about.perplexity, sets)
    elif text:
        unit = f"bits per character of {Path(text).name}"
        before = bits_per_character(registry.fetch(name, old.version), Path(text))
        after = bits_per_character(registry.fetch(name, new.version), Path(text))
    else:
        raise UserError(
            "not-comparable",
            f"versions {old.version} and {new.version} of {name} have different vocabularies or "
            "held-out sets, so their perplexities do not compare; give a text with --on, or "
            "--force",
        )
    result = f"{unit}: {after:.4f}, version {old.version} has {before:.4f}"
    if not after <= before * (1 + SLACK):
        raise UserError(
            "worse",
            f"version {new.version} of {name} is worse than version {old.version} ({result}); "
            "--force promotes it anyway",
        )
    return result


def comparable(old: About, new: About) -> list[str]:
    """The held-out sets that both were measured on, with the same words to choose from."""
    if old.vocab_sha256 != new.vocab_sha256:
        return []
    return [
        split
        for split, sha256 in old.heldout_sha256.items()
        if new.heldout_sha256.get(split) == sha256
        and split in old.perplexity
        and split in new.perplexity
    ]


def _mean(perplexity: dict[str, float], sets: list[str]) -> float:
    return math.exp(sum(math.log(perplexity[split]) for split in sets) / len(sets))


def bits_per_character(bundle: Path, path: Path) -> float:
    """Bits per character of a text file, the mean of both directions."""
    from elmwright.jobs.using.score import Scorer

    text = _read(path)
    scorer = Scorer(bundle)
    nats, spelled = 0.0, 0
    for score in scorer.score(_sentences(bundle, text)):
        nats -= float(score.mean.sum())
        spelled += sum(len(word.encode()) + 1 for word in score.words if word not in scorer.ids)
    return (nats / math.log(2) + 8 * spelled) / len(text)


def _read(path: Path) -> str:
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
    """The text as this model's corpus would have split and tokenised it."""
    config = read_bundle_config(bundle)
    if config.tokenizer == "sentencepiece":
        tokenise = word_rules.sentencepiece(bundle / "sentencepiece.model")
    else:
        tokenise = word_rules.ptb if config.tokenizer == "ptb" else word_rules.whitespace
    sentences = word_rules.split(text, config.sentences, config.language).sentences
    return [words for sentence in sentences if (words := tokenise(sentence).split())]
