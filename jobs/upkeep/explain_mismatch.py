"""Why repeated training steps gave other weights: what the journals and the checkpoints say.

Exact resume needs the same number of processes and threads, the same kind of processor and the same
libraries. A replay trains with the recorded processes and threads, so those can only differ if the
run itself was resumed with others between the two checkpoints.
"""

import math
import re
from dataclasses import dataclass

from elmwright.jobs.checkpoints.contents import CheckpointState
from elmwright.jobs.config.sections import RunConfig, TrainSection
from elmwright.jobs.rundir.journal_lines import read_journal
from elmwright.jobs.rundir.journal_records import Begin, Metrics
from elmwright.jobs.rundir.metrics import GRADIENT_NORM, LOSS

SETTINGS = ("processes", "threads", "device", "max_steps")
"""Settings of [train] that a resumed run may change, and that the weights depend on."""


@dataclass(frozen=True)
class LoggedDifference:
    """The first logged step that has another loss or gradient norm in a replay."""

    step: int
    metric: str
    """loss or gradient norm."""
    before: float
    """Its value in the run."""
    now: float
    """Its value in the replay."""


@dataclass(frozen=True)
class LoggedSteps:
    """The steps that the journals of a run and of its replay both have."""

    compared: int
    """Their number."""
    first: LoggedDifference | None
    """The first that differs."""


def compare_journals(journal: str, replayed: str, steps: range) -> LoggedSteps:
    """Compare the losses and gradient norms of these steps in two journals."""
    before, now = _logged(journal, steps), _logged(replayed, steps)
    common = sorted(before.keys() & now.keys())
    for step in common:
        for metric in (LOSS, GRADIENT_NORM):
            values = before[step].get(metric.key), now[step].get(metric.key)
            if values[0] is None or values[1] is None or _same(values[0], values[1]):
                continue
            first = LoggedDifference(step, metric.title, values[0], values[1])
            return LoggedSteps(len(common), first)
    return LoggedSteps(len(common), None)


def _logged(journal: str, steps: range) -> dict[int, dict[str, float]]:
    records = (record for record, _ in read_journal(journal, 0))
    return {r.step: r.values for r in records if isinstance(r, Metrics) and r.step in steps}


def _same(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))


def resumed_within(journal: str, steps: range) -> bool:
    """Whether the run was resumed at one of these steps."""
    records = (record for record, _ in read_journal(journal, 0))
    return any(isinstance(record, Begin) and record.step in steps for record in records)


@dataclass(frozen=True)
class Circumstances:
    """What the weights of a training depend on, besides its data and its settings."""

    train: TrainSection
    machine: str
    """A description of the machine, as checkpoints have it."""
    libraries: dict[str, str]
    """Versions; empty if unknown."""

    @classmethod
    def of(cls, config: RunConfig, state: CheckpointState) -> "Circumstances":
        return cls(config.train, state.machine, state.libraries)


def changes(before: Circumstances, now: Circumstances) -> list[str]:
    """What differs, each a part of a sentence."""
    found = []
    for name in SETTINGS:
        old, new = getattr(before.train, name), getattr(now.train, name)
        if old != new:
            found.append(f"train.{name} was {old} and then {new}")
    old, new = _processor(before.machine), _processor(now.machine)
    if old and old != new:
        found.append(f"the processor was {old} and then {new}")
    for name, version in before.libraries.items():
        other = now.libraries.get(name, "missing")
        if other != version:
            found.append(f"{name} was {version} and then {other}")
    return found


def _processor(machine: str) -> str:
    """The description of a machine without the number of its cores, which changes nothing."""
    return re.sub(r"^\d+ × ", "", machine)


def likely_reason(found: list[str], logged: LoggedSteps, *, knows_libraries: bool) -> str:
    """The end of the sentence about a mismatch; `found` are `changes`."""
    if found:
        return f"the likely reason: {'; '.join(found)}"
    if not knows_libraries:
        return (
            "the likely reason: other versions of torch or numpy, which the checkpoint does not "
            "record; threads, processes and processor are the same"
        )
    same = "threads, processes, processor and libraries are the same"
    if logged.compared and logged.first is None:
        return f"{same}, so the checkpoint may have been changed after it was written"
    return f"{same}: please report this"
