"""The facts about a published model for MLflow: its loader, its parameters and an example."""

from typing import Any

LOADER = "elmwright.jobs.serving"
EXAMPLE = ["The quick brown fox jumps over the lazy dog .", "Words are separated by spaces ."]
"""What MLflow shows as an example of an input: one tokenised sentence per string."""


def signature() -> Any:
    """What MLflow checks requests against: the parameter alone.

    By a schema of one column of strings MLflow would turn a list of tokenised sentences into a
    table with a column for each position and drop all but the first, without a word.
    """
    from mlflow.models import ModelSignature
    from mlflow.types import DataType, ParamSchema, ParamSpec

    return ModelSignature(params=ParamSchema([ParamSpec("layers", DataType.string, "all")]))
