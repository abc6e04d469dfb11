"""Passwords and tokens of URLs do not go where others read: screens, logs, lock files, MLflow.

`hide` takes any text, a URL or a whole traceback, and leaves the rest of it as it is.
"""

import re
from typing import Any

SECRET = re.compile(
    r"SECRET|TOKEN|PASS|PWD|CREDENTIAL|KEY|AUTH|PRIVATE|COOKIE|SIGNATURE", re.IGNORECASE
)
"""A variable, or a key of a URL's query, with one of these in its name holds a secret."""
HIDDEN = "***"
# A password may hold what belongs escaped, "@" and "/" too; a port in front of a path is none.
_LOGIN = re.compile(
    r"""\b(?P<scheme>[a-z][a-z0-9+.-]*://)"""
    r"""(?P<user>[^\s/@:'"]*)(?P<password>:(?!\d{0,5}[/?\#])[^\s'"]*)?@""",
    re.IGNORECASE,
)
_QUERY = re.compile(r"""(?P<key>[?&;][^\s=&;'"]+)=(?P<value>[^\s&;'"]+)""")


def hide(text: str) -> str:
    """The text without passwords and tokens of the URLs in it; the name of a user stays."""
    if "://" not in text:
        return text
    return _QUERY.sub(_query, _LOGIN.sub(_login, text))


def _login(match: re.Match[str]) -> str:
    user = match["user"]
    # A web server takes a token in place of a name; a database wants a name.
    lone = len(match["password"] or "") < 2 and match["scheme"].lower().startswith("http")
    return f"{match['scheme']}{HIDDEN if lone and user else user}@"


def _query(match: re.Match[str]) -> str:
    return f"{match['key']}={HIDDEN}" if SECRET.search(match["key"]) else match[0]


def hide_all(data: Any) -> Any:
    """The same for every text inside lists and dictionaries."""
    if isinstance(data, str):
        return hide(data)
    if isinstance(data, dict):
        return {key: hide_all(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [hide_all(value) for value in data]
    return data
