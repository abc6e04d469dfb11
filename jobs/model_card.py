"""The model card: the README.md of a bundle, in the layout and with the header of Hugging Face.

Everything in it comes from the checkpoint, its config, the manifest, the journal, the evaluation
and [export]: no time, no path, so that the same checkpoint gives the same card.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from elmwright import __version__
from elmwright.jobs.config import RunConfig
from elmwright.jobs.training_facts import TrainingFacts
from elmwright.pipeline.manifest import Manifest

Scores = dict[str, dict[str, Any]]


def model_card(
    config: RunConfig,
    manifest: Manifest,
    step: int,
    evaluation: Scores,
    facts: TrainingFacts,
    *,
    state: Mapping[str, Any],
    has_softmax: bool,
    has_curve: bool,
) -> str:
    """The whole card; `config` and `state` are what the checkpoint was trained with."""
    sections = [
        _header(config),
        _summary(config, step),
        _use(config, has_softmax),
        _perplexity(manifest, evaluation),
        _architecture(config, manifest),
        _corpus(config, manifest),
        _training(config, step, facts, state, has_curve),
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


def _summary(config: RunConfig, step: int) -> Iterator[str]:
    yield f"# {config.export.name}"
    yield ""
    yield (
        f"A bidirectional language model (ELMo), trained for {step:,} steps of "
        f"{config.train.tokens:,} tokens with Elmwright {__version__}. It "
        "reads words by their characters and gives each word of a sentence "
        f"{config.model.n_layers + 1} vectors of {2 * config.model.projection_dim:,} numbers."
    )
    yield ""


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
        "from elmwright import load",
        'elmo = load("FOLDER")',
        'vectors = elmo.embed([["The", "quick", "brown", "fox"]])  '
        f"# [({model.n_layers + 1}, 4, {2 * model.projection_dim})]",
    )
    yield "**In a task model**, as a `torch.nn.Module` whose mix of layers is learned:"
    yield from _code(
        "python",
        "from elmwright import load",
        'elmo = load("FOLDER", dropout=0.5)',
        'output = elmo([["The", "quick", "brown", "fox"]])',
        "output.mixes[0], output.mask",
    )
    yield "**On the command line**, one tokenised sentence a line:"
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
        yield "`softmax.safetensors` is for scoring text and for training on; vectors do without."
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
    yield "Full softmax, every token once; `<UNK>` counts as a word."
    yield ""
    yield "| set | mean | forward | backward | tokens | `<UNK>` | unigram model |"
    yield "|---|---|---|---|---|---|---|"
    for name, score in evaluation.items():
        yield (
            f"| {name} | {score['perplexity']:.2f} | {score['forward_perplexity']:.2f} | "
            f"{score['backward_perplexity']:.2f} | {score['tokens']:,} | "
            f"{score['unk_share']:.2%} | {manifest.unigram_perplexity[name]:.2f} |"
        )
    yield ""


def _architecture(config: RunConfig, manifest: Manifest) -> Iterator[str]:
    model = config.model
    widths = ", ".join(f"{number} of width {width}" for width, number in model.filters)
    yield "## Architecture"
    yield (
        f"Character CNN over at most {model.max_chars} bytes of a word ({model.n_filters:,} "
        f"filters: {widths}), {model.n_highway} highway layers, {model.n_layers} "
        f"{'residual ' if model.residual else ''}LSTM layers each way of {model.dim:,} cells "
        f"projected to {model.projection_dim:,}; "
        f"{sum(model.parameter_counts().values()):,} parameters without the softmax, which covers "
        f"{manifest.vocab.size:,} words."
    )
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
    yield "What was read, dropped by each rule, and kept:"
    yield ""
    yield "| rule | documents | sentences | words |"
    yield "|---|---|---|---|"
    for rule in manifest.funnel:
        if rule.rule in ("read", "kept") or rule.documents or rule.sentences or rule.words:
            yield (
                f"| {_cell(rule.rule)} | {rule.documents:,} | {rule.sentences:,} | {rule.words:,} |"
            )
    yield ""


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _training(
    config: RunConfig, step: int, facts: TrainingFacts, state: Mapping[str, Any], has_curve: bool
) -> Iterator[str]:
    train, optim = config.train, config.optim
    tokens = step * train.tokens
    yield "## Training"
    if has_curve:
        yield "![Loss by step](training.svg)"
        yield ""
        yield "Line: training loss over sampled words; dashed: held-out loss, full softmax."
        yield ""
    yield (
        f"{tokens:,} tokens; {optim.name}, learning rate {optim.lr:g} ({optim.schedule}), dropout "
        f"{train.dropout:g}, {train.negatives:,} sampled negatives, seed {config.run.seed}."
    )
    yield (
        f"{state['processes']} processes of {train.threads} threads, device `{state['device']}` on "
        f"{state['machine']}."
    )
    if facts.seconds:
        yield (
            f"{_duration(facts.seconds)} of training steps at {facts.tokens_per_s:,.0f} tokens a "
            "second (median); evaluation, checkpoints and pauses not counted."
        )
    yield ""


def _duration(seconds: float) -> str:
    hours, minutes = divmod(round(seconds / 60), 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min" if minutes else f"{seconds:.0f} s"


def _limits(config: RunConfig, manifest: Manifest, has_softmax: bool) -> Iterator[str]:
    yield "## Intended use and known limits"
    yield (
        "- Contextual word representations for text like the corpus above. The model knows "
        "nothing of other domains or languages, and repeats the biases of its text."
    )
    yield (
        f"- Words are read up to {config.model.max_chars - 2} bytes; {manifest.long_words:.2%} of "
        "the training words have more than 48."
    )
    yield "- Every sentence is read by itself: a word knows nothing of the sentences around it."
    yield "- Perplexities of models with other vocabularies or held-out sets cannot be compared."
    if not has_softmax:
        yield "- This bundle comes without its softmax: it cannot score text or be trained on."
    yield ""
