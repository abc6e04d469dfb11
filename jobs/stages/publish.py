"""The stage `publish`: a bundle to a version in the registry."""

from collections.abc import Collection

from elmwright.jobs.bundles.bundle import verify_bundle
from elmwright.jobs.publishing.publish import is_published, publish
from elmwright.jobs.stages.places import check_tracking
from elmwright.jobs.stages.problems import Problems
from elmwright.jobs.stages.stage import Run
from elmwright.jobs.terminal.console import Console
from elmwright.jobs.terminal.signals import Stop, resumable
from elmwright.jobs.tracking.tracker import Tracker, is_caught_up
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.format.manifest import Manifest


class Publish:
    """Publishes the bundle of a run."""

    name = "publish"
    uses_ray = False

    def is_done(self, run: Run) -> bool:
        return is_published(run.config, run.folder) and is_caught_up(run.config, run.folder)

    def input_damage(self, run: Run) -> str:
        try:
            verify_bundle(run.folder.bundle)
        except UserError as error:
            return f"the bundle is written again: {error}"
        return ""

    def check(self, run: Run, pending: Collection[str], problems: Problems) -> None:
        if self.name in pending and "train" not in pending:  # which checks it, too
            problems.catch(check_tracking, run.config, run.folder)

    def run(self, run: Run, console: Console, _stop: Stop) -> None:
        with resumable("before the model was published; the same command publishes it"):
            _catch_up(run)
            version = publish(run.config, run.folder, console.progress)
        console.say(
            f"Registered {version.name} version {version.version}, alias {version.alias!r}."
        )


def _catch_up(run: Run) -> None:
    """Send the rest of the journal to MLflow, whose server may have been down."""
    config, folder = run.config, run.folder
    if is_caught_up(config, folder):
        return
    tracker = Tracker(config, folder, Manifest.load(folder.corpus))
    tracker.start()
    problem = tracker.finish("FINISHED")
    if problem:
        raise UserError(
            "tracking-server",
            f"{problem}; the bundle is safe in {folder.bundle}: run the same command again when "
            "the server answers",
        )
