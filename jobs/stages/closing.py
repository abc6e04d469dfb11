"""The end of a run: what was made, how good it is, and what to do with it.

`find_outcome` collects it, `Outcome.as_data` is what `--json` prints, and `closing_lines` is the
last screen. Its "Next" leads to something that can be looked at.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from elmwright.jobs.checkpoints.contents import TrainingResult, contents_data, read_result
from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.config.toml_file import config_hash
from elmwright.jobs.publishing.publish import Published, read_published
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.rundir.metrics import PERPLEXITY
from elmwright.jobs.secrets.hiding import without_secret
from elmwright.jobs.terminal.wording import nearby, typed
from elmwright.jobs.tracking.tracker import tracking_uri
from elmwright.pipeline.config import EMBEDDED
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.format.manifest import Manifest
from elmwright.pipeline.format.shards import ShardReader
from elmwright.pipeline.progress import plural
from elmwright.pipeline.records import to_data
from elmwright.pipeline.storage.files import join

EXAMPLE = ("file", "open the file and read it")
"""A word of the demo's text, and a sentence with it."""
LONGEST_EXAMPLE = 12
"""Words of a sentence that is proposed."""
OTHERS = 3
"""Sentences that must have the word, the proposed one among them."""


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
    example: tuple[str, str] | None
    """A word that the held-out text has several times, and a sentence with it, if there are."""
    train: TrainingResult | None = None
    """The result of training."""
    checkpoint: str = ""
    """Its last checkpoint."""
    tracking_uri: str = ""
    """Where MLflow keeps the curves."""
    bundle: str = ""
    """The exported model."""
    published: Published | None = None
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
            data |= {"train": contents_data(self.train), "checkpoint": self.checkpoint}
            data["tracking_uri"] = without_secret(self.tracking_uri)
        if self.bundle:
            data["bundle"] = self.bundle
        if self.published is not None:
            data["published"] = to_data(self.published)
        return data


def find_outcome(config: RunConfig, folder: RunFolder, until: str) -> Outcome:
    """Read from the run's folder what there is after the stage `until`."""
    manifest = Manifest.load(folder.corpus)
    result = read_result(folder.result) if until != "corpus" else None
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
        train=result,
        checkpoint=join(folder.checkpoints, result.checkpoint) if result else "",
        tracking_uri=tracking_uri(config, folder) if result else "",
        bundle=str(folder.bundle) if until in ("export", "publish") else "",
        published=read_published(folder.published) if until == "publish" else None,
    )


def _example(config: RunConfig, manifest: Manifest, corpus: str) -> tuple[str, str] | None:
    """What to look for in the held-out text, so that there is something to be found."""
    if any(source.path == EMBEDDED for source in config.corpus.sources):
        return EXAMPLE
    held_out = [split for name, split in manifest.splits.items() if name != "train"]
    shards = [shard.tar for split in held_out for shard in split.shards]
    if not shards:
        return None
    try:
        block = ShardReader(join(corpus, shards[0])).read(0)
    except (OSError, UserError):  # the run is done all the same
        return None
    words = [block.types[token] for token in block.tokens.tolist()]
    ends = list(accumulate(block.lengths.tolist()))
    return choose_example([words[a:b] for a, b in pairwise([0, *ends])])


def choose_example(sentences: Sequence[Sequence[str]]) -> tuple[str, str] | None:
    """A word of at least three of the sentences, rather a long one, and a short one of them."""
    short = [s for s in sentences if len(s) <= LONGEST_EXAMPLE and all(map(_is_simple, s))]
    counts = Counter(word for sentence in sentences for word in set(sentence))
    candidates = {word for sentence in short for word in sentence if _is_plain(word)}
    common = sorted(
        (word for word in candidates if counts[word] >= OTHERS),
        key=lambda word: (-min(len(word), 6), -counts[word], word),
    )
    if not common:
        return None
    sentence = min((s for s in short if common[0] in s), key=lambda s: (-len(s), *s))
    return common[0], " ".join(sentence)


def _is_simple(word: str) -> bool:
    """Nothing that a shell or a reader would stumble over."""
    return all(char.isalnum() or char in ".,;:?-" for char in word)


def _is_plain(word: str) -> bool:
    """Letters only, and no capital: in a script without capitals every word is."""
    return word.isalpha() and word == word.lower()


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
        name = f"models:/{version.name}@{version.alias} (version {version.version})"
        rows.append(("registered", name))
    elif outcome.checkpoint:
        rows.append(("checkpoint", nearby(outcome.checkpoint)))
    rows.append(("corpus", f"{nearby(outcome.corpus)} ({plural(outcome.train_words, 'word')})"))
    rows.append(("report", nearby(outcome.report)))
    return [f"  {name:<11} {text}" for name, text in rows]


def _quality(outcome: Outcome) -> list[str]:
    lines = []
    for split, score in outcome.train.evaluation.items() if outcome.train else ():
        lines.append(
            f"{PERPLEXITY.title.capitalize()} {score.perplexity:,.1f} (lower is better); "
            f"a unigram model has {outcome.unigram_perplexity[split]:,.1f}."
        )
        lines.append(
            f"  {split}: {plural(score.tokens, 'token')}, {score.unk_share:.2%} unknown, "
            f"forward {score.forward_perplexity:,.1f}, "
            f"backward {score.backward_perplexity:,.1f}"
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
        if outcome.bundle and outcome.example is not None:
            word, sentence = outcome.example
            inside = outcome.corpus.startswith(f"{outcome.dir}/")
            text = run if inside else nearby(outcome.corpus)
            lines += typed(
                "neighbours", run, "--word", word, "--in", sentence, "--corpus", text, width=room
            ).split("\n")
        lines.append(typed("ui", run))
    return [f"  {line}" for line in lines]
