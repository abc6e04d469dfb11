"""The token of a Ray cluster, which is never shown."""

import os
import re
from pathlib import Path

from elmwright.jobs.runbook.target import Target
from elmwright.pipeline.errors import UserError

DEFAULT_TOKEN = Path("~/.ray/auth_token")


def find_token(target: Target) -> tuple[str, str]:
    """The token for a cluster, and where it came from; an empty token if there is none."""
    where, text = "RAY_AUTH_TOKEN", os.environ.get("RAY_AUTH_TOKEN", "")
    if target.token_file or not text:
        where = target.token_file or os.environ.get("RAY_AUTH_TOKEN_PATH") or str(DEFAULT_TOKEN)
        try:
            # Latin-1 decodes any byte; the token is checked below.
            text = Path(where).expanduser().read_text(encoding="latin-1")
        except OSError:
            return "", where
    token = text.strip()
    if token and not re.fullmatch(r"[!-~]+", token):
        raise UserError(
            "secret",
            f"{where} does not contain a token, which is one word of ASCII letters, digits and "
            "signs on its own line ('ray get-auth-token' on the cluster's head prints it)",
        )
    return token, where
