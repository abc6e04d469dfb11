"""`elmwright.Elmo`: the ELMo layer, opened by any name of a model.

The layer itself (`model/inference/elmo.py`) reads folders and knows no registry. Here a MODEL (a
bundle, a checkpoint, `models:/name@alias`, a bilm folder) becomes a verified folder first, so that
a notebook needs one line for any of them.
"""

from pathlib import Path
from typing import Any

import torch

from elmwright.jobs.registry.resolve import resolve
from elmwright.model.inference import elmo
from elmwright.pipeline.errors import UserError


class Elmo(elmo.Elmo):
    """`elmwright.model.inference.elmo.Elmo` whose `from_pretrained` takes any MODEL."""

    @classmethod
    def from_pretrained(
        cls, folder: Path | str, *, device: torch.device | str = "cpu", **options: Any
    ) -> "Elmo":
        """`folder` is any MODEL, `device` also "auto"; `options` are those of the layer, and

        `tracking_uri`: where a `models:/` URI is looked up (by default what MLflow itself would
        use, MLFLOW_TRACKING_URI first);
        `require_signature`: a public key that the bundle must be signed with.
        """
        found = resolve(
            str(folder), options.pop("tracking_uri", ""), options.pop("require_signature", "")
        )
        opened = super().from_pretrained(found, device=choose_device(str(device)), **options)
        assert isinstance(opened, cls)  # noqa: S101 - for the type checker
        return opened


def choose_device(name: str) -> str:
    """`auto` is a GPU where there is one; a device that was asked for and is not there, or is none,
    is an error."""
    there = torch.cuda.is_available()
    if name == "auto":
        return "cuda" if there else "cpu"
    if name.partition(":")[0] == "cuda" and not there:
        raise UserError(
            "device", "there is no GPU that torch can use here; take --device cpu (or auto)"
        )
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0][:100]
        raise UserError(
            "device",
            f"torch has no device {name!r} here ({reason}); take cpu, cuda, cuda:N or auto",
        ) from error
    return name
