"""The corpus folder that a user means by a folder, a URL or a run."""

from pathlib import Path

from elmwright.jobs.runbook.find_run import find_run, is_run
from elmwright.jobs.terminal.wording import nearby
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.storage.files import exists, is_url, join


def corpus_of(text: str) -> str:
    """The corpus folder that is meant by a corpus folder, a URL, or a RUN."""
    if exists(join(text, "MANIFEST.json")) and not exists(join(text, "state.json")):
        return text
    if exists(join(text, "corpus", "MANIFEST.json")):
        return join(text, "corpus")
    if is_url(text) or (Path(text).is_dir() and not is_run(text)):
        raise UserError(
            "corpus-missing",
            f"{text} holds no finished corpus (MANIFEST.json is missing); build it with "
            "'elmwright corpus'",
        )
    folder = find_run(text)
    if not exists(join(folder.corpus, "MANIFEST.json")):
        raise UserError(
            "corpus-missing",
            f"the run {nearby(folder.root)} has no finished corpus yet; build it with "
            "'elmwright corpus'",
        )
    return folder.corpus
