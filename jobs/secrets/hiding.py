"""Finds secrets in a text, and removes them.

Passwords, tokens and signatures of URLs must not appear in files, on screens, in logs,
process lists, MLflow. `secret_in` decides whether a text contains one. The config (in_configs.py)
and submissions refuse such a text. The other functions remove the secret:

- `hide` takes any text, a URL or a whole traceback, and keeps the rest of it;
- `without_secret` takes one URL and returns it without the secret, so that it still works with
  credentials from the environment;
- `for_others` is `hide` for sentences, logs and tracebacks. It also removes values
  of secret environment variables, wherever they occur.
"""

import os
import re
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple
from urllib.parse import unquote

Kind = Literal["", "password", "token", "signature"]

SECRET = re.compile(
    r"SECRET|TOKEN|PASS|PWD|CREDENTIAL|KEY|AUTH|PRIVATE|COOKIE|SIGNATURE", re.IGNORECASE
)
"""Parts of the name of a variable, or of a key in a URL's query, whose value is a secret."""
HIDDEN = "***"
MIN_LENGTH = 6
"""Shorter secrets of the environment are not removed, because they could be ordinary words."""

_NOT_SECRET = re.compile(
    "(sslkey|ssl_key|authsource|authmechanism|passfile|require_auth|get_server_public_key)=.*"
    r"|authentication=(ActiveDirectory|Sql)\w*",
    re.IGNORECASE,
)
"""Keys in the query of a database URL that match `SECRET`, but name a file or a method."""
_SIGNED = re.compile(r"sig|.*SIGNATURE|X-(AMZ|GOOG)-.*|AWSAccessKeyId", re.IGNORECASE)
"""Keys of signed URLs: S3, Google, and Azure's shared access signatures."""
_VARIABLE = re.compile(
    ".*(PASSWORD|TOKEN|SECRET|ACCESS_KEY|CONNECTION_STRING)|AWS_ACCESS_KEY_ID", re.IGNORECASE
)
"""Variables whose value is a secret, or contains one after a key (Azure's connection strings)."""
_URL_VARIABLES = (
    "MLFLOW_TRACKING_URI MLFLOW_REGISTRY_URI MLFLOW_BACKEND_STORE_URI AWS_ENDPOINT_URL "
    "AWS_ENDPOINT_URL_S3 HTTP_PROXY HTTPS_PROXY ALL_PROXY http_proxy https_proxy all_proxy"
).split()
_EXAMPLES = {"elmwright", "mlflow", "postgres", "postgresql"}
"""Passwords in examples, which also occur in our messages and paths."""

_SCHEME = re.compile(r"(?<![a-z0-9+.-])[a-z0-9+.-]+://", re.IGNORECASE)
_DATABASE = re.compile("postgres|mysql|mariadb|mssql|oracle|mongodb|redis", re.IGNORECASE)
_WEB = re.compile(r"(?<![a-z])(https?|s3|gs)(?![a-z0-9])", re.IGNORECASE)
_USER = r"""(?P<user>[^\s/@:'"?\#]*)"""
# A password may contain "@", "/" and quotes that were not escaped. The port of a web address before
# a path, or at the end of a quoted address, is not a password. In the URL of a database, anything
# between ":" and "@" is a password unless it is a port, a name and the keys of a query.
_NO_PORT = r"(?!\d{0,5}[/?\#])"
_NO_DATABASE_PORT = r"(?!\d{1,5}(?:/[^\s@?]{0,100})?\?[\w.-]+=)"
_NO_QUOTED_PORT = r"""(?!\d{1,5}['"])"""
_LOGIN = re.compile(rf"{_USER}(?P<password>:{_NO_PORT}{_NO_QUOTED_PORT}\S*)?@")
_DATABASE_LOGIN = re.compile(rf"{_USER}(?P<password>:{_NO_DATABASE_PORT}{_NO_QUOTED_PORT}\S*)?@")
# For a text that is one URL: the password ends at the last "@".
_WHOLE_LOGIN = re.compile(rf"{_USER}(?P<password>:{_NO_PORT}.*)?@", re.DOTALL)
_WHOLE_DATABASE_LOGIN = re.compile(rf"{_USER}(?P<password>:{_NO_DATABASE_PORT}.*)?@", re.DOTALL)
# No address is required before it, because errors of HTTP libraries leave it out.
_QUERY = re.compile(r"""(?P<sign>[?&;\#])(?P<key>[^\s=&;'"?\#/]+)=(?P<value>[^\s&;'"\#]+)""")
_DSN = re.compile(
    r"(?P<key>\b(?:password|passwd|pwd)\s?=\s?)"
    r"""(?P<value>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\s$*…]\S*)""",
    re.IGNORECASE,
)
_HEADER = re.compile(r"(?P<key>Authorization\W+(?:Basic|Bearer)\s+)[^\s'\"]+", re.IGNORECASE)


class _Login(NamedTuple):
    """User and password of a URL."""

    scheme: str
    user: str
    password: str
    start: int
    """Where the URL begins in the text."""
    end: int
    """Where its host begins."""

    @property
    def kind(self) -> Kind:
        if self.password:
            return "" if self.password == HIDDEN else "password"
        return "token" if _is_web(self.scheme) and self.user not in ("", HIDDEN) else ""

    @property
    def shown(self) -> str:
        return f"{self.scheme}{HIDDEN if self.kind == 'token' else f'{self.user}:{HIDDEN}'}@"


def secret_in(text: str) -> Kind:
    """The kind of secret in the URLs of a text, in a login or a query; empty if there is none."""
    whole = _whole_login(text)
    kinds = [login.kind for login in [*([whole] if whole else []), *_logins(text)]]
    kinds += map(_kind_of_pair, _QUERY.finditer(text))
    return next((kind for kind in kinds if kind), "")


def secret_in_setting(text: str) -> Kind:
    """`secret_in` for a setting, which may be a file name that looks like a query."""
    return secret_in(text) if "://" in text or text.startswith("?") else ""


def hide(text: str) -> str:
    """The text without passwords and tokens of URLs; user names stay. Idempotent."""
    parts, done = [], 0
    for login in _logins(text):
        if login.kind:
            parts += [text[done : login.start], login.shown]
            done = login.end
    text = _QUERY.sub(_hide_value, "".join([*parts, text[done:]]))
    return _HEADER.sub(rf"\g<key>{HIDDEN}", text)


def without_secret(url: str) -> str:
    """A URL that may be stored: a web address without a login, a database with its user's name."""
    if not secret_in(url):
        return url
    login = _whole_login(url)
    if login and login.kind:
        user = "" if _is_web(login.scheme) or not login.user else f"{login.user}@"
        url = f"{login.scheme}{user}{url[login.end :]}"
    address, _, query = url.partition("?")
    public = "&".join(part for part in query.split("&") if not secret_in(f"?{part}"))
    return hide(f"{address}?{public}" if public else address)


def shown_word(word: str) -> str:
    """A word of a command line, such as key=URL, without secrets."""
    key, equals, value = word.partition("=")
    if not equals or "://" in key:
        key, equals, value = "", "", word
    bare = value.strip(" \"'")
    if "://" in word and "@" in word and not re.fullmatch(r"[\w+.-]+://\S*", bare):
        return f"{hide(key)}{equals}{HIDDEN}"  # it is unclear where its URLs end
    if not secret_in(word) and not secret_in(bare):
        return word
    shown = without_secret(bare)
    return f"{hide(key)}{equals}{HIDDEN if secret_in(shown) else shown}"


def hide_all(data: Any) -> Any:
    """`hide` for every text inside lists and dictionaries."""
    return _map_texts(hide, data)


def store_all(data: Any) -> Any:
    """`without_secret` for every setting inside lists and dictionaries."""
    return _map_texts(lambda text: without_secret(text) if secret_in_setting(text) else text, data)


def _map_texts(change: Callable[[str], str], data: Any) -> Any:
    if isinstance(data, str):
        return change(data)
    if isinstance(data, dict):
        return {key: _map_texts(change, value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_map_texts(change, value) for value in data]
    return data


def for_others(text: str) -> str:
    """A sentence, a line of a log or a traceback without secrets."""
    for value in _known_secrets():
        text = text.replace(value, HIDDEN)
    return _DSN.sub(rf"\g<key>{HIDDEN}", hide(text))


def _known_secrets() -> list[str]:
    """The secrets in the environment of this process, longest first."""
    secrets = set[str]()
    for name, value in os.environ.items():
        if _VARIABLE.fullmatch(name):
            pairs = [part.partition("=") for part in value.split(";")]
            secrets |= {value} | {part for key, _, part in pairs if SECRET.search(key)}
    for name in _URL_VARIABLES:
        url = os.environ.get(name, "")
        url = url if "://" in url else f"http://{url}"
        if (login := _whole_login(url)) and login.kind:
            public = {login.user, url[login.end :].partition("/")[2].partition("?")[0]}
            secrets |= {login.password} - public if login.password else {login.user}
        secrets |= {match["value"] for match in _QUERY.finditer(url) if _kind_of_pair(match)}
    secrets |= {unquote(value) for value in secrets}
    secrets = {
        value for value in secrets if len(value) >= MIN_LENGTH and value.lower() not in _EXAMPLES
    }
    return sorted(secrets, key=len, reverse=True)


def _is_web(scheme: str) -> bool:
    """Whether a token may replace the user name, as for a web server or an object store."""
    return bool(_WEB.search(scheme))


def _logins(text: str) -> Iterator[_Login]:
    """The logins in a text, in time proportional to its length."""
    if "://" not in text or "@" not in text:
        return
    for word in re.finditer(r"\S+", text):
        position, last = word.start(), text.rfind("@", word.start(), word.end())
        while last > position and (scheme := _SCHEME.search(text, position, last)):
            pattern = _DATABASE_LOGIN if _DATABASE.search(scheme[0]) else _LOGIN
            position = scheme.end()
            if match := pattern.match(text, position, last + 1):
                position = match.end()
                yield _login(scheme, match)


def _whole_login(text: str) -> _Login | None:
    """The login of a text that is one URL."""
    scheme = _SCHEME.match(text, len(text) - len(text.lstrip()))
    if not scheme:
        return None
    pattern = _WHOLE_DATABASE_LOGIN if _DATABASE.search(scheme[0]) else _WHOLE_LOGIN
    match = pattern.match(text, scheme.end())
    return _login(scheme, match) if match else None


def _login(scheme: re.Match[str], match: re.Match[str]) -> _Login:
    password = (match["password"] or "")[1:]
    return _Login(scheme[0], match["user"], password, scheme.start(), match.end())


def _kind_of_pair(match: re.Match[str]) -> Kind:
    key, value = unquote(match["key"]), match["value"]
    if value == HIDDEN:
        return ""
    if kind := _kind_of_key(key, value):
        return kind
    if "%" not in value:
        return ""
    inside = unquote(value)  # a URL, or the connection string of ODBC
    if _DSN.search(inside):
        return "password"
    kinds = [login.kind for login in _logins(inside)]
    kinds += [_kind_of_key(pair["key"], pair["value"]) for pair in _QUERY.finditer(inside)]
    return next((kind for kind in kinds if kind), "")


def _kind_of_key(key: str, value: str) -> Kind:
    if _NOT_SECRET.fullmatch(f"{key}={value}"):
        return ""
    if _SIGNED.fullmatch(key):
        return "signature"
    if not SECRET.search(key):
        return ""
    return "password" if re.search("PASS|PWD", key, re.IGNORECASE) else "token"


def _hide_value(match: re.Match[str]) -> str:
    return f"{match['sign']}{match['key']}={HIDDEN}" if _kind_of_pair(match) else match[0]
