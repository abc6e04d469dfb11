"""The records of a journal: one dataclass per kind, with the fields of its JSON object.

A record takes its time from the clock when it is created. A record that was read from a journal may
be damaged or from a newer version: `parse_record` returns None if it lacks a field that readers
use, and a plain `Record` for an unknown kind.
"""

import time
from dataclasses import dataclass, field
from typing import ClassVar

from elmwright.jobs.rundir.metrics import Regime
from elmwright.pipeline.records import from_data

LARGEST = 1 << 53
"""Whole numbers in a record are smaller than this: floats are exact up to here."""
KINDS: dict[str, type["Record"]] = {}
"""The class of each kind."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """The fields of every record. A record of an unknown kind has only these."""

    kind: ClassVar[str] = ""
    """Its name in the journal."""
    identified_by: ClassVar[str] = ""
    """The field that distinguishes records of the same kind and step. Without one, a second record
    of the step is a repetition."""
    step: int
    """Updates made."""
    time: int = field(default_factory=lambda: int(time.time() * 1000))
    """When it happened, in milliseconds since 1970."""

    def __init_subclass__(cls) -> None:
        if cls.kind:
            KINDS[cls.kind] = cls

    def __post_init__(self) -> None:
        if not (0 <= self.step < LARGEST and 0 <= self.time < LARGEST):
            raise ValueError("a step or time out of range")

    @property
    def identity(self) -> str:
        """The value of the field that identifies the record."""
        return str(getattr(self, self.identified_by)) if self.identified_by else ""


@dataclass(frozen=True, kw_only=True)
class Begin(Record):
    """An attempt begins at this step."""

    kind = "begin"
    identified_by = "attempt"
    attempt: int


@dataclass(frozen=True, kw_only=True)
class StepDone(Record):
    """One of the first steps of an attempt is done."""

    kind = "step"
    identified_by = "attempt"
    attempt: int


@dataclass(frozen=True, kw_only=True)
class ValuesRecord(Record):
    """A record of numbers, by the keys of metrics.py."""

    values: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Metrics(ValuesRecord):
    """Measurements of the steps since the last record of this kind."""

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
    """The progress of the last evaluation."""

    kind = "scoring"
    identified_by = "done"
    tokens: int
    """Roughly how many tokens will be scored."""
    done: int = 0
    """Tokens scored so far."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tokens <= 0:
            raise ValueError("nothing to score")


@dataclass(frozen=True, kw_only=True)
class CheckpointSaved(Record):
    """A checkpoint was written and verified."""

    kind = "checkpoint"
    identified_by = "sha256"
    path: str
    """Relative to the run's folder, so that a run can be moved."""
    sha256: str
    """Digest of model.safetensors."""
    perplexity: dict[str, float]
    """Mean held-out perplexity by split, where it was computed at this step."""
    perplexity_states: Regime = "carried"
    """How the text was read for it. Versions that did not write this carried states over."""


@dataclass(frozen=True, kw_only=True)
class CheckpointPruned(Record):
    """The checkpoint of this step was removed."""

    kind = "pruned"


@dataclass(frozen=True, kw_only=True)
class NoteGiven(Record):
    """A sentence that the terminal shows."""

    kind = "note"
    identified_by = "text"
    text: str


@dataclass(frozen=True, kw_only=True)
class WarningGiven(Record):
    """A sentence that the terminal shows as a warning."""

    kind = "warning"
    identified_by = "text"
    text: str


def parse_record(data: object) -> Record | None:
    """The record in a JSON value; None if it is not a valid record."""
    if not isinstance(data, dict) or not isinstance(data.get("kind"), str) or "time" not in data:
        return None
    try:
        return from_data(KINDS.get(data["kind"], Record), data, ignore_unknown=True, finite=False)
    except ValueError:
        return None
