"""The token of a Ray cluster: where it comes from, and that it is one. Never shown."""

import os
import re
from pathlib import Path

from elmwright.jobs.runbook.target import Target
from elmwright.pipeline.errors import UserError

DEFAULT_TOKEN = Path("~/.ray/auth_token")


def find_token(target: Target) -> tuple[str, str]:
    """The token for a cluster, and where it came from; both empty if there is none."""
    if not target.token_file and os.environ.get("RAY_AUTH_TOKEN"):
        return _token(os.environ["RAY_AUTH_TOKEN"], "RAY_AUTH_TOKEN"), "RAY_AUTH_TOKEN"
    path = target.token_file or os.environ.get("RAY_AUTH_TOKEN_PATH") or str(DEFAULT_TOKEN)
    try:
        # Any byte becomes some sign here; whether they make a token is looked at next.
        return _token(Path(path).expanduser().read_text(encoding="latin-1"), path), path
    except OSError:
        return "", path


def _token(text: str, where: str) -> str:
    """What may go into a header; the text itself is never shown."""
    token = text.strip()
    if token and not re.fullmatch(r"[!-~]+", token):
        raise UserError(
            "secret",
            f"{where} does not hold a token: that is one word of ASCII letters, digits and signs "
            "on a line of its own ('ray get-auth-token' on the cluster's head prints it)",
        )
    return token
