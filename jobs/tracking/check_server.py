"""Is there an MLflow where the config says, and will it take us?

Asked before anything is started, in seconds, without importing MLflow.
"""

import base64
import os
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.parse import unquote, urlsplit
from urllib.request import Request, urlopen

from elmwright.jobs.secrets.hiding import secret_in, without_secret
from elmwright.pipeline.errors import UserError

ANSWER_SECONDS = 5.0
"""How long the server may take to answer before training starts without it."""


def check_driver(uri: str) -> None:
    """A database that is spoken to directly needs a package that speaks to it."""
    if uri.startswith(("http", "sqlite")):
        return
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    name = urlsplit(uri).scheme
    advice = "or give the address of an MLflow server (http://…)"
    try:
        make_url(uri).get_dialect().import_dbapi()
    except ImportError as error:
        raise UserError(
            "environment",
            f"an MLflow in {name}://… needs the package {error.name}, which is missing; install "
            f"it, name one that is there (as postgresql+psycopg2:// does), {advice}",
        ) from None
    except (ArgumentError, ValueError) as error:
        # SQLAlchemy's message has the whole of a URL that it cannot parse, even the password.
        why = f" ({error})" if "@" not in str(error) else ""
        raise UserError(
            "tracking-server", f"{name}://… is not a database that MLflow knows{why}; {advice}"
        ) from None


def check_server(uri: str) -> str | None:
    """Raise UserError if a tracking server refuses us; returns a sentence if it does not answer.

    A run need not wait for a server that does not answer: it gets everything when it is back.
    """
    if not uri.startswith("http"):
        check_driver(uri)
        return None
    try:
        request = _ask_of(uri)
        with urlopen(request, timeout=ANSWER_SECONDS):  # noqa: S310 - http or https, checked above
            return None
    except HTTPError as error:
        shown = without_secret(uri)
        if error.code in (401, 403):
            raise UserError(
                "tracking-server",
                f"MLflow at {shown} refuses us ({error.code} {error.reason}); set "
                "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, "
                "or start the server with this name in --allowed-hosts",
            ) from error
        if error.code == 404:
            raise UserError(
                "tracking-server", f"{shown} is not an MLflow server; check tracking.uri"
            ) from error
        reason = f"{error.code} {error.reason}"
    except OSError as error:
        reason = str(getattr(error, "reason", error))
    except (ValueError, HTTPException) as error:
        # The error may name a part of the address that belongs to a password.
        why = "" if secret_in(uri) else f" ({error})"
        raise UserError(
            "tracking-server", f"tracking.uri is not an address{why}; write it as http://HOST:5000"
        ) from None
    return (
        f"MLflow at {without_secret(uri)} does not answer ({reason}); what it misses is sent "
        "when it does"
    )


def _ask_of(uri: str) -> Request:
    """A small question to a tracking server, from whom it knows."""
    parts = urlsplit(uri)
    where = parts.netloc.rpartition("@")[2]
    path = f"{parts.path.rstrip('/')}/api/2.0/mlflow/experiments/search"
    request = Request(  # noqa: S310 - http or https
        f"{parts.scheme}://{where}{path}",
        b'{"max_results": 1}',
        {"Content-Type": "application/json"},
    )
    user = os.environ.get("MLFLOW_TRACKING_USERNAME") or unquote(parts.username or "")
    password = os.environ.get("MLFLOW_TRACKING_PASSWORD") or unquote(parts.password or "")
    token = os.environ.get("MLFLOW_TRACKING_TOKEN")
    if user:
        pair = base64.b64encode(f"{user}:{password}".encode()).decode()
        request.add_header("Authorization", f"Basic {pair}")
    elif token:
        request.add_header("Authorization", f"Bearer {token}")
    return request
