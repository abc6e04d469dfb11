"""The end of a run: what was made, how good it is, and what to do with it.

`find_outcome` collects it, `Outcome.as_data` is what `--json` prints, and `closing_lines` is the
last screen. Its "Next" leads to something that can be looked at.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from elmwright.jobs.config import RunConfig
from elmwright.jobs.config_file import config_hash
from elmwright.jobs.layout import RunFolder
from elmwright.jobs.wording import nearby, typed
from elmwright.pipeline.config import EMBEDDED
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.files import join, read_bytes, read_json
from elmwright.pipeline.manifest import Manifest
from elmwright.pipeline.progress import plural

EXAMPLE = ("file", "open the file and read it")
"""A word of the demo's text, and a sentence with it."""


@dataclass(frozen=True)
class Outcome:
    """What a run has come to."""

    run: str
    """Its name."""
    dir: str
    """Its folder."""
    config_sha256: str
    """Of the resolved config."""
    corpus: str
    """The corpus folder."""
    report: str
    """The page about the corpus."""
    fingerprint: str
    """Of the corpus."""
    vocabulary: int
    """Words."""
    train_words: int
    """Words of text to train on."""
    train_tokens: int
    """The same with the ends of sentences: what is predicted."""
    unigram_perplexity: Mapping[str, float]
    """Of each held-out set: what knowing only the frequency of words gives."""
    example: tuple[str, str]
    """A word, and a sentence that has it, for trying the model."""
    train: dict[str, Any] | None = None
    """What training left in result.json."""
    checkpoint: str = ""
    """Its last checkpoint."""
    tracking_uri: str = ""
    """Where MLflow keeps the curves."""
    bundle: str = ""
    """The exported model."""
    published: dict[str, Any] | None = None
    """The registered version."""

    def as_data(self) -> dict[str, Any]:
        """For `--json`; the keys of stages that were not asked for are left out."""
        data: dict[str, Any] = {
            "run": self.run,
            "dir": self.dir,
            "config_sha256": self.config_sha256,
            "corpus": {
                "path": self.corpus,
                "report": self.report,
                "fingerprint": self.fingerprint,
                "vocabulary": self.vocabulary,
                "train_tokens": self.train_tokens,
                "unigram_perplexity": dict(self.unigram_perplexity),
            },
        }
        if self.train is not None:
            data |= {"train": self.train, "checkpoint": self.checkpoint}
            data["tracking_uri"] = self.tracking_uri
        if self.bundle:
            data["bundle"] = self.bundle
        if self.published is not None:
            data["published"] = self.published
        return data


def find_outcome(config: RunConfig, folder: RunFolder, until: str) -> Outcome:
    """Read from the run's folder what there is after the stage `until`."""
    from elmwright.jobs.tracking import tracking_uri

    manifest = Manifest.load(folder.corpus)
    known: dict[str, Any] = {}
    if until != "corpus":
        result = read_json(folder.result) or {}
        known["train"] = result
        known["checkpoint"] = join(folder.checkpoints, result["checkpoint"])
        known["tracking_uri"] = tracking_uri(config, folder)
    if until in ("export", "publish"):
        known["bundle"] = str(folder.bundle)
    if until == "publish":
        known["published"] = read_json(folder.published) or {}
    return Outcome(
        run=config.run.name,
        dir=folder.root,
        config_sha256=config_hash(config),
        corpus=folder.corpus,
        report=join(folder.corpus, "report.html"),
        fingerprint=manifest.fingerprint,
        vocabulary=manifest.vocab.size,
        train_words=manifest.splits["train"].words,
        train_tokens=manifest.splits["train"].steps,
        unigram_perplexity=manifest.unigram_perplexity,
        example=_example(config, manifest, folder.corpus),
        **known,
    )


def _example(config: RunConfig, manifest: Manifest, corpus: str) -> tuple[str, str]:
    """A word to look for, and a sentence that has it: of one's own text, a frequent long word."""
    if any(source.path == EMBEDDED for source in config.corpus.sources):
        return EXAMPLE
    try:
        words = read_bytes(join(corpus, manifest.vocab.file)).decode().split("\n")
    except (OSError, UserError):
        return EXAMPLE
    plain = [word for word in words[:2000] if word.isalpha() and word.islower()]
    # The first words of a vocabulary, its most frequent, are articles and the like.
    chosen = next((w for w in plain[20:] if len(w) >= 5), plain[-1] if plain else EXAMPLE[0])
    return chosen, chosen


def closing_lines(outcome: Outcome, config_name: str, width: int | None) -> list[str]:
    """The last screen of a run; `config_name` is the config as it was named in the command."""
    lines = _made(outcome)
    if outcome.train is not None:
        lines += ["", *_quality(outcome)]
    return [*lines, "", "Next:", *_next(outcome, config_name, width)]


def _made(outcome: Outcome) -> list[str]:
    rows = []
    if outcome.bundle:
        rows.append(("model", nearby(outcome.bundle)))
    if outcome.published is not None:
        version = outcome.published
        rows.append(("registered", f"models:/{version['name']}@{version['alias']}"
                     f" (version {version['version']})"))  # fmt: skip
    elif outcome.checkpoint:
        rows.append(("checkpoint", nearby(outcome.checkpoint)))
    rows.append(("corpus", f"{nearby(outcome.corpus)} ({plural(outcome.train_words, 'word')})"))
    rows.append(("report", nearby(outcome.report)))
    return [f"  {name:<11} {text}" for name, text in rows]


def _quality(outcome: Outcome) -> list[str]:
    lines = []
    for split, score in ((outcome.train or {}).get("evaluation") or {}).items():
        lines.append(
            f"Held-out perplexity {score['perplexity']:,.1f} (lower is better); a unigram model "
            f"has {outcome.unigram_perplexity[split]:,.1f}."
        )
        lines.append(
            f"  {split}: {plural(score['tokens'], 'token')}, {score['unk_share']:.2%} unknown, "
            f"forward {score['forward_perplexity']:,.1f}, "
            f"backward {score['backward_perplexity']:,.1f}"
        )
    return lines or ["There is no held-out text: how good the model is was not measured."]


def _next(outcome: Outcome, config_name: str, width: int | None) -> list[str]:
    """What can be looked at now, each as it is typed here."""
    room = None if width is None else width - 2
    run = nearby(outcome.dir)
    lines = [f"open {nearby(outcome.report)} in a browser"]
    if outcome.train is None:
        lines.append(typed("train", config_name or "CONFIG"))
    else:
        if outcome.bundle:
            word, sentence = outcome.example
            inside = outcome.corpus.startswith(f"{outcome.dir}/")
            text = run if inside else nearby(outcome.corpus)
            lines += typed(
                "neighbours", run, "--word", word, "--in", sentence, "--corpus", text, width=room
            ).split("\n")
        lines.append(typed("ui", run))
    return [f"  {line}" for line in lines]
