"""The model card: the README.md of a bundle, from the template `model_card.md.jinja`.

Everything in it comes from the checkpoint, its config, the manifest, the journal, the evaluation
and [export]: no time, no path, so that the same checkpoint gives the same card.
"""

import json
from functools import partial
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from elmwright import __version__
from elmwright.jobs.checkpoints.contents import CheckpointState, Scores
from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.publishing.examples import PLAIN, Example
from elmwright.jobs.publishing.training_facts import TrainingFacts
from elmwright.jobs.terminal.wording import duration
from elmwright.pipeline.format.manifest import Manifest
from elmwright.pipeline.progress import plural

TEMPLATE = Path(__file__).parent / "model_card.md.jinja"


def model_card(
    config: RunConfig,
    manifest: Manifest,
    step: int,
    evaluation: Scores,
    facts: TrainingFacts,
    *,
    state: CheckpointState,
    weights: str,
    has_softmax: bool,
    has_curve: bool,
    example: Example = PLAIN,
) -> str:
    """The whole card; `config` and `state` are what the checkpoint was trained with, and `example`
    is a sentence with the model's own words for it."""

    def scored_part(name: str) -> str:
        """How much of a held-out set was scored, where that was only its beginning."""
        split = manifest.splits.get(name)
        tokens = evaluation[name].tokens
        is_part = split is not None and tokens < split.steps
        return f"the first {tokens:,} tokens of " if is_part else ""

    environment = Environment(  # noqa: S701 - Markdown, not HTML
        trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
    )
    environment.filters |= {
        "cell": _escape_cell,
        "duration": duration,
        "json": json.dumps,
        "n": "{:,}".format,
        "plural": plural,
        "unicode_json": partial(json.dumps, ensure_ascii=False),
    }
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        config=config,
        model=config.model,
        manifest=manifest,
        step=step,
        evaluation=evaluation,
        facts=facts,
        state=state,
        weights=weights,
        example=example,
        version=__version__,
        scored_part=scored_part,
        has_softmax=has_softmax,
        has_curve=has_curve,
        has_full_softmax=config.train.negatives >= manifest.vocab.size,
    )


def _escape_cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
