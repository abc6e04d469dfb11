"""Keeps secrets out of configs, which are written to the run's folder, its bundle, MLflow and jobs.

A config with a password, token or signature in any string is refused with the name of the variable
to use instead. The message never repeats the secret.

Runs of earlier versions may have a secret in their config.json. They are still read, with a
warning, and the next `elmwright run` writes the file without it.
"""

import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any

from elmwright.jobs.secrets.hiding import hide, secret_in, secret_in_setting, store_all
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.storage.files import at

_WORDS = {
    "password": "a password",
    "token": "a token or key",
    "signature": "the signature of a signed URL",
}


def refuse_secrets(data: Any, where: str) -> None:
    """Refuse a config with a secret, naming its key and what to do instead."""
    for problem, advice in _secrets(data):
        raise UserError(
            "secret",
            f"{where}: {problem}, which would be written into the run's files; take it out of the "
            f"config and {advice}",
        )


def advise(data: Any, where: str) -> None:
    """Warn on stderr of a secret in a config that an earlier version saved."""
    for problem, advice in islice(_secrets(data), 1):
        print(
            f"warning: {where}: {problem} (saved by an earlier version); {advice}, and the next "
            "'elmwright run' takes it out of the file",
            file=sys.stderr,
        )


def _secrets(data: Any) -> Iterator[tuple[str, str]]:
    """Each secret in a config: a problem, and where to put the secret instead."""
    for key, text in texts(data):
        if kind := secret_in_setting(text):
            yield f"{key} holds {_WORDS[kind]}", instead(key, text)


def take_out_secrets(files: list[str]) -> list[str]:
    """Rewrite JSON files of a run without secrets; return the files that had one."""
    rewritten = []
    for file in files:
        data = at(file).read_json()
        if any(_secrets(data)):
            at(file).write_json(store_all(data))
            rewritten.append(file)
    return rewritten


def instead(key: str, text: str) -> str:
    """Advice where to put the secret of a setting."""
    scheme = text.strip().partition("://")[0].lower()
    store = {
        "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        "gs": "set GOOGLE_APPLICATION_CREDENTIALS to the file with the key",
    }.get(scheme)
    if store:
        return f"{store} in the environment"
    if key == "cluster.address":
        return "set RAY_AUTH_TOKEN in the environment"
    if not key.startswith("tracking."):
        return (
            "set it in the environment (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY for s3://, "
            "HTTPS_PROXY for a proxy), or fetch the file to a disk first"
        )
    if not scheme.startswith("http"):
        return "set MLFLOW_TRACKING_URI in the environment to the whole address, password included"
    if secret_in(text) == "password":
        return "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD in the environment"
    return (
        "set MLFLOW_TRACKING_TOKEN (or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD) in "
        "the environment"
    )


def texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Every string of a config, including names of keys, with its key."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict):
        for name, item in value.items():
            inside = f"{key}.{hide(str(name))}" if key else hide(str(name))
            if secret_in_setting(str(name)):
                yield key or "a section", str(name)
            else:
                yield from texts(item, inside)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from texts(item, key)
