"""WikiText-2 as a corpus of ours, for measurements of the trainer."""

import logging
from pathlib import Path

import ray
from workload import sentences

from elmwright.pipeline.build.driver import build_corpus
from elmwright.pipeline.config import CorpusConfig, ShardsConfig, Source, VocabConfig
from elmwright.pipeline.progress import silent


def wikitext_corpus(folder: Path, block_steps: int, target: Path) -> None:
    """Build it into `target`, every word in the vocabulary; `folder` holds the text meanwhile."""
    text = folder / "text.txt"
    text.write_text("\n".join(" ".join(words) for words in sentences("train")), encoding="utf-8")
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        logging_level=logging.ERROR,
        log_to_driver=False,
    )
    build_corpus(
        CorpusConfig(
            sources=(Source(str(text), documents="line"),),
            tokenizer="whitespace",
            sentences="line",
        ),
        VocabConfig(min_count=1),
        ShardsConfig(block_steps=block_steps),
        seed=1,
        folder=target,
        progress=silent,
    )
    ray.shutdown()
