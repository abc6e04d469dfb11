"""Secrets are replaced in texts and command lines, and long texts are searched quickly."""

import time

import pytest

from elmwright.jobs.secrets.hiding import for_others, hide, hide_all, secret_in, shown_word

PLANTED = "planted-secret-42d1"


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        (f"tracking.uri=http://me:{PLANTED}@h", "tracking.uri=http://h"),
        ('corpus.sources=["s3://b/x", "s3://b/y"]', 'corpus.sources=["s3://b/x", "s3://b/y"]'),
        ("s3://b/models/demo@champion", "s3://b/models/demo@champion"),
        ("train.max_steps = 3", "train.max_steps = 3"),
    ],
)
def test_only_secrets_are_removed_from_a_command_line(word: str, shown: str) -> None:
    assert shown_word(word) == shown


@pytest.mark.parametrize(
    "text",
    [
        "a." * 500_000,
        "://" + "a." * 500_000 + "@",
        "x://y:" * 170_000,
        "@" + "x://y:" * 170_000,
        "x://y:" * 170_000 + "@",
        "x://y:1/" * 120_000 + "@",
        "postgresql://a:1/" * 60_000 + "?x=@",
        "postgres" * 120_000 + "@://",
        "?a=%3Fa%3D" * 100_000,
        "password='" * 100_001 + "@://",
    ],
    ids=lambda text: f"{text[:14]}…{text[-4:]}",
)
def test_a_megabyte_is_searched_in_seconds(text: str) -> None:
    began = time.process_time()
    secret_in(text)
    for_others(text)
    assert time.process_time() - began < 10  # at most 0.8 s on a quiet machine


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"http://me:{PLANTED}@host:5000/x", "http://me:***@host:5000/x"),
        (f"http://me:{PLANTED}/a@b@host:5000/x", "http://me:***@host:5000/x"),
        (f"https://{PLANTED}@host", "https://***@host"),
        (f"https://{PLANTED}:@host", "https://***@host"),
        (
            f"no answer from 'http://me:{PLANTED}@host', retry",
            "no answer from 'http://me:***@host', retry",
        ),
        (f"tracking.uri=postgresql://me:{PLANTED}@db/x", "tracking.uri=postgresql://me:***@db/x"),
        (f"postgresql://me@db/x?password={PLANTED}&a=b", "postgresql://me@db/x?password=***&a=b"),
        (
            f"with url: /api/2.0/x?access_token={PLANTED} (Caused",
            "with url: /api/2.0/x?access_token=*** (Caused",
        ),
        (f"https://h/b?sv=1&sig={PLANTED}%3D&sp=r", "https://h/b?sv=1&sig=***&sp=r"),
        (f"http://me:it's{PLANTED}@host", "http://me:***@host"),
        (f"{{'Authorization': 'Basic {PLANTED}'}}", "{'Authorization': 'Basic ***'}"),
        ('{"a":"http://host:5000","b":"x@y"}', '{"a":"http://host:5000","b":"x@y"}'),
        ("http://host?mail=me@here", "http://host?mail=me@here"),
        ("s3://bucket/models/demo@champion", "s3://bucket/models/demo@champion"),
        ("http://host:5000/demo@champion", "http://host:5000/demo@champion"),
        ("sqlite:////tmp/me@here:x/mlflow.db", "sqlite:////tmp/me@here:x/mlflow.db"),
        ("write to me@host: at once", "write to me@host: at once"),
        (f"-http://me:{PLANTED}@host", "-http://me:***@host"),
        (f"x=-postgresql://me:12/{PLANTED}@db", "x=-postgresql://me:***@db"),
        ("postgresql://host:5432/db?user=joe@server", "postgresql://host:5432/db?user=joe@server"),
        (f"mssql:///?odbc_connect=A%3DB%3BPWD%3D{PLANTED}&a=b", "mssql:///?odbc_connect=***&a=b"),
    ],
)
def test_shown_texts_have_no_password(text: str, shown: str) -> None:
    assert hide(text) == shown
    assert hide(shown) == shown
    assert secret_in(shown) == ""
    assert hide_all({"a": [text, 1]}) == {"a": [shown, 1]}


@pytest.mark.parametrize(
    ("uri", "is_hidden"),
    [
        ("postgresql://mlflow:mlflow@db/mlflow", False),
        ("postgresql://me:postgres@db/x", False),
        ("postgresql://research:research@db/x", False),
        ("postgresql://me:research@db/research?sslmode=require", False),
        ("postgresql://me:research@db/x", True),
    ],
)
def test_short_or_common_passwords_are_hidden_only_in_their_address(
    uri: str, is_hidden: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    text = "run 'elmwright doctor'; postgres, runs/research/mlflow/mlflow.db"
    assert for_others(text) == (text.replace("research", "***") if is_hidden else text)
    assert for_others(f"no answer from {uri}").count(":***@") == 1


@pytest.mark.parametrize("dsn", ["password='a b {}'", 'pwd = "a b {} "', r"password='it\'s {}'"])
def test_a_quoted_password_in_a_connection_string_is_not_shown(dsn: str) -> None:
    shown = for_others(f"host=db {dsn.format(PLANTED)} user=me")
    assert PLANTED not in shown
    assert shown.replace("= ", "=").endswith("=*** user=me")
