"""The records of a journal: one dataclass per kind, with the fields of its JSON object.

A record is created when it happens, and takes its time from the clock at that moment. What was read
from a journal can be damaged or from a newer version: `parse_record` returns None for a record that
lacks what readers use, and a plain `Record` for a kind that this version does not know.
"""

import time
from dataclasses import dataclass, field
from typing import Any, ClassVar

from elmwright.pipeline.records import from_data, to_data

LARGEST = 1 << 53
"""The largest whole number that a record may hold: floats are exact up to here."""


def _now() -> int:
    return int(time.time() * 1000)


@dataclass(frozen=True, kw_only=True)
class Record:
    """What all records have; also a record of a kind that is not known here."""

    kind: ClassVar[str] = ""
    """Its name in the journal."""
    step: int
    """Updates made."""
    time: int = field(default_factory=_now)
    """When it happened, in milliseconds since 1970."""

    def __post_init__(self) -> None:
        if not (0 <= self.step < LARGEST and 0 <= self.time < LARGEST):
            raise ValueError("a step or time out of range")

    @property
    def identity(self) -> str:
        """Tells this record from others of its kind and step that are not repetitions of it."""
        return ""


@dataclass(frozen=True, kw_only=True)
class AttemptRecord(Record):
    """A record that belongs to one attempt: another attempt writes it again."""

    attempt: int

    @property
    def identity(self) -> str:
        return str(self.attempt)


@dataclass(frozen=True, kw_only=True)
class Begin(AttemptRecord):
    """An attempt begins at this step."""

    kind = "begin"


@dataclass(frozen=True, kw_only=True)
class StepDone(AttemptRecord):
    """One of the first steps of an attempt is done."""

    kind = "step"


@dataclass(frozen=True, kw_only=True)
class ValuesRecord(Record):
    """A record of numbers, by the keys of metrics.py."""

    values: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Metrics(ValuesRecord):
    """What was measured of the steps since the last record of this kind."""

    kind = "metrics"


@dataclass(frozen=True, kw_only=True)
class Evaluation(ValuesRecord):
    """The scores of held-out sets."""

    kind = "eval"


@dataclass(frozen=True, kw_only=True)
class FinalEvaluation(ValuesRecord):
    """The scores of the checkpoint that training ended with."""

    kind = "final"


@dataclass(frozen=True, kw_only=True)
class Scoring(Record):
    """How far the last evaluation is."""

    kind = "scoring"
    tokens: int
    """Tokens that will be scored, about."""
    done: int = 0
    """Tokens of them that are scored."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tokens <= 0:
            raise ValueError("nothing to score")

    @property
    def identity(self) -> str:
        return str(self.done)


@dataclass(frozen=True, kw_only=True)
class CheckpointSaved(Record):
    """A checkpoint was written and verified."""

    kind = "checkpoint"
    path: str
    """Relative to the run's folder, so that a run can be moved."""
    sha256: str
    """Digest of model.safetensors."""
    perplexity: dict[str, float]
    """Mean held-out perplexity by split, where it was computed at this step."""

    @property
    def identity(self) -> str:
        return self.sha256


@dataclass(frozen=True, kw_only=True)
class CheckpointPruned(Record):
    """The checkpoint of this step is removed."""

    kind = "pruned"


@dataclass(frozen=True, kw_only=True)
class WarningGiven(Record):
    """A sentence that the terminal shows."""

    kind = "warning"
    text: str

    @property
    def identity(self) -> str:
        return self.text


KINDS: dict[str, type[Record]] = {
    cls.kind: cls
    for cls in (
        Begin,
        StepDone,
        Metrics,
        Evaluation,
        FinalEvaluation,
        Scoring,
        CheckpointSaved,
        CheckpointPruned,
        WarningGiven,
    )
}


def record_data(record: Record) -> dict[str, Any]:
    """The JSON object of a record."""
    return {"kind": record.kind, **to_data(record)}


def parse_record(data: object) -> Record | None:
    """The record of a JSON value; None where there is none."""
    if not isinstance(data, dict) or not isinstance(data.get("kind"), str) or "time" not in data:
        return None
    try:
        return from_data(KINDS.get(data["kind"], Record), data, ignore_unknown=True, finite=False)
    except ValueError:
        return None
