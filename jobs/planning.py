"""What a config will cost, before anything is started: `elmwright check`."""

from typing import Any

from elmwright.jobs.config import RunConfig
from elmwright.jobs.config_file import config_hash, to_dict
from elmwright.jobs.layout import RunFolder
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.manifest import Manifest


def describe(config: RunConfig) -> dict[str, Any]:
    """The resolved config, its hash, and sizes in words."""
    folder = RunFolder.of(config)
    manifest = finished_corpus(folder.corpus)
    parts = config.model.parameter_counts()
    width = config.model.projection_dim + 1
    words = manifest.vocab.size if manifest else config.vocab.max_size
    softmax = words * width
    up_to = "" if manifest else "up to "
    train, tokens = config.train, config.train.tokens
    sizes = {
        "parameters": f"{sum(parts.values()):,} (encoder {parts['encoder']:,}, "
        f"LSTMs {parts['lstm']:,}) + softmax {up_to}{softmax:,} for {up_to}{words:,} words",
        "checkpoint": f"{up_to}{(sum(parts.values()) + softmax) * 8 / 1e6:,.0f} MB",
        "step": f"{tokens:,} tokens ({train.lanes} lanes × {train.window}), "
        f"{train.processes} processes × {train.lanes // train.processes} lanes",
        "training": f"{train.max_steps:,} steps, {train.max_steps * tokens:,} tokens",
        "run folder": folder.root,
    }
    if manifest:
        split = manifest.splits["train"]
        epoch = split.blocks * manifest.block_steps
        sizes["epoch"] = (
            f"{split.steps:,} tokens in {split.blocks:,} blocks = {epoch / tokens:,.1f} steps; "
            f"the run makes {train.max_steps * tokens / epoch:.2f} epochs"
        )
    else:
        sizes["epoch"] = "not known before the corpus is built ('elmwright corpus')"
    return {
        "config": to_dict(config),
        "hash": config_hash(config),
        "parameters": {**parts, "softmax": softmax},
        "sizes": sizes,
    }


def finished_corpus(folder: str) -> Manifest | None:
    try:
        return Manifest.load(folder)
    except UserError:
        return None
