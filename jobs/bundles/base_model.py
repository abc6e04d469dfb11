"""What a fine-tuned model says of the model that it began as: its name, digest and sources."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elmwright.jobs.bundles.bundle import SUMS, digest
from elmwright.jobs.secrets.hiding import without_secret
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.records import from_data
from elmwright.pipeline.storage.files import at, join
from elmwright.pipeline.storage.untrusted import read_object


@dataclass(frozen=True)
class TextSource:
    """A source of text."""

    name: str
    licence: str = ""


@dataclass(frozen=True)
class BaseModel:
    """The model that training began with."""

    called: str
    """As the user named it: a folder, a run or a registered version."""
    name: str
    """What it calls itself, if it says so."""
    sha256: str
    """The digest of the bundle, or of the weights of another folder."""
    sources: tuple[TextSource, ...]
    """What it was trained on, the sources of its own base included. Empty if it does not say."""

    @property
    def title(self) -> str:
        """Its name for people."""
        last = self.called.rstrip("/").rpartition("/")[2]
        return self.called if self.called.startswith("models:/") else self.name or last


def base_model(called: str, folder: Path) -> BaseModel:
    """The base in a verified folder of any kind."""
    config: dict[str, Any] = {}
    earlier: tuple[TextSource, ...] = ()
    if (folder / "provenance.json").is_file():
        origin = read_object(folder / "provenance.json")
        config = _table(origin.get("config"))
        if origin.get("base"):
            earlier = read_base(folder / "provenance.json", origin["base"]).sources
    elif (folder / "config.json").is_file():
        config = _table(read_object(folder / "config.json").get("run_config"))
    entries = _table(config.get("corpus")).get("sources") or []
    sources = [_source(entry) for entry in entries if isinstance(entry, dict | str)]
    if (folder / SUMS).is_file():
        sha256 = digest(folder)
    else:
        (weights, *_) = [*folder.glob("model.safetensors"), *sorted(folder.glob("*.hdf5"))]
        sha256 = at(weights).sha256()
    name = str(_table(config.get("export")).get("name") or "")
    return BaseModel(
        without_secret(called), name, sha256, tuple(dict.fromkeys([*earlier, *sources]))
    )


def read_base(where: Path | str, content: Any) -> BaseModel:
    """A base that was written as data."""
    try:
        return from_data(BaseModel, content, ignore_unknown=True)
    except (ValueError, TypeError, RecursionError) as error:
        raise UserError(
            "file-damaged", f"{where} does not describe a base ({error!s:.200})"
        ) from error


def recorded_base(train: str) -> BaseModel | None:
    """The base of a run, as training wrote it to `base.json` when it began."""
    where = join(train, "base.json")
    content = at(where).read_json()
    return None if content is None else read_base(where, content)


def _table(content: Any) -> dict[str, Any]:
    return content if isinstance(content, dict) else {}


def _source(entry: dict[str, Any] | str) -> TextSource:
    if isinstance(entry, str):
        entry = {"path": entry}
    path = str(entry.get("path") or "").rstrip("/").rpartition("/")[2]
    return TextSource(str(entry.get("name") or path), str(entry.get("licence") or ""))
