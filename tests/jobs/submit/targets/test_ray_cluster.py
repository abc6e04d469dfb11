"""The commands against a real Ray cluster that asks for a token, started once for this module.

Only the corpus stage runs here, which needs no training processes; cancelling, killing and resuming
a training are in test_cluster.py (heavy).
"""

import json
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from elmwright import __version__
from elmwright.jobs.config.toml_file import load_config
from elmwright.jobs.runbook.submission import Job
from elmwright.jobs.runbook.target import Target
from elmwright.jobs.submit.send import prepare
from elmwright.jobs.submit.targets.ray_jobs import RayCluster, pack, runtime_env
from tests.support.cluster.ray_nodes import RayHead, ray_head
from tests.support.places import ROOT
from tests.support.tiny import elmwright, write_config, write_text

pytestmark = pytest.mark.heavy

PLANTED = "planted-secret-5c77e0"
TOKEN = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"  # noqa: S105


class User:
    """A user who submits to the cluster."""

    def __init__(self, home: Path, head: RayHead) -> None:
        self.home, self.head = home, head
        self.environment = {
            "HOME": str(home / "user"),
            "XDG_STATE_HOME": str(home / "state"),
            "XDG_CONFIG_HOME": str(home / "config"),
            "RAY_AUTH_TOKEN": TOKEN,
            "LAB_SECRET_TOKEN": PLANTED,
            "AWS_SECRET_ACCESS_KEY": PLANTED,
        }
        (home / "user").mkdir()
        self.config = write_config(
            home,
            write_text(home / "text.txt", 40),
            tracking_uri="http://127.0.0.1:9",
            train_processes=1,
        )

    def run(self, *arguments: object, code: int = 0, **more: str) -> str:
        done = elmwright(*arguments, **(self.environment | more))
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stdout + done.stderr
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[User]:
    home = tmp_path_factory.mktemp("ray-cluster")
    (home / ".ray").mkdir()
    (home / ".ray" / "auth_token").write_text(TOKEN)
    environment = {"RAY_AUTH_MODE": "token", "AWS_SECRET_ACCESS_KEY": PLANTED}
    with ray_head(home, cpus=1, **environment) as head:
        yield User(home, head)


@pytest.fixture(scope="module")
def first(user: User) -> str:
    """A finished run, and all that its submitter saw."""
    return user.run(
        "submit", user.config, "--to", user.head.address, "--until", "corpus", "--follow"
    )


def test_a_run_is_sent_followed_and_found_again(user: User, first: str) -> None:
    assert "Done in" in first
    assert "tiny is finished" in first
    status = json.loads(user.run("status", user.home / "run", "--json"))
    assert status["state"] == "finished"
    assert status["progress"]["stage"] == "done"
    assert status["version"].startswith(f"{__version__}+")
    assert "finished" in user.run("jobs")
    assert (user.home / "run" / "corpus" / "MANIFEST.json").is_file()


def test_a_changed_line_is_the_line_that_runs(user: User, first: str, tmp_path: Path) -> None:
    """The same run again, sent from a copy of the package with one line changed."""
    copy = tmp_path / "elmwright"
    copy.mkdir()
    for room in ("pipeline", "model", "jobs"):
        shutil.copytree(ROOT / room, copy / room, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (ROOT / "jobs" / "api").glob("*.*"):
        shutil.copy(path, copy)
    shutil.copy(ROOT / "pyproject.toml", copy)
    workflow = copy / "jobs" / "stages" / "workflow.py"
    text = workflow.read_text()
    assert "Everything is up to date in" in text
    workflow.write_text(text.replace("Everything is up to date in", "The new line ran in"))
    again = user.run(
        "submit",
        user.config,
        "--to",
        user.head.address,
        "--until",
        "corpus",
        "--follow",
        PYTHONPATH=str(tmp_path),
    )
    assert "The new line ran in" in again
    assert len(list((user.home / "run" / "submissions").iterdir())) == 2


def test_the_doctor_looks_at_every_machine(user: User) -> None:
    (user.home / "config" / "elmwright").mkdir(parents=True, exist_ok=True)
    (user.home / "config" / "elmwright" / "targets.toml").write_text(
        f'[lab]\nkind = "ray"\naddress = "{user.head.address}"\nsecrets = ["NOT_THERE"]\n'
    )
    output = user.run("doctor", "lab", "--config", user.config, code=2)
    assert "runs Ray 2." in output
    assert "takes the token in RAY_AUTH_TOKEN" in output
    assert "machines: 1, CPUs: 1" in output
    assert "all dependencies" in output
    assert "run.dir" in output
    missing = [line for line in output.splitlines() if line.startswith("missing")]
    assert len(missing) == 2
    assert missing[0].endswith("NOT_THERE is not set")
    assert "MLflow at http://127.0.0.1:9 does not answer" in missing[1]
    output = user.run("doctor", "lab", "--set", "train.threads=8", code=2)
    assert "name the config with --config" in output
    output = user.run("doctor", "lab", "--config", user.config, "--set", "train.threads=8", code=2)
    assert "needs 8 CPUs" in output


def test_a_token_is_wanted_and_a_wrong_one_refused(user: User) -> None:
    output = user.run("doctor", user.head.address, code=2, RAY_AUTH_TOKEN="")
    assert "requires a token; set RAY_AUTH_TOKEN" in output
    wrong = TOKEN.replace("0", "1")
    output = user.run("jobs", RAY_AUTH_TOKEN=wrong)
    assert "refuses the token in RAY_AUTH_TOKEN" in output
    assert wrong not in output


def test_more_than_the_cluster_has_is_refused_at_once(user: User) -> None:
    output = user.run(
        "submit",
        user.config,
        "--to",
        user.head.address,
        "--name",
        "large",
        "--set",
        "train.threads=8",
        code=2,
    )
    assert "needs 8 CPUs" in output
    assert "1 machine with 1 CPUs and 0 GPUs" in output


def test_ray_unpacks_a_package_from_a_file_as_a_mounted_config_map_offers_it(
    user: User, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a RayJob relies on: a working_dir that is a zip on every node's disk."""
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    config = load_config(str(user.config), ["cluster.address=auto", "corpus.dir=/no/such"])
    target = Target("ray", address=user.head.address)
    submission = prepare(config, target, "corpus")
    name, content = pack(submission)
    (tmp_path / name).write_bytes(content)
    request = {
        "submission_id": submission.id,
        "entrypoint": "python -c 'import elmwright, os; print(elmwright.__file__, os.listdir())'",
        "runtime_env": runtime_env(submission, f"file://{tmp_path}/{name}"),
    }
    cluster = RayCluster(target)
    assert cluster._call("POST", "/api/jobs/", json.dumps(request).encode())[0] == 200
    end = time.monotonic() + 100
    while not (state := cluster.state(Job(submission))).ended:
        assert time.monotonic() < end
        time.sleep(0.3)
    output = cluster.log(Job(submission), 0)[0]
    assert state.word == "finished", output
    assert "runtime_resources/working_dir_files" in output
    assert "submission.json" in output


def test_no_planted_secret_is_anywhere(user: User, first: str) -> None:
    """Not in the files of the run, the run book, Ray's logs and sessions, or the job listing."""
    request = urllib.request.Request(f"{user.head.address}/api/jobs/")  # noqa: S310
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(request)  # noqa: S310
    request.add_header("Authorization", f"Bearer {TOKEN}")
    listing = urllib.request.urlopen(request).read()  # noqa: S310
    assert b"elmwright.config_sha256" in listing
    for secret in (PLANTED, TOKEN):
        assert secret.encode() not in listing
        looked = 0
        for root in (user.home, user.head.folder):
            for path in root.rglob("*"):
                if path.is_file() and path != user.home / ".ray" / "auth_token":
                    assert secret.encode() not in path.read_bytes(), path
                    looked += 1
        assert looked > 50
