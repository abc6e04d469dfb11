"""The facts about a published model for MLflow: its loader, its parameters and an example."""

from pathlib import Path
from typing import Any

from elmwright.jobs.bundles.bundle_json import read_bundle_config

LOADER = "elmwright.jobs.serving"
EXAMPLE = ["The quick brown fox jumps over the lazy dog .", "Words are separated by spaces ."]
"""An example for a bundle that has none of its own."""


def example(bundle: Path) -> list[str]:
    """What MLflow shows as an example of an input: a sentence like those of the model's corpus."""
    sentence = read_bundle_config(bundle).example
    return [sentence] if sentence else EXAMPLE


def signature() -> Any:
    """What MLflow checks requests against: the parameter alone.

    By a schema of one column of strings MLflow would turn a list of tokenised sentences into a
    table with a column for each position and drop all but the first, without a word.
    """
    from mlflow.models import ModelSignature
    from mlflow.types import DataType, ParamSchema, ParamSpec

    return ModelSignature(params=ParamSchema([ParamSpec("layers", DataType.string, "all")]))
