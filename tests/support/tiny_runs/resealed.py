"""A checkpoint that was changed by hand, with a manifest that vouches for the change."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from elmwright.jobs.checkpoints.checkpoint import MANIFEST, folder_name
from elmwright.pipeline.format.manifest import canonical
from elmwright.pipeline.storage.disk import sha256_bytes


def checkpoint(run: Path, step: int) -> Path:
    """The folder of a run's checkpoint."""
    return run / "train" / "checkpoints" / folder_name(step)


def change_weight(checkpoint: Path, name: str, by: float) -> None:
    """Add a number to the first number of a tensor of the model."""
    path = checkpoint / "model.safetensors"
    tensors = load_file(path)
    tensors[name].reshape(-1)[0] += by
    save_file(tensors, path)
    reseal(checkpoint)


def change_state(checkpoint: Path, changes: Mapping[str, Any]) -> None:
    """Change fields of state.json."""
    path = checkpoint / "state.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    reseal(checkpoint)


def change_train(checkpoint: Path, changes: Mapping[str, Any]) -> None:
    """Change settings of [train] in config.json."""
    path = checkpoint / "config.json"
    config = json.loads(path.read_text())
    config["run_config"]["train"].update(changes)
    path.write_text(json.dumps(config))
    reseal(checkpoint)


def reseal(checkpoint: Path) -> None:
    """Write sizes and digests of the files as they are now into the manifest."""
    path = checkpoint / MANIFEST
    manifest = json.loads(path.read_text())
    del manifest["sha256"]
    for name in manifest["files"]:
        data = (checkpoint / name).read_bytes()
        manifest["files"][name] = {"bytes": len(data), "sha256": sha256_bytes(data)}
    path.write_text(json.dumps(manifest | {"sha256": sha256_bytes(canonical(manifest))}))
