"""The stage `export`: writes the final checkpoint as a bundle, and reads it back to compare."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from elmwright.jobs.bundles.bundle import FILES, OPTIONAL, SUMS, is_whole
from elmwright.jobs.checkpoints.checkpoint import verify_checkpoint
from elmwright.jobs.checkpoints.contents import read_result
from elmwright.jobs.config.toml_file import to_dict
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.stages.problems import Problems
from elmwright.jobs.stages.stage import Run
from elmwright.jobs.stages.train import final_checkpoint
from elmwright.jobs.terminal.console import Console
from elmwright.jobs.terminal.signals import Stop, resumable
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.storage.files import at, join


class Export:
    """Writes the bundle of a run."""

    name = "export"
    uses_ray = False

    def is_done(self, run: Run) -> bool:
        folder = run.folder
        result = read_result(folder.result)
        if result is None or final_checkpoint(folder, result) is None:
            return False
        origin = at(folder.bundle / "provenance.json").read_json()
        if not origin or origin["checkpoint_sha256"] != result.checkpoint_sha256:
            return False
        is_same_card = _card_settings(origin["config"]) == _card_settings(to_dict(run.config))
        return is_same_card and is_whole(folder.bundle) and _has_copy_in_store(folder)

    def input_damage(self, run: Run) -> str:
        try:
            result = read_result(run.folder.result)
            info = final_checkpoint(run.folder, result) if result else None
            verify_checkpoint(info.path if info else run.folder.checkpoints)
        except UserError as error:
            return f"checkpoint skipped: {error}; training resumes from the one before"
        return ""

    def check(self, run: Run, pending: Collection[str], problems: Problems) -> None:
        if self.name in pending and run.folder.bundle.is_dir():
            problems.note(_bundle_problem(run.folder.bundle))

    def run(self, run: Run, console: Console, _stop: Stop) -> None:
        from elmwright.jobs.publishing.export import export

        with resumable("during the export; the same command starts it again"):
            checks = export(run.config, run.folder, console.progress)
            if run.folder.is_in_store:
                _copy_to_store(run.folder)
        console.say(f"Bundle written and checked: {checks}")


def _card_settings(settings: Mapping[str, Any]) -> list[Any]:
    """The settings of [export] on the model card. Nothing else on it can change."""
    export = settings["export"]
    return [export.get("name"), export.get("licence"), export.get("example", True)]


def _has_copy_in_store(folder: RunFolder) -> bool:
    """Whether the run's store has the same bundle; true for a run on a disk."""
    if not folder.is_in_store:
        return True
    sums = at(join(folder.root, "bundle", SUMS))
    return sums.exists() and sums.read_bytes() == (folder.bundle / SUMS).read_bytes()


def _copy_to_store(folder: RunFolder) -> None:
    """Copy the bundle to the run's store; the list of digests is last, and makes it valid."""
    target = join(folder.root, "bundle")
    for path in sorted(folder.bundle.iterdir(), key=lambda path: (path.name == SUMS, path.name)):
        at(join(target, path.name)).copy_from(at(path))


def _bundle_problem(bundle: Path) -> str:
    """A sentence about a file that export would delete with the old bundle; empty if none."""
    for path in sorted(bundle.iterdir()):
        if path.name not in (*FILES, *OPTIONAL, SUMS) or path.is_dir():
            return f"{path} does not belong to a bundle, so {bundle} is not replaced; move it away"
    return ""
