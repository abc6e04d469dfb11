"""A run's folder with all that a person looks at, made without training: a journal, a report."""

import math
from pathlib import Path
from typing import Any

from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.config.toml_file import load_config, to_dict
from elmwright.jobs.rundir.journal import Journal
from elmwright.jobs.rundir.journal_records import (
    CheckpointPruned,
    CheckpointSaved,
    Evaluation,
    FinalEvaluation,
    Metrics,
)
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.pipeline.storage.files import at
from tests.support.tiny import manifest, write_config, write_text

SHA = "ab" * 32


def write_run(home: Path, steps: int = 100, **changes: Any) -> tuple[RunConfig, RunFolder]:
    """A run in `home`/run with a journal of `steps` steps and a checkpoint every 20."""
    text = write_text(home / "text.txt", 2)
    config = load_config(str(write_config(home, text, **changes)))
    folder = RunFolder.of(config)
    Path(folder.corpus).mkdir(parents=True)
    manifest().save(folder.corpus)
    Path(folder.corpus, "report.html").write_text("<h1>What the corpus is</h1>")
    at(folder.config).write_json(to_dict(config))
    write_journal(folder, range(2, steps + 1, 2), last=steps)
    return config, folder


def write_journal(folder: RunFolder, steps: range, last: int = 0) -> None:
    """What rank 0 of a training writes; its end at step `last`."""
    journal = Journal(folder.journal)
    for step in steps:
        journal.write(Metrics(step=step, values=_metrics(step)))
        if step % 20 == 0:
            scores = _scores(step)
            journal.write(
                Evaluation(step=step, values={f"heldout/{k}": v for k, v in scores.items()})
            )
            where = f"{folder.checkpoints}/step-{step:08d}"
            found = {"heldout": scores["fresh_perplexity"]}
            journal.write(
                CheckpointSaved(
                    step=step, path=where, sha256=SHA, perplexity=found, perplexity_states="fresh"
                )
            )
            if step > 60:
                journal.write(CheckpointPruned(step=step - 60))
    if last:
        final = {f"final/heldout/{name}": value for name, value in _scores(last).items()}
        journal.write(FinalEvaluation(step=last, values=final))
    journal.close()


def _metrics(step: int) -> dict[str, float]:
    """As the loop logs them, with the same names."""
    return {
        "train/loss": 2 + 5 * math.exp(-step / 30) + 0.1 * math.sin(step),
        "train/gradient_norm": 1 + 1 / step,
        "train/lr": 0.01 * (1 - step / 200),
        "train/softmax_mb_exchanged": 0.0,
        "train/dense_mb_exchanged": 0.0,
        "train/skipped_updates": 0,
        "time/load_share": 0.1,
        "time/compute_share": 0.8 + 0.01 * math.sin(step),
        "time/exchange_share": 0.1 - 0.01 * math.sin(step),
        "train/tokens_per_s": 4000 + 100 * math.cos(step),
        "train/flops_per_s": 2e9 + 1e8 * math.cos(step),
        "train/flop_utilisation": 0.3 + 0.02 * math.cos(step),
        "system/process_cpus": 1 + 0.1 * math.sin(step),
        "system/process_memory_mb": 500 + step,
        "system/machine_load": 2.0 + 0.1 * math.sin(step),
        "system/machine_memory_used_share": 0.3,
    }


def _scores(step: int) -> dict[str, float]:
    loss = 2.2 + 4 * math.exp(-step / 30)
    return {
        "fresh_perplexity": math.exp(loss),
        "fresh_bits_per_character": loss / 3,
        "fresh_forward_perplexity": math.exp(loss + 0.01),
        "fresh_backward_perplexity": math.exp(loss - 0.01),
        "perplexity": math.exp(loss - 0.02),
        "tokens": 400,
        "unk_share": 0.01,
    }
