"""The stage `corpus`: Ray tasks turn text into shards, a vocabulary and a manifest."""

from collections.abc import Callable, Collection

from elmwright.jobs.checkpoints.checkpoint import list_checkpoints
from elmwright.jobs.cluster.connection import machines_for
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.stages.corpus_inputs import check_inputs
from elmwright.jobs.stages.problems import Problems
from elmwright.jobs.stages.stage import Run
from elmwright.jobs.terminal.console import Console
from elmwright.jobs.terminal.listing import corpus_lines
from elmwright.jobs.terminal.signals import AGAIN, Stop
from elmwright.pipeline.build.driver import build_corpus
from elmwright.pipeline.build.ray_tasks import RECIPE
from elmwright.pipeline.build.up_to_date import corpus_key, current_manifest
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.format.manifest import Manifest, finished_corpus
from elmwright.pipeline.progress import plural
from elmwright.pipeline.storage.files import join


def current_corpus(run: Run) -> Manifest | None:
    """The corpus of a run, if it is complete and made from the current sources and settings.

    A run with checkpoints also has one that an earlier recipe made of them: it continues on the
    text that it was trained on.
    """
    return _found(run, RECIPE) or kept_corpus(run)


def kept_corpus(run: Run) -> Manifest | None:
    """The complete corpus that an earlier recipe made, if the run was trained on it."""
    saved = finished_corpus(run.folder.corpus)
    if saved is None or not list_checkpoints(run.folder.checkpoints):
        return None
    for recipe in range(RECIPE - 1, 0, -1):
        if saved.key == _key(run, recipe):
            return _found(run, recipe)
    return None


def kept_sentence(run: Run) -> str:
    """A sentence about a corpus that is kept although its rules are not today's; else empty."""
    if _found(run, RECIPE) is not None or kept_corpus(run) is None:
        return ""
    return (
        "This run keeps the corpus that it was trained on, which an earlier version built by other "
        "rules than today's. elmwright corpus CONFIG --force builds it anew, but then the "
        "checkpoints no longer fit."
    )


def _key(run: Run, recipe: int) -> str:
    config = run.config
    return corpus_key(config.corpus, config.vocab, config.shards, config.run.seed, recipe)


def _found(run: Run, recipe: int) -> Manifest | None:
    config = run.config
    key = _key(run, recipe)
    return current_manifest(run.folder.corpus, key, config.corpus, config.vocab.file)


class Corpus:
    """Builds the corpus of a run."""

    name = "corpus"
    uses_ray = True

    def __init__(
        self, find: Callable[[Run], Manifest | None] = current_corpus, *, force: bool = False
    ) -> None:
        """`find` returns the corpus of a run if it is up to date, else None. With `force`, only a
        corpus of today's recipe is, and one that was trained on may be replaced."""
        self._find = (lambda run: _found(run, RECIPE)) if force else find
        self._force = force

    def is_done(self, run: Run) -> bool:
        return self._find(run) is not None

    def input_damage(self, _run: Run) -> str:
        return ""  # the first stage: it uses no output of another one that could be damaged

    def check(self, run: Run, pending: Collection[str], problems: Problems) -> None:
        if self.name in pending:
            if not self._force:
                problems.catch(check_not_trained_on, run.folder)
            check_inputs(problems, run.config, run.folder)

    def run(self, run: Run, console: Console, stop: Stop) -> None:
        config, folder = run.config, run.folder
        with (
            stop.saving(f"stopping: running tasks may finish {AGAIN}", console.say),
            machines_for(config, folder, gpu=False, stopped=stop.is_set, say=console.say),
        ):
            manifest = build_corpus(
                config.corpus,
                config.vocab,
                config.shards,
                seed=config.run.seed,
                folder=folder.corpus,
                progress=console.progress,
                stop=stop.is_set,
            )
            _report(manifest, run, console)


def _report(manifest: Manifest, run: Run, console: Console) -> None:
    """Print the statistics, and warn of empty held-out sets and unreadable records."""
    config, folder = run.config, run.folder
    console.say("\n" + "\n".join(corpus_lines(manifest, console.width)) + "\n")
    for name in config.corpus.heldout.keys() - manifest.splits.keys():
        console.warn(
            f"the held-out set {name!r} is empty: there are too few documents that are not "
            "copies of others; set a larger share in corpus.heldout"
        )
    broken = {step.rule: step.documents for step in manifest.funnel}.get("broken", 0)
    if broken:
        console.warn(
            f"{plural(broken, 'record or file', 'records or files')} could not be read and "
            f"{'was' if broken == 1 else 'were'} left out; "
            f"{join(folder.corpus, 'quarantine.jsonl')} says which and why"
        )


def check_not_trained_on(folder: RunFolder) -> None:
    """Refuse to replace a corpus that was trained on.

    If it is missing or damaged, it is rebuilt, and compared before training continues.
    """
    infos = list_checkpoints(folder.checkpoints)
    if infos and finished_corpus(folder.corpus) is not None:
        raise UserError(
            "run-changed",
            f"the sources or the [corpus], [vocab] or [shards] settings have changed since "
            f"{infos[-1].path} was trained on this run's corpus; give the run another run.name, "
            "or undo the change",
        )
