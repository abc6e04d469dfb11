"""An invented outcome of a run, for the last screen."""

from pathlib import Path

from elmwright.jobs.checkpoints.contents import TrainingResult
from elmwright.jobs.publishing.publish import Published
from elmwright.jobs.stages.closing import CorpusOutcome, Outcome
from tests.support import saved

RESULT = TrainingResult(
    step=1000,
    checkpoint="step-00001000",
    checkpoint_sha256="0" * 64,
    evaluation={
        "heldout": saved.score(
            perplexity=146.65,
            forward_perplexity=150.2,
            backward_perplexity=143.2,
            tokens=24310,
            unk_share=0.0231,
        )
    },
)


def outcome(folder: Path, **changes: object) -> Outcome:
    root = folder / "runs" / "demo"
    known = {
        "run": "demo",
        "dir": str(root),
        "config_sha256": "0" * 64,
        "corpus": CorpusOutcome(
            path=str(root / "corpus"),
            report=str(root / "corpus" / "report.html"),
            fingerprint="f" * 64,
            vocabulary=20000,
            train_tokens=1_300_000,
            unigram_perplexity={"heldout": 539.1},
        ),
        "train_words": 1_212_345,
        "example": ("file", "open the file and read it"),
        "train": RESULT,
        "checkpoint": str(root / "train" / "checkpoints" / "step-00001000"),
        "tracking_uri": f"sqlite:///{root}/mlflow/mlflow.db",
        "bundle": str(root / "bundle"),
        "published": Published("demo", 1, "candidate", "0" * 64, "sqlite:///mlflow/mlflow.db"),
    }
    return Outcome(**{**known, **changes})  # type: ignore[arg-type]
