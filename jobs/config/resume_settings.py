"""Which settings of a run must stay as they were when its training was begun."""

import json
from collections.abc import Mapping
from typing import Any

from elmwright.jobs.config.sections import RESUMABLE, TRAINING_SECTIONS


def changed_settings(saved: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Every setting that must be as it was when the run was begun and is not, in one sentence."""
    found = [
        (f"{section}.{key}", value, saved[section].get(key, value))
        for section in ("run", *TRAINING_SECTIONS)
        for key, value in now[section].items()
        if section != "run" or key == "seed"
    ]
    differing = [
        f"{name} is {json.dumps(value)}, but the run was begun with {json.dumps(before)}"
        for name, value, before in found
        if value != before and name not in RESUMABLE
    ]
    if not differing:
        return ""
    back = "it" if len(differing) == 1 else "them"
    return f"{'; '.join(differing)}; give the run another run.name, or set {back} back"
