"""Finds the corpus that a user names by a folder, a URL or a run."""

from elmwright.jobs.runbook.find_run import find_run, is_run
from elmwright.jobs.terminal.wording import nearby
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.storage.files import at, join


def corpus_of(text: str) -> str:
    """The corpus folder that `text` names; `UserError` if it has no finished corpus."""
    # A checkpoint has a MANIFEST.json, too, and a state.json.
    if at(join(text, "MANIFEST.json")).exists() and not at(join(text, "state.json")).exists():
        return text
    if at(join(text, "corpus", "MANIFEST.json")).exists():
        return join(text, "corpus")
    if at(text).is_folder() and not is_run(text):
        raise UserError(
            "corpus-missing",
            f"{text} holds no finished corpus (no MANIFEST.json of a corpus); build it with "
            "'elmwright corpus'",
        )
    folder = find_run(text)
    if not at(join(folder.corpus, "MANIFEST.json")).exists():
        raise UserError(
            "corpus-missing",
            f"the run {nearby(folder.root)} has no finished corpus yet; build it with "
            "'elmwright corpus'",
        )
    return folder.corpus
