"""What a run would refuse later, found before anything is started, and reported all at once.

`elmwright run` asks before the corpus is built, `elmwright check` whenever it is typed: both call
`preflight`, which asks each stage. Nothing is written. It takes well under a second, plus what
MLflow or an object store takes to answer and, where `train.init_from` names a model, what comparing
that with its digests takes.

A problem is a sentence: what is wrong; what to do. What cannot be known before the work is done (a
cluster that loses machines, a vocabulary that comes out too small for sentencepiece) is reported by
the stage that meets it.
"""

from collections.abc import Collection, Sequence

from elmwright.jobs.stages.places import check_places
from elmwright.jobs.stages.problems import Problems
from elmwright.jobs.stages.stage import Run, Stage


def preflight(run: Run, stages: Sequence[Stage], pending: Collection[str]) -> Problems:
    """What these stages would refuse for a reason that can be known now."""
    problems = Problems()
    if pending:
        check_places(problems, run.config, run.folder)
    for stage in stages:
        stage.check(run, pending, problems)
    return problems


def refuse_mistakes(run: Run, stages: Sequence[Stage], pending: Collection[str]) -> None:
    """Raise all problems as one error."""
    preflight(run, stages, pending).raise_all()
