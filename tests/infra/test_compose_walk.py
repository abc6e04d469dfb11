"""Starts the services of the compose file, and trains and registers models on them.

Needs Docker with Compose, the image, the images of PostgreSQL and rclone, free ports, and minutes,
so only `make compose-test` runs it. Everything is in a separate compose project, whose containers
and volumes are removed at the end. Other projects are not affected.
"""

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from elmwright.jobs.runbook import deployment
from tests.support.infra import shared_names
from tests.support.places import INFRA, ROOT

ON_CLUSTER = [
    "--set",
    f"cluster.address={shared_names.SERVICE_HEAD}:{shared_names.RAY_PORT}",
    "--set",
    f"tracking.uri=http://{shared_names.SERVICE_MLFLOW}:{shared_names.MLFLOW_PORT}",
]
STEPS = 600
SAME_FILES = {
    "model.safetensors",
    "softmax.safetensors",
    "weights.hdf5",
    "vocab.txt",
    "config.json",
    "options.json",
}
"""Files of a bundle that must be equal in two runs, because they have no run name and no time."""


class Compose:
    """The compose project of this test, with its settings, text and config in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.token = secrets.token_hex(32)
        for name in ("configs", "text"):
            (folder / name).mkdir(mode=0o755)
        for page in [ROOT / "README.md", INFRA / "README.md", *(ROOT / "docs").glob("*.md")]:
            copy = folder / "text" / f"{page.parent.name}-{page.name}"
            copy.write_text(page.read_text(encoding="utf-8"), encoding="utf-8")
        tiny = (INFRA / "local" / "tiny.toml").read_text(encoding="utf-8")
        for old, new in (
            ('dir = "build/{name}"', f'dir = "{deployment.RUNS_PATH}/{{name}}"'),
            ('sources = ["*.md", "infra/*.md"]', f'sources = ["{shared_names.TEXT_PATH}/*.md"]'),
            ("max_steps = 20", f"max_steps = {STEPS}"),
            ("every_steps = 10", "every_steps = 200"),
        ):
            assert old in tiny
            tiny = tiny.replace(old, new)
        self.config = folder / "configs" / "walk.toml"
        self.config.write_text(tiny, encoding="utf-8")
        (folder / "env").write_text(
            f"RAY_AUTH_TOKEN={self.token}\n"
            f"AWS_ACCESS_KEY_ID={secrets.token_hex(10)}\n"
            f"AWS_SECRET_ACCESS_KEY={secrets.token_hex(20)}\n"
            f"POSTGRES_PASSWORD={secrets.token_hex(20)}\n"
            f"CONFIGS={folder / 'configs'}\nTEXT={folder / 'text'}\n"
        )

    def command(self, *words: str) -> list[str]:
        """The command line that runs `docker compose` with these words in the project."""
        return [
            "docker",
            "compose",
            "--project-name",
            "elmwright-test",
            "--env-file",
            str(self.folder / "env"),
            "--file",
            str(INFRA / "compose" / "compose.yaml"),
            *words,
        ]

    def execute(self, *words: str) -> str:
        """Run `docker compose` with these words, which must succeed; returns its output."""
        begin = time.monotonic()
        done = subprocess.run(
            self.command(*words),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=900,
        )
        assert done.returncode == 0, f"{words}: {done.stdout[-3000:]}"
        print(f"{time.monotonic() - begin:6.0f} s  docker compose {' '.join(words)}", flush=True)
        return done.stdout

    def run_command(self, name: str) -> list[str]:
        """The words for `execute` that run the config in the head's container."""
        config = f"{shared_names.CONFIGS_PATH}/{self.config.name}"
        return [
            "exec",
            "-T",
            "head",
            "elmwright",
            "run",
            config,
            "--set",
            f"run.name={name}",
            *ON_CLUSTER,
        ]

    def checksums(self, name: str) -> dict[str, str]:
        """The sha256 of each of `SAME_FILES` in the bundle of a run."""
        path = f"{deployment.RUNS_PATH}/{name}/bundle/SHA256SUMS"
        lines = self.execute("exec", "-T", "head", "cat", path).splitlines()
        sums = {file: checksum for checksum, file in (line.split() for line in lines)}
        assert sums.keys() > SAME_FILES
        return {file: sums[file] for file in SAME_FILES}


@pytest.fixture
def compose(tmp_path: Path) -> Iterator[Compose]:
    if os.environ.get("ELMWRIGHT_COMPOSE") != "required":
        pytest.skip("needs Docker and takes minutes; 'make compose-test' runs it")
    project = Compose(tmp_path)
    try:
        try:
            project.execute("up", "--wait")
        except AssertionError:
            # Shown now, because `down` removes the logs.
            subprocess.run(project.command("logs", "--tail", "50"), check=False)
            raise
        yield project
    finally:
        project.execute("down", "--volumes")


@pytest.mark.heavy
@pytest.mark.timeout(2400)
def test_a_run_stopped_by_compose_while_training_gives_the_same_model(
    compose: Compose, tmp_path: Path
) -> None:
    assert "Registered whole version 1" in compose.execute(*compose.run_command("whole"))
    log = tmp_path / "stopped.log"
    with log.open("wb") as output:
        driver = subprocess.Popen(
            compose.command(*compose.run_command("stopped")),
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    wait_for_training(compose, driver, log)
    compose.execute("stop")
    assert driver.wait(timeout=60) == 75, log.read_text()[-3000:]
    print(log.read_text().strip().splitlines()[-1])
    compose.execute("up", "--wait")
    resumed = compose.execute(*compose.run_command("stopped"))
    assert "Registered stopped version 1" in resumed
    assert compose.checksums("stopped") == compose.checksums("whole")


@pytest.mark.heavy
@pytest.mark.timeout(1200)
def test_a_run_is_submitted_from_outside_the_containers(compose: Compose, tmp_path: Path) -> None:
    address = f"http://127.0.0.1:{shared_names.DASHBOARD_PORT}"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    environment |= {"HOME": str(tmp_path), "RAY_AUTH_MODE": "token"}
    command = [
        sys.executable,
        "-m",
        "elmwright.jobs.cli",
        "submit",
        str(compose.config),
        "--to",
        address,
        "--follow",
        *ON_CLUSTER[2:],
    ]
    for token, code in (("another", 2), (compose.token, 0)):
        done = subprocess.run(
            command,
            env=environment | {"RAY_AUTH_TOKEN": token},
            cwd=tmp_path,
            timeout=600,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stdout[-3000:]
    assert "Registered tiny version 1" in done.stdout


def wait_for_training(compose: Compose, driver: "subprocess.Popen[bytes]", log: Path) -> None:
    """Wait until the journal has a step, which is long before the last one."""
    journal = f"{deployment.RUNS_PATH}/stopped/train/journal.jsonl"
    has_step = compose.command("exec", "-T", "head", "grep", "-q", '"step"', journal)
    while subprocess.run(has_step, capture_output=True, check=False).returncode != 0:
        assert driver.poll() is None, log.read_text()[-3000:]
        time.sleep(0.5)
