"""The folder of a run that has just been started."""

import json
from pathlib import Path
from typing import Any

from elmwright.jobs.config.toml_file import load_config, to_dict
from elmwright.jobs.rundir.layout import RunFolder


def start(config: Path, *overrides: str) -> Path:
    """The folder of a run as its first moments leave it."""
    loaded = load_config(str(config), list(overrides))
    folder = Path(RunFolder.of(loaded).root)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(to_dict(loaded)))
    return folder


def write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
