"""The model card: the README.md of a bundle, in the layout and with the header of Hugging Face.

Everything in it comes from the checkpoint, its config, the manifest, the journal, the evaluation
and [export]: no time, no path, so that the same checkpoint gives the same card.
"""

import json
from collections.abc import Iterator

from elmwright import __version__
from elmwright.jobs.checkpoints.contents import CheckpointState, SavedScore, Scores
from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.publishing.training_facts import TrainingFacts
from elmwright.jobs.terminal.wording import duration
from elmwright.pipeline.format.manifest import Manifest
from elmwright.pipeline.progress import plural


def model_card(
    config: RunConfig,
    manifest: Manifest,
    step: int,
    evaluation: Scores,
    facts: TrainingFacts,
    *,
    state: CheckpointState,
    has_softmax: bool,
    has_curve: bool,
) -> str:
    """The whole card; `config` and `state` are what the checkpoint was trained with."""
    sections = [
        _header(config),
        _summary(config, manifest, step, evaluation),
        _use(config, has_softmax),
        _perplexity(manifest, evaluation),
        _architecture(config, manifest),
        _corpus(config, manifest),
        _training(config, manifest, step, facts, state, has_curve),
        _limits(config, manifest, has_softmax),
    ]
    return "\n".join(line for section in sections for line in section)


def _header(config: RunConfig) -> Iterator[str]:
    """The YAML that the Hub reads; strings are written as JSON, which YAML contains."""
    yield "---"
    yield f"language: {json.dumps(config.corpus.language)}"
    if config.export.licence:
        yield f"license: {json.dumps(config.export.licence, ensure_ascii=False)}"
    yield "library_name: elmwright"
    yield "pipeline_tag: feature-extraction"
    yield "tags: [elmo, bilm, contextual-embeddings]"
    yield "---"


def _summary(config: RunConfig, manifest: Manifest, step: int, evaluation: Scores) -> Iterator[str]:
    yield f"# {config.export.name}"
    yield ""
    yield (
        f"A bidirectional language model (ELMo), trained for {step:,} steps of "
        f"{config.train.tokens:,} tokens with Elmwright {__version__}. It "
        "reads words by their characters and gives each word of a sentence "
        f"{config.model.n_layers + 1} vectors of {2 * config.model.projection_dim:,} numbers."
    )
    yield ""
    for name, score in list(evaluation.items())[:1]:
        yield (
            f"Its perplexity on {_first(manifest, name, score)}the held-out set `{name}` is "
            f"**{score.perplexity:.1f}**; a model that knows only how often each word occurs "
            f"(unigram) has {manifest.unigram_perplexity[name]:.1f}."
        )
        yield ""


def _first(manifest: Manifest, name: str, score: SavedScore) -> str:
    """Where only the beginning of a held-out set was scored: how much."""
    split = manifest.splits.get(name)
    short = split is not None and score.tokens < split.steps
    return f"the first {score.tokens:,} tokens of " if short else ""


def _use(config: RunConfig, has_softmax: bool) -> Iterator[str]:
    name = config.export.name
    model = config.model
    yield "## How to load it"
    yield "`FOLDER` is this folder; the words of a sentence are separated as in the corpus"
    yield f"(tokeniser `{config.corpus.tokenizer}`)."
    yield ""
    yield "**In Python**, as numpy arrays:"
    yield from _code(
        "python",
        "from elmwright import Elmo",
        'elmo = Elmo.from_pretrained("FOLDER")',
        'vectors = elmo.embed([["The", "quick", "brown", "fox"]])  '
        f"# [({model.n_layers + 1}, 4, {2 * model.projection_dim})]",
    )
    yield "**In a task model**, as a `torch.nn.Module` whose mix of layers is learned:"
    yield from _code(
        "python",
        "from elmwright import Elmo",
        'elmo = Elmo.from_pretrained("FOLDER", dropout=0.5)',
        'output = elmo([["The", "quick", "brown", "fox"]])',
        "output.mixes[0], output.mask",
    )
    yield "**On the command line**, one sentence per line, its words separated by spaces:"
    yield from _code("sh", "elmwright embed FOLDER sentences.txt -o vectors.hdf5")
    yield "**From an MLflow registry** it was published to, under one of its aliases there:"
    yield from _code(
        "python",
        "import mlflow",
        f'model = mlflow.pyfunc.load_model("models:/{name}@ALIAS")',
        'vectors = model.predict(["The quick brown fox"])',
    )
    yield "**In AllenNLP, or anything that reads the format of bilm-tf**:"
    yield from _code(
        "python",
        "from allennlp.modules.elmo import Elmo, batch_to_ids",
        'elmo = Elmo("FOLDER/options.json", "FOLDER/weights.hdf5", 1)',
        'elmo(batch_to_ids([["The", "quick", "brown", "fox"]]))',
    )
    if has_softmax:
        yield (
            "`softmax.safetensors` is needed to score text and to train further, not for vectors."
        )
        yield ""


def _code(language: str, *lines: str) -> Iterator[str]:
    yield f"```{language}"
    yield from lines
    yield "```"


def _perplexity(manifest: Manifest, evaluation: Scores) -> Iterator[str]:
    yield "## Held-out perplexity"
    if not evaluation:
        yield "Not measured: the corpus has no held-out set."
        yield ""
        return
    yield (
        "How well the model predicts text that it was not trained on: lower is better. A "
        "perplexity of 100 means that it is as unsure of the next word as if it had to choose "
        "among 100 equally likely ones. Measured with the full softmax over "
        f"{manifest.vocab.size:,} words; a word outside the vocabulary counts as `<UNK>`, which is "
        "predicted like any other. “This model” is the geometric mean of both directions. The "
        "unigram model knows only how often the training text has each word."
    )
    for name, score in evaluation.items():
        if part := _first(manifest, name, score):
            yield f"Scored: {part}the {manifest.splits[name].steps:,} of `{name}`."
    yield ""
    yield "| held-out set | this model | forward | backward | unigram model | tokens | `<UNK>` |"
    yield "|---|--:|--:|--:|--:|--:|--:|"
    for name, score in evaluation.items():
        yield (
            f"| {name} | {score.perplexity:.2f} | {score.forward_perplexity:.2f} | "
            f"{score.backward_perplexity:.2f} | {manifest.unigram_perplexity[name]:.2f} | "
            f"{score.tokens:,} | {score.unk_share:.2%} |"
        )
    yield ""


def _architecture(config: RunConfig, manifest: Manifest) -> Iterator[str]:
    model = config.model
    widths = ", ".join(f"{number} of width {width}" for width, number in model.filters)
    yield "## Architecture"
    yield "| part | size |"
    yield "|---|---|"
    yield f"| words | read as at most {model.max_chars} bytes, two of them marks |"
    yield f"| character CNN | {model.n_filters:,} filters: {widths} |"
    yield f"| highway layers | {model.n_highway} |"
    yield (
        f"| LSTM layers | {model.n_layers} in each direction"
        f"{', residual' if model.residual else ''}; {model.dim:,} cells projected to "
        f"{model.projection_dim:,} |"
    )
    yield f"| parameters | {sum(model.parameter_counts().values()):,}, softmax not counted |"
    yield f"| softmax | {manifest.vocab.size:,} words |"
    yield ""


def _corpus(config: RunConfig, manifest: Manifest) -> Iterator[str]:
    train = manifest.splits["train"]
    yield "## Corpus"
    yield (
        f"{train.words:,} training words in {train.sentences:,} sentences, tokeniser "
        f"`{config.corpus.tokenizer}`, fingerprint `{manifest.fingerprint[:16]}`."
    )
    yield ""
    yield "| source | licence | weight |"
    yield "|---|---|---|"
    for source in config.corpus.sources:
        name = source.name or source.path.rstrip("/").rpartition("/")[2]
        yield f"| {_cell(name)} | {_cell(source.licence) or 'not stated'} | {source.weight:g} |"
    yield ""
    yield (
        "What was read, what each cleaning rule dropped, and what was kept, held-out text included:"
    )
    yield ""
    yield "| rule | documents | sentences | words |"
    yield "|---|--:|--:|--:|"
    for rule in manifest.funnel:
        if rule.rule in ("read", "kept") or rule.documents or rule.sentences or rule.words:
            yield (
                f"| {_cell(rule.rule)} | {rule.documents:,} | {rule.sentences:,} | {rule.words:,} |"
            )
    yield ""


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _training(
    config: RunConfig,
    manifest: Manifest,
    step: int,
    facts: TrainingFacts,
    state: CheckpointState,
    has_curve: bool,
) -> Iterator[str]:
    train, optim = config.train, config.optim
    full = train.negatives >= manifest.vocab.size
    tokens = step * train.tokens
    yield "## Training"
    if has_curve:
        yield "![Held-out perplexity and training loss by training tokens](training.svg)"
        yield ""
        yield (
            "The training loss is that of the full softmax, of the text that was trained on."
            if full
            else "The training loss is that of a sampled softmax, which is lower by nature: it "
            "shows how training went and cannot be compared with the held-out perplexity."
        )
        yield ""
    yield "| setting | value |"
    yield "|---|---|"
    yield f"| tokens read | {tokens:,}: {step:,} steps of {train.tokens:,} |"
    yield f"| optimiser | {optim.name}, learning rate {optim.lr:g}, schedule {optim.schedule} |"
    how = "full" if full else f"sampled, {train.negatives:,} negatives per step"
    yield f"| softmax | {how} |"
    yield f"| dropout | {train.dropout:g} |"
    yield f"| seed | {config.run.seed} |"
    yield (
        f"| ran on | {plural(state.processes, 'process')} of "
        f"{plural(train.threads, 'thread')}, device `{state.device}`, "
        f"{_cell(state.machine)} |"
    )
    if facts.seconds:
        yield (
            f"| time | {duration(facts.seconds)} of training steps at {facts.tokens_per_s:,.0f} "
            "tokens per second (median); evaluation, checkpoints and pauses not counted |"
        )
    yield ""


def _limits(config: RunConfig, manifest: Manifest, has_softmax: bool) -> Iterator[str]:
    yield "## Intended use and known limits"
    yield (
        "- Contextual word representations for text like the corpus above. The model knows "
        "nothing of other domains or languages, and repeats the biases of its text."
    )
    yield (
        f"- Of a word only the first {config.model.max_chars - 2} bytes are read; "
        f"{manifest.long_words:.2%} of the training words have more than 48."
    )
    yield "- Every sentence is read by itself: a word knows nothing of the sentences around it."
    yield "- Perplexities with another vocabulary or on another text cannot be compared with these."
    if not has_softmax:
        yield "- This bundle comes without its softmax: it cannot score text or be trained further."
    yield ""
