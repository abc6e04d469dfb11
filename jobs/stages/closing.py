"""Summarises a finished run: its outputs, their quality, and the next commands.

`find_outcome` collects the facts, `Outcome.as_data` formats them for `--json`, and `closing_lines`
for the last screen.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from elmwright.jobs.checkpoints.contents import TrainingResult, contents_data, read_result
from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.config.toml_file import config_hash
from elmwright.jobs.publishing.examples import choose_example, heldout_examples
from elmwright.jobs.publishing.publish import Published, read_published
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.rundir.metrics import PERPLEXITY
from elmwright.jobs.secrets.hiding import without_secret
from elmwright.jobs.terminal.wording import nearby, states_note, typed
from elmwright.jobs.tracking.tracker import tracking_uri
from elmwright.pipeline.config import EMBEDDED
from elmwright.pipeline.format.manifest import Manifest
from elmwright.pipeline.progress import plural
from elmwright.pipeline.records import to_data
from elmwright.pipeline.storage.files import join

EXAMPLE = ("file", "open the file and read it")
"""A word of the demo's text, and a sentence that contains it."""


@dataclass(frozen=True)
class CorpusOutcome:
    """The corpus of a run; the fields are keys of `--json`."""

    path: str
    report: str
    """The path of the HTML report."""
    fingerprint: str
    vocabulary: int
    """The number of words in the vocabulary."""
    train_tokens: int
    """The number of predictions per epoch: words and ends of sentences."""
    unigram_perplexity: Mapping[str, float]
    """The perplexity of a unigram model on each held-out set."""


@dataclass(frozen=True)
class Outcome:
    """The outputs of a run; None for those of stages that were not run."""

    run: str
    """The name of the run."""
    dir: str
    config_sha256: str
    """The hash of the resolved config."""
    corpus: CorpusOutcome
    train: TrainingResult | None
    checkpoint: str | None
    """The path of the last checkpoint."""
    tracking_uri: str | None
    """The MLflow server or database of the run."""
    bundle: str | None
    published: Published | None
    train_words: int
    """The number of words in the training text."""
    example: tuple[str, str] | None
    """A word that occurs several times in held-out text, and a sentence that contains it."""

    def as_data(self) -> dict[str, Any]:
        """The outcome for `--json`, without the keys of stages that were not run."""
        data = {key: value for key, value in to_data(self).items() if value is not None}
        if self.train is not None:
            data["train"] = contents_data(self.train)
            data["tracking_uri"] = without_secret(self.tracking_uri or "")
        del data["train_words"]
        data.pop("example", None)
        return data


def find_outcome(config: RunConfig, folder: RunFolder, until: str) -> Outcome:
    """The outputs of the stages up to `until`, read from the run's folder."""
    manifest = Manifest.load(folder.corpus)
    result = read_result(folder.result) if until != "corpus" else None
    return Outcome(
        run=config.run.name,
        dir=folder.root,
        config_sha256=config_hash(config),
        corpus=CorpusOutcome(
            path=folder.corpus,
            report=join(folder.corpus, "report.html"),
            fingerprint=manifest.fingerprint,
            vocabulary=manifest.vocab.size,
            train_tokens=manifest.splits["train"].steps,
            unigram_perplexity=manifest.unigram_perplexity,
        ),
        train=result,
        checkpoint=join(folder.checkpoints, result.checkpoint) if result else None,
        tracking_uri=tracking_uri(config, folder) if result else None,
        bundle=str(folder.bundle) if until in ("export", "publish") else None,
        published=read_published(folder.published) if until == "publish" else None,
        train_words=manifest.splits["train"].words,
        example=_find_example(config, manifest, folder.corpus),
    )


def _find_example(config: RunConfig, manifest: Manifest, corpus: str) -> tuple[str, str] | None:
    """A word of the held-out text and a sentence that contains it, for `elmwright neighbours`."""
    if any(source.path == EMBEDDED for source in config.corpus.sources):
        return EXAMPLE
    if len(manifest.splits) == 1:
        return None
    return choose_example(heldout_examples(corpus, manifest))


def closing_lines(outcome: Outcome, config_name: str, width: int | None) -> list[str]:
    """The last screen of a run; `config_name` is the config's path as typed in the command."""
    lines = [f"  {name:<11} {text}" for name, text in _outputs(outcome)]
    if outcome.train is not None:
        lines += ["", *_quality(outcome.train, outcome.corpus.unigram_perplexity)]
    return [*lines, "", "Next:", *(f"  {line}" for line in _next(outcome, config_name, width))]


def _outputs(outcome: Outcome) -> Iterator[tuple[str, str]]:
    """The name and location of each output."""
    if outcome.bundle:
        yield "model", nearby(outcome.bundle)
    if version := outcome.published:
        yield "registered", f"models:/{version.name}@{version.alias} (version {version.version})"
    elif outcome.checkpoint:
        yield "checkpoint", nearby(outcome.checkpoint)
    corpus = outcome.corpus
    yield "corpus", f"{nearby(corpus.path)} ({plural(outcome.train_words, 'word')})"
    yield "report", nearby(corpus.report)


def _quality(result: TrainingResult, unigram_perplexity: Mapping[str, float]) -> list[str]:
    """Lines about the perplexity on each held-out set."""
    lines = []
    for split, score in result.evaluation.items():
        lines.append(
            f"{PERPLEXITY.title.capitalize()} {score.perplexity:,.1f}{states_note(score.states)} "
            "(lower is better); "
            f"a unigram model has {unigram_perplexity[split]:,.1f}."
        )
        lines.append(
            f"  {split}: {plural(score.tokens, 'token')}, {score.unk_share:.2%} unknown, "
            f"forward {score.forward_perplexity:,.1f}, "
            f"backward {score.backward_perplexity:,.1f}"
        )
        if score.carried_perplexity:
            lines.append(f"  with states carried over: {score.carried_perplexity:,.1f}")
    return lines or ["There is no held-out text, so the quality of the model was not measured."]


def _next(outcome: Outcome, config_name: str, width: int | None) -> Iterator[str]:
    """The next commands, as the user would type them in the current folder."""
    run = nearby(outcome.dir)
    corpus = outcome.corpus
    yield f"open {nearby(corpus.report)} in a browser"
    if outcome.train is None:
        yield typed("train", config_name or "CONFIG")
        return
    if outcome.bundle and outcome.example is not None:
        word, sentence = outcome.example
        text = run if corpus.path.startswith(f"{outcome.dir}/") else nearby(corpus.path)
        arguments = [run, "--word", word, "--in", sentence, "--corpus", text]
        columns = None if width is None else width - 2
        yield from typed("neighbours", *arguments, width=columns).split("\n")
    yield typed("ui", run)
