"""A run in MLflow's own terms: its settings as params, its corpus as a dataset, records as metrics.

Pure functions: nothing is sent here. `tracker.py` decides what MLflow is told, and when.
"""

import json
from collections.abc import Mapping
from typing import Any

from elmwright.jobs.rundir.journal_records import ValuesRecord
from elmwright.jobs.tracking.metric_names import charted
from elmwright.pipeline.format.manifest import Manifest
from elmwright.pipeline.storage.files import at


def run_params(config: Mapping[str, Any], manifest: Manifest) -> list[Any]:
    """Every setting of a config, without its secrets, and the size of the corpus."""
    from mlflow.entities import Param

    settings = []
    for section, values in config.items():
        if isinstance(values, dict):
            for key, value in values.items():
                settings.append(Param(f"{section}.{key}", json.dumps(value)[:6000]))
    settings.append(Param("corpus.tokens", str(manifest.splits["train"].steps)))
    settings.append(Param("corpus.vocabulary", str(manifest.vocab.size)))
    return settings


def corpus_dataset(corpus: str, manifest: Manifest) -> Any:
    """The corpus as MLflow's dataset: found again by its fingerprint."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    profile = {
        name: {"words": split.words, "sentences": split.sentences, "blocks": split.blocks}
        for name, split in manifest.splits.items()
    }
    dataset = Dataset(
        name="corpus",
        digest=manifest.fingerprint[:36],  # as long as MLflow allows
        source_type="s3" if at(corpus).is_url else "local",
        source=json.dumps({"uri": corpus}),
        profile=json.dumps(profile),
    )
    return DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])


def record_metrics(record: ValuesRecord, names: int) -> list[Any]:
    """The points that a record of the journal adds to charts; `names` is their version."""
    from mlflow.entities import Metric

    return [
        Metric(key, float(value), record.time, record.step)
        for key, value in charted(record.kind, record.values, names).items()
    ]
