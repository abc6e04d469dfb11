"""Which settings of a run must not change after its training has begun."""

import json
from collections.abc import Mapping
from typing import Any

from elmwright.jobs.config.sections import RESUMABLE, TRAINING_SECTIONS


def changed_settings(saved: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """One sentence with every setting that changed and must not; empty if there is none."""
    differing = []
    for section in ("run", *TRAINING_SECTIONS):
        for key, value in now[section].items():
            name, before = f"{section}.{key}", saved[section].get(key, value)
            is_fixed = key == "seed" if section == "run" else name not in RESUMABLE
            if is_fixed and value != before:
                differing.append(
                    f"{name} is {json.dumps(value)}, but the run was started with "
                    f"{json.dumps(before)}"
                )
    if not differing:
        return ""
    back = "it" if len(differing) == 1 else "them"
    return f"{'; '.join(differing)}; give the run another run.name, or set {back} back"
