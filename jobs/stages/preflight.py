"""Finds mistakes that a run would refuse later, before anything is started.

`elmwright run` and `elmwright check` call `preflight`, which asks each stage. Nothing is written.
It takes well under a second, plus the time of MLflow or an object store to answer and, if
`train.init_from` names a model, of verifying that model.

A problem is a sentence: what is wrong; what to do. Problems that show only during the work (a
cluster that loses machines, a vocabulary too small for sentencepiece) are reported by the stage.
"""

from collections.abc import Collection, Sequence

from elmwright.jobs.stages.places import check_places
from elmwright.jobs.stages.problems import Problems
from elmwright.jobs.stages.stage import Run, Stage


def preflight(run: Run, stages: Sequence[Stage], pending: Collection[str]) -> Problems:
    """The problems that these stages can already know of."""
    problems = Problems()
    if pending:
        check_places(problems, run.config, run.folder)
    for stage in stages:
        stage.check(run, pending, problems)
    return problems
