"""The `state_dict` of a task model without the biLM that it did not change.

A frozen biLM has its own folder, and would make each file of a task model hundreds of megabytes
large. In its place the state has a digest, so that a state is not loaded beside another biLM.
"""

import hashlib
from typing import Any

import numpy as np
import torch

from elmwright.model.bilm import BiLM
from elmwright.pipeline.errors import UserError

BILM, DIGEST = "bilm.", "bilm_digest"
SMALL = 1 << 16
"""Numbers of a parameter that is part of the digest: biases and characters tell models apart."""


def versions(bilm: BiLM) -> list[int]:
    """Numbers that change when parameters are changed in place, as by an optimiser."""
    return [0 if p.is_inference() else p._version for p in bilm.parameters()]


def digest_of(bilm: BiLM) -> torch.Tensor:
    """16 bytes that tell this biLM from others."""
    digest = hashlib.sha256(repr(bilm.config).encode())
    for name, parameter in bilm.named_parameters():
        if parameter.numel() <= SMALL:
            digest.update(name.encode())
            digest.update(parameter.detach().float().cpu().contiguous().numpy().data)
    return torch.from_numpy(np.frombuffer(digest.digest()[:16], np.uint8).copy())


def leave_out(state: dict[str, Any], prefix: str, digest: torch.Tensor) -> None:
    """Put the digest of the biLM in its place."""
    for name in [name for name in state if name.startswith(prefix + BILM)]:
        del state[name]
    state[prefix + DIGEST] = digest


def left_out(state: dict[str, Any], prefix: str, digest: torch.Tensor) -> str:
    """What the names of the biLM's parameters begin with, if a state has none of them.

    The digest is removed. If it is another one, the state is refused.
    """
    saved = state.pop(prefix + DIGEST, None)
    if any(name.startswith(prefix + BILM) for name in state):
        return ""
    if saved is not None and not torch.equal(saved.cpu(), digest):
        raise UserError(
            "model-invalid",
            "this state was saved beside another biLM, which is not part of it; open the model "
            "folder that it was trained with",
        )
    return prefix + BILM


def forgive_left_out(module: Any, incompatible: Any) -> None:
    """Do not miss parameters that were left out on purpose; a hook of `load_state_dict`."""
    if module._left_out:
        names = [name for name in incompatible.missing_keys if name.startswith(module._left_out)]
        for name in names:
            incompatible.missing_keys.remove(name)
