"""A user who submits runs to a Ray cluster, and waits for them."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from elmwright.jobs.rundir.journal_lines import read_journal
from elmwright.pipeline.storage.disk import sha256_bytes
from elmwright.pipeline.storage.files import at, join
from tests.support.cluster.ray_nodes import RayHead
from tests.support.tiny import elmwright, write_config, write_text

STEPS = 120
PLANTED = "planted-secret-7f3a91c2"


class Cluster:
    """A cluster, and a user who submits to it."""

    def __init__(self, home: Path, head: RayHead, tracking: str) -> None:
        self.home, self.head, self.tracking = home, head, tracking
        self.user = {
            "HOME": str(home / "user"),
            "XDG_STATE_HOME": str(home / "state"),
            "XDG_CONFIG_HOME": str(home / "config"),
            "LAB_SECRET_TOKEN": PLANTED,
            "AWS_SECRET_ACCESS_KEY": PLANTED,
        }
        (home / "user").mkdir()
        self.text = write_text(home / "text.txt")

    def run(self, *arguments: object, code: int = 0) -> str:
        done = elmwright(*arguments, timeout=1200, **self.user)
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stdout + done.stderr
        return done.stdout + done.stderr

    def submit(self, name: str, **changes: Any) -> Path:
        folder = self.home / name
        folder.mkdir()
        settings = {"train_max_steps": STEPS, "checkpoint_every_steps": 20, **changes}
        config = write_config(
            folder,
            self.text,
            run_name=name,
            tracking_uri=self.tracking,
            eval_every_steps=60,
            **settings,
        )
        self.run("submit", config, "--to", self.head.address, "--until", "publish")
        return folder / "run"

    def status(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run("status", name, "--json"))
        return found

    def wait(self, name: str, *words: str, seconds: float = 900) -> dict[str, Any]:
        return until(
            lambda: (found := self.status(name))["state"] in words and found,
            seconds,
            lambda: self.run("status", name) + self.run("logs", name),
        )

    def wait_for_step(self, folder: Path, step: int) -> None:
        journal = folder / "train" / "journal.jsonl"
        until(
            lambda: any(r.step >= step for r, _ in read_journal(journal, 0)),
            900,
            lambda: (folder / "elmwright.log").read_text()[-3000:],
        )


def until(condition: Callable[[], Any], seconds: float, about: Callable[[], str]) -> Any:
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, about()
        time.sleep(0.5)
    return found


def digests(folder: str | Path) -> dict[str, str]:
    names = ("model.safetensors", "softmax.safetensors", "weights.hdf5", "vocab.txt")
    return {name: sha256_bytes(at(join(folder, "bundle", name)).read_bytes()) for name in names}
