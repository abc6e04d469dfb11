"""What travels with a submission and what never does; a job looks for its secrets by name."""

from pathlib import Path
from typing import Any

import pytest

from elmwright.jobs import entry
from elmwright.jobs.cli import main
from elmwright.jobs.config_file import load_config
from elmwright.jobs.hiding import hide, hide_all
from elmwright.jobs.lease import about
from elmwright.jobs.submission import Submission, passed_on
from elmwright.jobs.submit import prepare
from elmwright.jobs.targets import Target
from elmwright.jobs.unexpected import in_words, write_error_file
from elmwright.pipeline.errors import UserError
from tests.jobs.tiny import write_config

PLANTED = "planted-secret-42d1"


def submission(folder: Path, target: Target | None = None, **changes: Any) -> Submission:
    config = load_config(str(write_config(folder, folder / "text.txt", **changes)))
    return prepare(config, target or Target("local"), "corpus")


def test_settings_travel_and_secrets_never(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://store:9000")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", PLANTED)
    monkeypatch.setenv("MY_FLAG", "on")
    found = passed_on(("MY_FLAG",))
    assert found["AWS_ENDPOINT_URL"] == "http://store:9000"
    assert found["MY_FLAG"] == "on"
    assert PLANTED not in found.values()
    names = ("AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "DB_PASSWORD", "my_api_key", "MY_PASSPHRASE",
             "DB_PWD", "SIGNING_PRIVATE")  # fmt: skip
    for name in names:
        with pytest.raises(UserError, match=r"never sent"):
            passed_on((name,))
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://me:{PLANTED}@store:9000")
    with pytest.raises(UserError, match=r"AWS_ENDPOINT_URL holds a password") as caught:
        passed_on()
    assert PLANTED not in str(caught.value)


@pytest.mark.parametrize(
    "uri",
    [
        f"http://me:{PLANTED}@mlflow:5000",
        f"https://{PLANTED}@mlflow:5000",
        f"postgresql://me@db/mlflow?password={PLANTED}",
        f"postgresql://me:{PLANTED}@db/mlflow",
        f"https://mlflow:5000/?api_key={PLANTED}",
    ],
)
def test_a_password_in_the_tracking_uri_stays_at_home(tmp_path: Path, uri: str) -> None:
    with pytest.raises(UserError, match=r"tracking.uri holds a password or a token") as caught:
        submission(tmp_path, tracking_uri=uri)
    assert PLANTED not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"http://me:{PLANTED}@host:5000/x", "http://me@host:5000/x"),
        (f"http://me:{PLANTED}/a@b@host:5000/x", "http://me@host:5000/x"),
        (f"https://{PLANTED}@host", "https://***@host"),
        (f"https://{PLANTED}:@host", "https://***@host"),
        (f"no answer of 'http://me:{PLANTED}@host', retry", "no answer of 'http://me@host', retry"),
        (f"tracking.uri=postgresql://me:{PLANTED}@db/x", "tracking.uri=postgresql://me@db/x"),
        (f"postgresql://me@db/x?password={PLANTED}&a=b", "postgresql://me@db/x?password=***&a=b"),
        ("s3://bucket/models/demo@champion", "s3://bucket/models/demo@champion"),
        ("http://host:5000/demo@champion", "http://host:5000/demo@champion"),
        ("sqlite:////tmp/me@here:x/mlflow.db", "sqlite:////tmp/me@here:x/mlflow.db"),
        ("write to me@host: at once", "write to me@host: at once"),
    ],
)
def test_what_is_shown_holds_no_password(text: str, shown: str) -> None:
    assert hide(text) == shown
    assert hide_all({"a": [text, 1]}) == {"a": [shown, 1]}


def test_neither_the_lock_nor_an_error_file_nor_check_tells_a_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.txt").write_text("The cat sees the dog .\n" * 200)
    config = write_config(tmp_path, tmp_path / "text.txt")
    uri = f"http://me:{PLANTED}@127.0.0.1:9"
    words = ["check", str(config), "--set", f"tracking.uri={uri}"]
    monkeypatch.setattr("sys.argv", ["elmwright", *words])
    assert about()["command"].endswith("tracking.uri=http://me@127.0.0.1:9")
    monkeypatch.setenv("ELMWRIGHT_CACHE", str(tmp_path / "cache"))
    error = ValueError(f"nothing at http://me:{PLANTED}@host")
    file = write_error_file(error)
    assert file is not None
    assert "nothing at http://me@host" in file.read_text()
    assert PLANTED not in file.read_text() + in_words(error)
    for flag in ("--full", "--json"):
        main([*words, flag])
        told = capsys.readouterr()
        assert "http://me@127.0.0.1:9" in told.out
        assert PLANTED not in told.out + told.err


def test_a_url_without_a_secret_may_travel(tmp_path: Path) -> None:
    for uri in ("postgresql://me@db/mlflow?sslmode=require", "http://mlflow:5000/?a=b"):
        assert submission(tmp_path, tracking_uri=uri).config["tracking"]["uri"] == uri


def test_a_secret_in_any_url_of_the_config_stays_at_home(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^train.init_from holds a URL with") as caught:
        submission(tmp_path, train_init_from=f"s3://me:{PLANTED}@bucket/model")
    assert PLANTED not in str(caught.value)


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
    with pytest.raises(UserError, match=r"lines = .*env_file") as caught:
        submission(tmp_path, Target("local", lines=(line,)))
    assert PLANTED not in str(caught.value)


def test_lines_of_a_target_may_say_where_a_secret_is(tmp_path: Path) -> None:
    lines = ("module load python", "export HF_TOKEN=$(cat ~/token)", "export SSL_KEY=/etc/key",
             "export OMP_NUM_THREADS=4", "#SBATCH --wckey=project")  # fmt: skip
    assert submission(tmp_path, Target("local", lines=lines)).target.lines == lines


def test_a_job_names_the_secrets_it_misses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target("local", secrets=("LAB_PASSWORD", "LAB_TOKEN"))
    sent = submission(tmp_path, target)
    config = load_config(str(tmp_path / "tiny.toml"))
    monkeypatch.setenv("LAB_TOKEN", PLANTED)
    with pytest.raises(UserError, match=r"^LAB_PASSWORD is not set in the job's environment") as e:
        entry.check_names(sent, config)
    assert PLANTED not in str(e.value)
    monkeypatch.setenv("LAB_PASSWORD", PLANTED)
    entry.check_names(sent, config)
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "me")
    monkeypatch.delenv("MLFLOW_TRACKING_PASSWORD", raising=False)
    with pytest.raises(UserError, match=r"^MLFLOW_TRACKING_PASSWORD is not set"):
        entry.check_names(sent, config)


def test_a_job_with_an_object_store_wants_its_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = submission(tmp_path, corpus_dir="s3://bucket/corpus")
    config = load_config(str(tmp_path / "tiny.toml"))
    for name in (*entry.S3_OTHER_WAYS, "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIA")
    with pytest.raises(UserError, match=r"^AWS_SECRET_ACCESS_KEY is not set"):
        entry.check_names(sent, config)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", PLANTED)
    entry.check_names(sent, config)
