"""The model card: the README.md of a bundle, with a Hugging Face header."""

from typing import Any

from elmwright import __version__
from elmwright.jobs.config import RunConfig
from elmwright.pipeline.manifest import Manifest


def model_card(
    config: RunConfig, manifest: Manifest, step: int, evaluation: dict[str, dict[str, float]]
) -> str:
    """Everything in it comes from the config, the manifest and the evaluation; no time, no path."""
    model, train = config.model, manifest.splits["train"]
    parts = model.parameter_counts()
    lines = [
        "---",
        f"language: {config.corpus.language}",
        "library_name: elmwright",
        "tags: [elmo, bilm, contextual-embeddings]",
        "---",
        f"# {config.export.name}",
        "",
        "A bidirectional language model (ELMo) trained with "
        f"Elmwright {__version__} for {step:,} steps of "
        f"{config.train.lanes * config.train.window:,} tokens.",
        "",
        "## Use",
        "```python",
        "from elmwright import load",
        'elmo = load("path/to/this/folder")',
        'vectors = elmo.embed([["The", "quick", "brown", "fox"]])  '
        f"# [({model.n_layers + 1}, words, {2 * model.projection_dim})]",
        "```",
        "`options.json` and `weights.hdf5` are in the format of bilm-tf and AllenNLP.",
        "",
        "## Held-out perplexity",
        "Full softmax, every token once; `<UNK>` counts as a word.",
        "",
        "| set | mean | forward | backward | tokens | `<UNK>` | unigram model |",
        "|---|---|---|---|---|---|---|",
        *(_row(name, score, manifest) for name, score in evaluation.items()),
        "",
        "## Architecture",
        f"Character CNN ({model.n_filters:,} filters, {model.n_highway} highway layers), "
        f"{model.n_layers} {'residual ' if model.residual else ''}LSTM layers each way of "
        f"{model.dim:,} cells projected to {model.projection_dim:,}; "
        f"{sum(parts.values()):,} parameters without the softmax, which covers "
        f"{manifest.vocab.size:,} words.",
        "",
        "## Corpus",
        f"{train.words:,} training words in {train.sentences:,} sentences, tokeniser "
        f"`{config.corpus.tokenizer}`. What was read, dropped by each rule, and kept:",
        "",
        "| rule | documents | sentences | words |",
        "|---|---|---|---|",
        *(
            f"| {s.rule} | {s.documents:,} | {s.sentences:,} | {s.words:,} |"
            for s in manifest.funnel
        ),
        "",
        "## Intended use and limits",
        "Contextual word representations for text like the corpus above. The model knows nothing "
        "of other domains or languages, and repeats the biases of its text.",
        "",
    ]
    return "\n".join(lines)


def _row(name: str, score: dict[str, Any], manifest: Manifest) -> str:
    return (
        f"| {name} | {score['perplexity']:.2f} | {score['forward_perplexity']:.2f} | "
        f"{score['backward_perplexity']:.2f} | {score['tokens']:,} | {score['unk_share']:.2%} | "
        f"{manifest.unigram_perplexity[name]:.2f} |"
    )
