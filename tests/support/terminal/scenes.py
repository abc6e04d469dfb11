"""Pieces of a run, played on a terminal in a second.

    python -m tests.support.terminal.scenes NAME FOLDER

Nothing is computed. The console and the watcher are the real ones; the clock is ours, and so are
the records in the journal, so that what is to be seen is the same every time.
"""

import argparse
import os
import sys
import threading
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from rich.live import Live

from elmwright.jobs.cli import command as cli
from elmwright.jobs.config.toml_file import load_config, to_dict
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.stages.train import stopping_sentence
from elmwright.jobs.terminal import console as console_module
from elmwright.jobs.terminal.console import Console, console_for_run
from elmwright.jobs.terminal.signals import stop_signals
from elmwright.jobs.training.driver.display import Watcher
from elmwright.pipeline.errors import Interrupted
from elmwright.pipeline.progress import plural, stage
from elmwright.pipeline.storage.files import at
from tests.support.terminal.screen import LOOKED
from tests.support.tiny import manifest, write_config

START = 1_000_000.0
SPEED = 0.28
"""Seconds per step."""


class Clock:
    """Tells the time we say."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        return self.now


class CountedLive(Live):
    """Counts how often it was drawn."""

    running = drawn = 0

    def start(self, refresh: bool = False) -> None:
        CountedLive.running += 1
        super().start(refresh)

    def stop(self) -> None:
        super().stop()
        CountedLive.running -= 1

    def refresh(self) -> None:
        super().refresh()
        CountedLive.drawn += 1


def hold() -> None:
    """Wait until the display was drawn and looked at."""
    # One drawing may have begun before what is to be seen was set: the second one has it.
    enough = CountedLive.drawn + 2
    while CountedLive.running and CountedLive.drawn < enough:
        time.sleep(0.01)
    if LOOKED in os.environ:
        ask, hear = map(int, os.environ[LOOKED].split())
        os.write(ask, b"?")
        os.read(hear, 1)


def corpus(_folder: Path) -> None:
    """Building a corpus: one stage of several pieces, one that shows its speed."""
    clock = Clock()
    console = Console(sys.stdout, clock=clock)
    with stage(console.progress, "reading", 2) as line:
        with line.piece(3) as advance:
            advance(3)
        clock.now += 2
        line.result = plural(1, "file")
        hold()
    with stage(console.progress, "cleaning", 1) as line, line.piece(40) as advance:
        for _ in range(18):
            clock.now += 1.5
            advance(1, "41,250 words/s")
        hold()
        advance(22)
        line.result = plural(8412, "document")
    with stage(console.progress, "finding copies", 3) as line:
        for _ in range(2):
            with line.piece(4) as advance:
                advance(4)
            clock.now += 3
        hold()
        line.result = f"in {plural(7901, 'document')}"
    console.say("That was the corpus.")


class Training:
    """A run whose journal we write."""

    def __init__(self, folder: Path, *, checkpoint: int = 0) -> None:
        config = write_config(
            folder,
            folder,
            train_max_steps=1000,
            eval_every_steps=250,
            tracking_every_steps=10,
            run_dir=str(folder / "run"),
        )
        self.config = load_config(str(config))
        self.folder = RunFolder.of(self.config)
        Path(self.folder.train).mkdir(parents=True)
        manifest().save(self.folder.corpus)
        if checkpoint:
            write_checkpoint(Path(self.folder.checkpoints), checkpoint)
        self.clock = Clock()

    def write(self, kind: str, step: int, **values: Any) -> None:
        import json

        record = {"kind": kind, "step": step, "time": int(self.clock.now * 1000), **values}
        with open(self.folder.journal, "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def begin(self, step: int, attempt: int) -> None:
        """An attempt begins; its first step takes forty times as long as others."""
        self.write("begin", step, attempt=attempt)
        self.clock.now += 40 * SPEED
        self.write("step", step + 1, attempt=attempt)
        self.clock.now += 4 * SPEED
        self.write("step", step + 5, attempt=attempt)
        self.clock.now -= 5 * SPEED

    def steps(self, first: int, last: int) -> None:
        """Records every ten steps."""
        for step in range(first + 10, last + 1, 10):
            self.clock.now += 10 * SPEED
            if step % 250 == 0:
                self.clock.now += 8.0
                self.write("eval", step, values={"heldout/fresh_perplexity": 212.34})
            values = {"train/loss": 6.0 - step / 500, "train/tokens_per_s": 3758.2}
            self.write("metrics", step, values=values)
            if step % 100 == 0:
                self.write("checkpoint", step, path="", sha256=str(step), perplexity={})


def write_checkpoint(folder: Path, step: int) -> None:
    """As much of one as a list of checkpoints looks at."""
    from elmwright.jobs.checkpoints.checkpoint import FORMAT, MANIFEST
    from elmwright.pipeline.format.manifest import canonical
    from elmwright.pipeline.storage.disk import sha256_bytes

    place = folder / f"step-{step:08d}"
    place.mkdir(parents=True)
    data = {
        "format": FORMAT,
        "step": step,
        "files": {"model.safetensors": {"sha256": "0" * 64, "bytes": 1}},
        "perplexity": {},
        "tokens": 0,
    }
    at(place / MANIFEST).write_json({**data, "sha256": sha256_bytes(canonical(data))})


def training(folder: Path) -> None:
    """From the start of the processes to the end."""
    run = Training(folder)
    console = Console(sys.stdout, clock=run.clock)
    with console.bar("training", 1000, "steps", 60.0) as bar:
        watcher = Watcher(run.config, run.folder, console, bar, run.clock)
        watcher.look()
        hold()
        run.clock.now += 12
        run.write("begin", 0, attempt=1)
        watcher.look()
        hold()
        run.begin(0, 1)
        watcher.look()
        hold()
        run.steps(0, 10)
        watcher.look()
        hold()
        run.steps(10, 630)
        watcher.look()
        hold()
        run.steps(630, 990)
        watcher.look()
        run.clock.now += 20  # the last evaluation
        watcher.look()
        hold()
        run.write("scoring", 1000, tokens=24310, done=0)
        watcher.look()
        hold()
        run.write("scoring", 1000, tokens=24310, done=9800)
        watcher.look()
        hold()
        run.steps(990, 1000)
        watcher.look()
    console.say("Training is done.")


def resume(folder: Path) -> None:
    """The command before was killed at step 240, after a checkpoint at 200."""
    run = Training(folder, checkpoint=200)
    run.begin(0, 1)
    run.steps(0, 240)
    run.clock.now += 3600
    console = Console(sys.stdout, clock=run.clock)
    with console.bar("training", 1000, "steps", 60.0, done=200) as bar:
        watcher = Watcher(run.config, run.folder, console, bar, run.clock)
        watcher.look()
        hold()
        run.begin(200, 2)
        watcher.look()
        hold()
        run.clock.now += 40 * SPEED  # of which the journal has the records already
        run.steps(240, 300)
        watcher.look()
        hold()
        bar.is_complete = True


def interrupt(folder: Path) -> None:
    """Waits for Ctrl-C in training, as `launch` does, and ends as the command does."""
    run, begun = Training(folder), threading.Event()

    def command(_options: argparse.Namespace) -> int:
        Path(run.folder.root).mkdir(exist_ok=True)
        with (
            stop_signals() as stop,
            console_for_run(run.folder.log) as console,
            stop.saving(partial(stopping_sentence, begun), console.say),
        ):
            with console.bar("training", 1000, "steps", 60.0) as bar:
                watcher = Watcher(run.config, run.folder, console, bar, begun=begun)
                run.begin(0, 1)
                run.steps(0, 210)
                watcher.look()
                while not stop.is_set():
                    time.sleep(0.05)
                watcher.stopping()
                hold()
            raise Interrupted("training is at step 213; the same command resumes it")

    sys.exit(run_command(command))


def failure(folder: Path) -> None:
    """A defect in the middle of a run, in another thread, and one wrapped by Ray."""

    def command(_options: argparse.Namespace) -> int:
        folder.mkdir(exist_ok=True)
        with (
            console_for_run(folder / "elmwright.log") as console,
            console.progress("cleaning", 3, "files") as advance,
        ):
            advance(1)
            thread = threading.Thread(target=defect, name="second")
            thread.start()
            thread.join()
            hold()
            try:
                defect()
            except KeyError as error:
                raise wrapped(error) from error
        return 0

    sys.exit(run_command(command))


def early_failure(_folder: Path) -> None:
    """A defect before there is a run, and one in a thread."""

    def command(_options: argparse.Namespace) -> int:
        thread = threading.Thread(target=defect, name="early")
        thread.start()
        thread.join()
        defect()
        return 0

    sys.exit(run_command(command))


def defect() -> None:
    raise KeyError("unit")


def wrapped(error: Exception) -> Exception:
    """As Ray hands an error on: its text is a traceback, the error itself is its cause."""
    text = "ray::run_once()\nTraceback (most recent call last):\n  File \"x\"\nKeyError: 'unit'"
    outer = RuntimeError(text)
    vars(outer)["cause"] = error
    return outer


def run_command(command: Any) -> int:
    """`elmwright`, if it had this command only."""
    cli._run_command = lambda _words: command(argparse.Namespace())  # type: ignore[assignment]
    return cli.main([])


def evaluation(_folder: Path) -> None:
    """Scoring by tokens and reading by bytes, one inside the other."""
    clock = Clock()
    console = Console(sys.stdout, clock=clock)
    with ExitStack() as stack:
        score = stack.enter_context(console.progress("scoring", 1_234_567, "tokens"))
        for _ in range(10):
            clock.now += 4.0
            score(41_000)
        hold()
        with console.progress("reading", 310_000_000, "bytes") as read:
            read(140_000_000)
            clock.now += 1
            hold()
        score(824_567)
    console.warn("this warning is so long that it does not fit on a line of eighty columns at all")


def quiet(_folder: Path) -> None:
    """Only warnings and what came out."""
    console = Console(sys.stdout, quiet=True)
    console.say("not to be seen")
    with console.progress("cleaning", 3, "files") as advance:
        advance(3)
        hold()
    console.warn("careful")
    console.result("all is well")


def interrupt_early(folder: Path) -> None:
    """Waits for Ctrl-C before training has begun."""
    run, begun = Training(folder), threading.Event()
    console = Console(sys.stdout)
    with (
        stop_signals() as stop,
        stop.saving(partial(stopping_sentence, begun), console.say),
        console.bar("training", 1000, "steps", 60.0) as bar,
    ):
        watcher = Watcher(run.config, run.folder, console, bar, begun=begun)
        watcher.look()
        while not stop.is_set():
            time.sleep(0.05)
        watcher.stopping()
        hold()


def export(folder: Path) -> None:
    """`elmwright export`, whose work somebody else has done."""
    from elmwright.jobs.cli import publish
    from elmwright.jobs.publishing import export as exporting

    run = Training(folder)
    at(run.folder.config).write_json(to_dict(run.config))
    checked = "2,000 held-out sentences score as the trainer says, all layers of 20 sentences agree"
    publish.check_export = lambda *_: None  # type: ignore[assignment]
    exporting.export_run = lambda *_, **__: ("bundle", checked)  # type: ignore[assignment]
    sys.exit(cli.main(["export", run.folder.root, "-q"]))


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    console_module.Live = CountedLive  # type: ignore[misc]
    globals()[sys.argv[1]](Path(sys.argv[2]))
