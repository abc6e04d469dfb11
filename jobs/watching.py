"""What a person sees of training: the progress bar, moved by what the journal says."""

from typing import Any

from elmwright.jobs.config import RunConfig
from elmwright.jobs.console import Bar, Console
from elmwright.jobs.journal import read_journal
from elmwright.jobs.layout import RunFolder
from elmwright.pipeline.manifest import Manifest


class Watcher:
    """Follows the journal of a run that is training."""

    def __init__(self, config: RunConfig, folder: RunFolder, console: Console, bar: Bar) -> None:
        self._journal, self._console, self._bar = folder.journal, console, bar
        self._tokens = config.train.tokens
        manifest = Manifest.load(folder.corpus)
        self._epoch = manifest.splits["train"].blocks * manifest.block_steps
        self._position = self._step = 0
        self._loss = self._speed = self._held_out = self._saved = ""
        # What an earlier command has warned of is not news; where it came to is.
        for record, position in read_journal(self._journal, 0):
            self._position = position
            self._take(record)

    def look(self) -> None:
        """Show what is new."""
        for record, position in read_journal(self._journal, self._position):
            self._position = position
            self._take(record)
            if record["kind"] == "warning":
                self._console.warn(record["text"])
        tokens = self._step * self._tokens
        parts = [self._loss, self._held_out, self._speed, self._saved]
        if self._step:
            parts.insert(0, f"{_short(tokens)} tokens, epoch {tokens / self._epoch:.2f}")
        self._bar.set(self._step, ", ".join(filter(None, parts)) or "starting the processes")

    def _take(self, record: dict[str, Any]) -> None:
        self._step = max(self._step, record["step"])
        values = record.get("values", {})
        if record["kind"] == "metrics":
            self._loss = f"loss {values['train/loss']:.2f}"
            if "train/tokens_per_s" in values:
                self._speed = f"{values['train/tokens_per_s']:,.0f} tokens/s"
        elif record["kind"] == "eval":
            scores = [v for k, v in values.items() if k.endswith("/perplexity")]
            self._held_out = f"held-out ppl {scores[0]:.1f}"
        elif record["kind"] == "checkpoint":
            self._saved = f"saved at {record['step']:,}"


def _short(number: float) -> str:
    for unit in ("", " k", " M"):
        if number < 1000:
            return f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:,.2f} G"
