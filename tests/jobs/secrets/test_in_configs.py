"""No secret is in a config, on a screen or in a submission; a job names those it needs."""

import json
import logging
import string
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmwright.jobs.cli.command import main
from elmwright.jobs.config.toml_file import config_from, load_config
from elmwright.jobs.runbook.submission import Submission, passed_on
from elmwright.jobs.runbook.target import Target
from elmwright.jobs.rundir.lease import this_process
from elmwright.jobs.secrets.hiding import (
    for_others,
    hide,
    hide_all,
    secret_in,
    shown_word,
    store_all,
    without_secret,
)
from elmwright.jobs.submit import job
from elmwright.jobs.submit.send import prepare
from elmwright.jobs.terminal.console import console_for_run
from elmwright.jobs.terminal.unexpected import in_words, report_unexpected, write_error_file
from elmwright.jobs.terminal.wording import tell
from tests.support.mistakes import mistake
from tests.support.tiny import as_toml, write_config

pytestmark = pytest.mark.slow(3)

PLANTED = "planted-secret-42d1"


def submission(folder: Path, target: Target | None = None, **changes: Any) -> Submission:
    config = load_config(str(write_config(folder, folder / "text.txt", **changes)))
    return prepare(config, target or Target("local"), "corpus")


def test_settings_are_sent_but_never_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://store:9000")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", PLANTED)
    monkeypatch.setenv("MY_FLAG", "on")
    found = passed_on(("MY_FLAG",))
    assert found["AWS_ENDPOINT_URL"] == "http://store:9000"
    assert found["MY_FLAG"] == "on"
    assert PLANTED not in found.values()
    names = (
        "AWS_SECRET_ACCESS_KEY",
        "HF_TOKEN",
        "DB_PASSWORD",
        "my_api_key",
        "MY_PASSPHRASE",
        "DB_PWD",
        "SIGNING_PRIVATE",
    )
    for name in names:
        with mistake("secret"):
            passed_on((name,))
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://me:{PLANTED}@store:9000")
    with mistake("secret", "AWS_ENDPOINT_URL") as caught:
        passed_on()
    assert PLANTED not in str(caught.value)


MLFLOW = ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD")
AWS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


@pytest.mark.parametrize(
    ("key", "url", "variables"),
    [
        ("tracking.uri", f"http://me:{PLANTED}@mlflow:5000", MLFLOW),
        ("tracking.uri", f"https://{PLANTED}@mlflow:5000", ("MLFLOW_TRACKING_TOKEN",)),
        ("tracking.uri", f"https://mlflow/?api_key={PLANTED}", ("MLFLOW_TRACKING_TOKEN",)),
        ("tracking.uri", f"https://mlflow/?access_token={PLANTED}", ("MLFLOW_TRACKING_TOKEN",)),
        ("tracking.uri", f"postgresql://me@db/x?password={PLANTED}", ("MLFLOW_TRACKING_URI",)),
        ("tracking.uri", f"postgresql://me:{PLANTED}@db/x", ("MLFLOW_TRACKING_URI",)),
        ("tracking.uri", f"mysql+pymysql://me:12/{PLANTED}@db/x", ("MLFLOW_TRACKING_URI",)),
        ("tracking.uri", f'http://me:it\'s "{PLANTED}"@mlflow', MLFLOW),
        (
            "tracking.uri",
            f"mssql+pyodbc:///?odbc_connect=Driver%3DODBC+18%3BUID%3Dme%3BPWD%3D{PLANTED}",
            ("MLFLOW_TRACKING_URI",),
        ),
        ("vocab.file", f"https://store/?x=https%3A%2F%2Fu%3A{PLANTED}%40h", AWS),
        ("vocab.file", f"https://store/?x=https%3A%2F%2Fh%2F%3Ftoken%3D{PLANTED}", AWS),
        ("tracking.uri", f"postgresql://me:1/{PLANTED}?x@db/x", ("MLFLOW_TRACKING_URI",)),
        ("tracking.uri", f"postgresql://host:5432/db?user=a@b&password={PLANTED}", ()),
        ("run.dir", f"s3://AKIA:{PLANTED}@bucket/run", AWS),
        ("corpus.dir", f"s3://{PLANTED}@bucket/corpus", AWS),
        ("corpus.dir", f"gs://me:{PLANTED}@bucket/corpus", ("GOOGLE_APPLICATION_CREDENTIALS",)),
        ("vocab.file", f"https://store/v.txt?X-Amz-Signature={PLANTED}", AWS),
        ("vocab.file", f"https://store/v.txt?X-Amz-Credential={PLANTED}", AWS),
        ("vocab.file", f"https://store/v.txt?a=b&AWSAccessKeyId={PLANTED}", AWS),
        ("vocab.file", f"https://store/v.txt?Signature={PLANTED}&Expires=1", AWS),
        ("vocab.file", f"https://store/v.txt?X%2DAmz%2DSignature={PLANTED}", AWS),
        ("train.init_from", f"https://a.blob.lab/m?sv=2022&se=2026&sig={PLANTED}", AWS),
        ("train.init_from", f"s3://AKIA:{PLANTED}@bucket/model", AWS),
        ("train.max_steps", f"http://me:{PLANTED}@host", ()),
        ("corpus.sources", [f"s3://AKIA:{PLANTED}@bucket/*.txt"], AWS),
        ("corpus.sources", [{"path": f"s3://AKIA:{PLANTED}@bucket/*.txt"}], AWS),
        ("corpus.heldout", {"news": [f"s3://AKIA:{PLANTED}@bucket/n.txt"]}, AWS),
        ("corpus.decontaminate", [f"https://host/t.txt?token={PLANTED}"], AWS),
        ("cluster.address", f"http://{PLANTED}@head:6379", ("RAY_AUTH_TOKEN",)),
        ("tracking.misspelled", f"http://me:{PLANTED}@mlflow:5000", MLFLOW),
    ],
)
def test_secret_in_a_config_is_refused_with_the_variable_to_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str, url: Any, variables: Any
) -> None:
    config = write_config(tmp_path, tmp_path / "text.txt", **{key.replace(".", "_", 1): url})
    with mistake("secret", key) as caught:
        load_config(str(config))
    assert all(name in str(caught.value) for name in variables)
    assert PLANTED not in str(caught.value)
    plain = write_config(tmp_path, tmp_path / "text.txt")
    value = json.dumps(url) if isinstance(url, str) else as_toml(url)
    for command in ("run", "check", "corpus"):
        assert main([command, str(plain), "--set", f"{key}={value}"]) == 2
    assert main(["run", str(plain), "--set", value]) == 2
    assert main(["submit", str(plain), "--to", "local", "--set", f"{key}={value}"]) == 2
    output = capsys.readouterr()
    assert PLANTED not in output.out + output.err
    assert output.err.count("holds ") >= 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tiny.toml"]  # nothing was written


@pytest.mark.parametrize(
    "uri",
    [
        "postgresql://me@db/mlflow?sslmode=require&sslkey=/etc/client.key",
        "http://mlflow:5000/?a=b",
        "http://host:5000/demo@champion",
        "sqlite:////tmp/me@here:x/mlflow.db",
        "postgresql://me@db/x?passfile=/home/me/.pgpass&require_auth=scram-sha-256",
        "mysql://me@db/x?get_server_public_key=true",
        "mssql+pyodbc://me@db/x?driver=ODBC+Driver&Authentication=ActiveDirectoryMsi",
        "postgresql://host:5432/db?user=joe@server",
        "postgresql://host:5432?user=joe@server",
    ],
)
def test_address_without_a_secret_is_accepted(tmp_path: Path, uri: str) -> None:
    assert secret_in(uri) == ""
    assert without_secret(uri) == uri
    assert submission(tmp_path, tracking_uri=uri).config["tracking"]["uri"] == uri


@pytest.mark.parametrize(
    "path", ["data/a;auth=2.txt", "data/[a]?key=1.txt", "/data/#token=1&sig=2/*.txt"]
)
def test_query_characters_in_a_file_name_are_accepted(path: str) -> None:
    data = {"corpus": {"sources": [path]}, "run": {"dir": "runs/x"}}
    assert config_from(data, "my.toml").corpus.sources[0].path == path
    assert store_all(data) == data


@pytest.mark.parametrize(
    "word",
    [
        'tracking.uri = "postgresql://u:first {}@h/d"',
        'corpus.sources=["s3://k:first {}@b/x"]',
        'corpus.sources=["s3://k:{} last@b/x", "s3://b/y"]',
        'tracking={{uri="postgresql://u:first {}@h/d"}}',
        "tracking.uri='http://u:first {}@h/d'",
        "http://u:first {} last@h/d",
    ],
)
def test_password_with_spaces_is_not_in_the_message(
    word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    word = word.format(PLANTED)
    assert PLANTED not in shown_word(word)
    assert shown_word(word).partition("=")[0] in word + "***"
    config = write_config(tmp_path, tmp_path / "text.txt")
    assert main(["check", str(config), "--set", word]) == 2
    output = capsys.readouterr()
    assert output.err
    assert PLANTED not in output.out + output.err


QUOTED = st.text(min_size=8, max_size=20).map(lambda text: quote(text, safe=""))
LETTERS = st.text(string.ascii_letters + string.digits + "-._~", min_size=8, max_size=20)
# As people paste them, unescaped.
PASTED = st.text(string.ascii_letters + "!$*(),;:@=+'\"/?#&", min_size=8, max_size=20)
NAMES = st.text(string.ascii_lowercase, min_size=1, max_size=7)
URLS = st.sampled_from(
    [
        "http://{user}:{secret}@{host}.lab:5000/a",
        "https://{secret}@{host}.lab",
        "postgresql+psycopg2://{user}:{secret}@{host}/db?sslmode=require",
        "mysql://{host}/db?user={user}&password={secret}",
        "s3://{user}:{secret}@{host}/x/y",
        "https://{host}/f?X-Amz-Signature={secret}&X-Amz-Date=1",
        "https://{host}/f?sp=r&sig={secret}",
        "https://{host}/f?AWSAccessKeyId={secret}",
        "https://{host}/?access_token={secret}#top",
        "/path/of/{host}?a=b&token={secret}",
    ]
)


@given(URLS, NAMES, NAMES, LETTERS | QUOTED | PASTED)
def test_every_form_of_secret_is_found(url: str, user: str, host: str, secret: str) -> None:
    secret = f"Zq7{secret}7qZ"  # which occurs nowhere else here
    if ":{secret}@" not in url:
        secret = quote(unquote(secret), safe="")
    text = url.format(user=user, host=host, secret=secret)
    assert secret_in(text)
    for shown in (
        hide(text),
        hide(f"no answer from {text} (retry)"),
        hide(f"GET '{text}': 401"),
        without_secret(text),
        str(hide_all([{"b": text}])),
        for_others(f"Traceback …\n  {text}\nValueError: {text}"),
        shown_word(f"a.uri={text}"),
    ):
        assert "Zq7" not in shown
        assert "7qZ" not in shown
    assert not secret_in(without_secret(text))
    if "://" not in text:  # as a setting, it is the name of a local file
        return
    stored = str(store_all({"a": [text]}))
    assert "Zq7" not in stored
    assert "7qZ" not in stored
    for data in ({"tracking": {"uri": text}}, {"corpus": {"sources": [{"path": text}]}}, {text: 1}):
        with mistake("secret") as caught:
            config_from(data, "my.toml")
        assert "Zq7" not in str(caught.value)
        assert "7qZ" not in str(caught.value)


def _raised(message: str) -> ValueError:
    try:
        raise ValueError(message)
    except ValueError as error:
        return error


def test_lock_and_error_file_have_no_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for word in (f"tracking.uri=http://me:{PLANTED}@host", f"http://me:a 'b'{PLANTED}@host"):
        monkeypatch.setattr("sys.argv", ["elmwright", "run", "x.toml", "--set", word])
        monkeypatch.setenv("ELMWRIGHT_CACHE", str(tmp_path / "cache"))
        assert PLANTED not in this_process().command
        error = _raised(f"nothing at http://me:{PLANTED}@host")
        file = write_error_file(error)
        assert file is not None
        assert "nothing at http://me:***@host" in file.read_text()
        assert PLANTED not in file.read_text() + in_words(error)
    monkeypatch.setenv("ELMWRIGHT_DEBUG", "1")
    report_unexpected(error)
    with pytest.raises(SystemExit):
        main(["run", "x.toml", "--to", f"http://me:{PLANTED}@host"])
    with pytest.raises(SystemExit):
        main([f"http://me:{PLANTED}@host"])
    output = capsys.readouterr()
    assert "Traceback" in output.err
    assert PLANTED not in output.out + output.err


@pytest.mark.parametrize(
    "words", [["verify"], ["status"], ["resume"], ["versions", "m", "--to"]], ids=lambda w: w[0]
)
@pytest.mark.parametrize("login", [f"AKIAXYZ:{PLANTED}", PLANTED, f"AKIAXYZ:a/{PLANTED}"])
def test_a_login_in_the_address_of_a_store_is_refused_and_not_repeated(
    words: list[str],
    login: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("ELMWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    assert main([*words, f"s3://{login}@bucket/x"]) == 2
    output = capsys.readouterr()
    assert all(name in output.err for name in AWS)
    assert PLANTED not in output.out + output.err
    assert not any(PLANTED in file.read_text() for file in tmp_path.rglob("*") if file.is_file())


ENVIRONMENT = {
    "MLFLOW_TRACKING_URI": "postgresql://me:{}@db/x",
    "MLFLOW_TRACKING_PASSWORD": "{}",
    "MLFLOW_TRACKING_TOKEN": "{}",
    "AWS_SECRET_ACCESS_KEY": "{}",
    "HTTPS_PROXY": "http://me:{}@proxy:3128",
    "http_proxy": "http://{}@proxy:3128",
    "AWS_ENDPOINT_URL": "https://store/?token={}",
    "PGPASSWORD": "{}",
    "POSTGRES_PASSWORD": "{}",
    "AZURE_STORAGE_ACCESS_KEY": "{}",
    "AZURE_STORAGE_CONNECTION_STRING": "AccountName=lab;AccountKey={};EndpointSuffix=lab",
    "DATABRICKS_TOKEN": "{}",
    "AZURE_CLIENT_SECRET": "{}",
    "ALL_PROXY": "me:{}@proxy:3128",
}


@pytest.mark.parametrize("name", ENVIRONMENT)
def test_secrets_of_the_environment_are_removed_from_library_messages(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = "p%40ss wörd/42" if name == "AWS_SECRET_ACCESS_KEY" else "p%40ss-w0rd%2F42"
    monkeypatch.setenv(name, ENVIRONMENT[name].format(secret))
    message = f"FATAL: cannot use {unquote(secret)!r} or {secret} (dsn: host=db password={PLANTED})"
    shown = for_others(message)
    assert shown == "FATAL: cannot use '***' or *** (dsn: host=db password=***"
    log_file = tmp_path / "log.txt"
    with console_for_run(log_file) as console:
        logging.getLogger("urllib3").warning(message)
        try:
            raise OSError(message)
        except OSError:
            logging.getLogger("other").exception("it failed")
        console.warn(message)
    tell(message)
    logged, printed = log_file.read_text(), capsys.readouterr().out
    assert logged.count("FATAL: cannot use '***' or ***") == 3
    for text in (logged, printed):
        assert unquote(secret) not in text
        assert secret not in text
        assert PLANTED not in text


@pytest.mark.parametrize(
    "line",
    [
        f"export AWS_SECRET_ACCESS_KEY={PLANTED}",
        f"module load x; DB_PWD='{PLANTED}' true",
        f'export HF_TOKEN="{PLANTED}"',
        f"export https_proxy=http://me:{PLANTED}@proxy:3128",
        f"export A=1;HF_TOKEN={PLANTED} true",
        f"#SBATCH --export=ALL,HF_TOKEN={PLANTED}",
        f"#SBATCH --comment=a,TOKEN={PLANTED}",
    ],
)
def test_lines_of_a_target_hold_no_secret(tmp_path: Path, line: str) -> None:
    with mistake("secret", "lines = ", "env_file") as caught:
        submission(tmp_path, Target("local", lines=(line,)))
    assert PLANTED not in str(caught.value)


def test_lines_of_a_target_may_name_the_file_of_a_secret(tmp_path: Path) -> None:
    lines = (
        "module load python",
        "export HF_TOKEN=$(cat ~/token)",
        "export SSL_KEY=/etc/key",
        "export OMP_NUM_THREADS=4",
        "#SBATCH --wckey=project",
    )
    assert submission(tmp_path, Target("local", lines=lines)).target.lines == lines


def test_job_names_missing_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target("local", secrets=("LAB_PASSWORD", "LAB_TOKEN"))
    sent = submission(tmp_path, target)
    config = load_config(str(tmp_path / "tiny.toml"))
    monkeypatch.setenv("LAB_TOKEN", PLANTED)
    with mistake("secret", "LAB_PASSWORD") as e:
        job.check_names(sent, config)
    assert PLANTED not in str(e.value)
    assert "LAB_TOKEN" not in str(e.value)
    monkeypatch.setenv("LAB_PASSWORD", PLANTED)
    job.check_names(sent, config)
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "me")
    monkeypatch.delenv("MLFLOW_TRACKING_PASSWORD", raising=False)
    with mistake("secret", "MLFLOW_TRACKING_PASSWORD") as e:
        job.check_names(sent, config)
    assert "LAB_" not in str(e.value)
    assert "MLFLOW_TRACKING_USERNAME" not in str(e.value)


def test_job_with_an_object_store_needs_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = submission(tmp_path, corpus_dir="s3://bucket/corpus")
    config = load_config(str(tmp_path / "tiny.toml"))
    for name in (*job.S3_OTHER_WAYS, "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIA")
    with mistake("secret", "AWS_SECRET_ACCESS_KEY") as e:
        job.check_names(sent, config)
    assert "AWS_ACCESS_KEY_ID" not in str(e.value)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", PLANTED)
    job.check_names(sent, config)
