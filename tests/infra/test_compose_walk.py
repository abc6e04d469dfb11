"""The compose file, brought up: corpus to registered model, stopped in training, and resumed.

Needs Docker with Compose, the image, the images of PostgreSQL and rclone, and free ports; it takes
minutes. So it runs only where `make compose-test` asks for it. Everything is in a project of its
own, whose containers and volumes are removed at the end; another project is not touched.
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
SAME = {
    "model.safetensors",
    "softmax.safetensors",
    "weights.hdf5",
    "vocab.txt",
    "config.json",
    "options.json",
}
"""Files of a bundle that name neither the run nor the time."""


class Compose:
    """The project of this test: its settings, its text and its config in a folder."""

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

    def do(self, *words: str) -> str:
        """Run a command of compose's, which must succeed; what it prints, and how long it took."""
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

    def run(self, name: str) -> list[str]:
        """The words that run the config inside the head's container."""
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
        path = f"{deployment.RUNS_PATH}/{name}/bundle/SHA256SUMS"
        lines = self.do("exec", "-T", "head", "cat", path).splitlines()
        sums = {file: checksum for checksum, file in (line.split() for line in lines)}
        assert sums.keys() > SAME
        return {file: sums[file] for file in SAME}


@pytest.fixture
def compose(tmp_path: Path) -> Iterator[Compose]:
    if os.environ.get("ELMWRIGHT_COMPOSE") != "required":
        pytest.skip("takes Docker and minutes; 'make compose-test' runs it")
    project = Compose(tmp_path)
    try:
        try:
            project.do("up", "--wait")
        except AssertionError:
            # `down` removes the only evidence.
            subprocess.run(project.command("logs", "--tail", "50"), check=False)
            raise
        yield project
    finally:
        project.do("down", "--volumes")


@pytest.mark.heavy
@pytest.mark.timeout(2400)
def test_a_run_that_compose_stops_in_training_ends_in_the_same_model(
    compose: Compose, tmp_path: Path
) -> None:
    assert "Registered whole version 1" in compose.do(*compose.run("whole"))
    log = tmp_path / "stopped.log"
    with log.open("wb") as output:
        driver = subprocess.Popen(
            compose.command(*compose.run("stopped")), stdout=output, stderr=subprocess.STDOUT
        )
    wait_for_training(compose, driver, log)
    compose.do("stop")
    assert driver.wait(timeout=60) == 75, log.read_text()[-3000:]
    print(log.read_text().strip().splitlines()[-1])
    compose.do("up", "--wait")
    resumed = compose.do(*compose.run("stopped"))
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
    """Until the first steps are done, and long before the last."""
    journal = f"{deployment.RUNS_PATH}/stopped/train/journal.jsonl"
    look = compose.command("exec", "-T", "head", "grep", "-q", '"step"', journal)
    while subprocess.run(look, capture_output=True, check=False).returncode != 0:
        assert driver.poll() is None, log.read_text()[-3000:]
        time.sleep(0.5)
