"""`elmwright init`: a config for the user's own text that learns something in a given time.

It asks no questions. `survey.py` inspects the files; the rest are rules, and the file
(`starter.toml.jinja`) explains each number:

- the optimiser, its schedule and the small model are the demo recipe's, which was tuned for
  minutes on a few cores; a larger model is chosen only if there is the text and the time for it;
- as many steps as fit the hours by the rule of thumb of `estimate.py`, but at most `EPOCHS` times
  the text;
- one process per core, lanes that they share evenly, blocks small enough that every lane has
  several;
- long documents are cut where one of them would be a large part of the held-out text.
"""

import json
import math
import os
import re
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from elmwright.jobs.config.sections import CheckpointSection, EvalSection, RunConfig, TrainSection
from elmwright.jobs.config.toml_file import config_from
from elmwright.jobs.planning.estimate import CORPUS_BYTES, START_SECONDS, in_words, rule_of_thumb
from elmwright.jobs.planning.survey import Survey, survey
from elmwright.jobs.terminal.wording import size
from elmwright.model.config import ModelConfig, OptimConfig
from elmwright.pipeline.cleaning.language import name_of
from elmwright.pipeline.config import Pieces
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.progress import plural

TEMPLATE = Path(__file__).parent / "starter.toml.jinja"

EPOCHS = 8
"""How often the text is read at most; more would mostly memorise it."""
WINDOW, LANES = 20, 64
LARGE_TEXT, LARGE_BUDGET = 10_000_000, 20_000_000
"""Tokens of text, and tokens to train on, from which the larger model is worth its time."""
EVALUATION = 0.1
"""Share of the time that evaluation and export take."""
PROCESSES = 16
"""More processes exchange more than they gain; further cores become threads."""

_SMALL = ModelConfig(
    dim=256, projection_dim=64, filters=((1, 16), (2, 16), (3, 32), (4, 64), (5, 64)), n_highway=1
)
_LARGE = ModelConfig(
    dim=512,
    projection_dim=128,
    filters=((1, 32), (2, 32), (3, 64), (4, 128), (5, 256)),
    n_highway=1,
)


@dataclass(frozen=True)
class Start:
    """The numbers of a starter config."""

    config: RunConfig
    """[model], [optim], [train], [eval], [checkpoint]."""
    vocabulary: int
    block_steps: int
    heldout: float
    cut: int
    tokens_per_s: float
    epochs: float
    limited_by: str
    """What limits the steps: "time" or "text"."""

    @property
    def tokens(self) -> int:
        """Tokens to train on."""
        return self.config.train.max_steps * self.config.train.tokens

    @property
    def seconds(self) -> float:
        """How long training takes."""
        return self.tokens / self.tokens_per_s


def write_starter(
    file: Path, sources: list[str], *, hours: float = 1.0, force: bool = False
) -> str:
    """Write the config; return a few lines about the text and the numbers chosen for it."""
    if file.exists() and not force:
        raise UserError("output", f"{file} exists already; choose another name, or add --force")
    if not 0 < hours <= 10_000:
        raise UserError(
            "argument", f"--hours {hours:g}: give the hours that training may take, such as 2"
        )
    paths = sources or _default_sources()
    text = survey(paths)
    start = choose(text, hours, len(os.sched_getaffinity(0)))
    content = starter_text(file, paths, text, start, hours)
    config_from(tomllib.loads(content), str(file))  # refuses what 'run' would refuse
    try:
        file.write_text(content, encoding="utf-8")
    except OSError as error:
        raise UserError("output", f"{file} cannot be written: {error.strerror}") from error
    return _summary(file, text, start)


def _default_sources() -> list[str]:
    """The sources if none was named."""
    if any(path.is_file() for path in Path("text").rglob("*")):
        return ["text"]
    raise UserError(
        "no-text",
        "there is no text yet; name it (elmwright init my.toml --source 'books/*.txt'), or put "
        "files into a folder called text",
    )


def choose(text: Survey, hours: float, cores: int) -> Start:
    """The numbers for this much text, time and machine."""
    processes = min(cores, PROCESSES)
    threads = max(1, cores // processes)
    # A lane should have some windows to read even of a small text.
    most = max(1, text.steps // (WINDOW * 20))
    lanes = max(processes, min(-(-LANES // processes), max(1, most // processes)) * processes)
    vocabulary = _vocabulary(text.steps)
    seconds = 3600 * hours - START_SECONDS - text.bytes / (CORPUS_BYTES * cores)
    seconds = max(0.25 * 3600 * hours, seconds) * (1 - EVALUATION)

    def shaped(model: ModelConfig, lr: float, negatives: int) -> tuple[RunConfig, float]:
        config = RunConfig(
            model=model,
            optim=OptimConfig("adamw", lr, clip_norm=1.0, scale_by_window=False, schedule="cosine"),
            train=TrainSection(
                processes,
                threads,
                lanes=lanes,
                window=WINDOW,
                negatives=negatives,
                reset_states="block",
            ),
        )
        return config, rule_of_thumb(config, vocabulary, cores)

    config, rate = shaped(_LARGE, 0.004, 2048)
    if text.steps < LARGE_TEXT or rate * seconds < LARGE_BUDGET:
        config, rate = shaped(_SMALL, 0.008, 1024)
    by_time, by_text = rate * seconds, EPOCHS * text.steps
    steps = max(50, _round(min(by_time, by_text) / config.train.tokens))
    epochs = steps * config.train.tokens / max(1, text.steps)
    saved = max(10, min(steps // 4, _round(120 * rate / config.train.tokens)))
    heldout = 0.01 if text.steps >= 2_000_000 else 0.02 if text.steps >= 500_000 else 0.05
    config = replace(
        config,
        optim=replace(config.optim, warmup_steps=min(100, max(5, steps // 10))),
        train=replace(config.train, max_steps=steps, dropout=0.1 if epochs > 2 else 0.0),
        eval=EvalSection(
            every_steps=max(10, _round(steps / 5)),
            max_tokens=20_000,
            lanes=16 if 16 % processes == 0 else processes,
        ),
        checkpoint=CheckpointSection(every_steps=saved),
    )
    return Start(
        config=config,
        vocabulary=vocabulary,
        block_steps=_block_steps(text.steps, lanes),
        heldout=heldout,
        cut=_cut(text, heldout),
        tokens_per_s=rate,
        epochs=epochs,
        limited_by="time" if by_time < by_text else "text",
    )


def _round(number: float) -> int:
    """Round down to two figures, so that the number looks as rough as it is."""
    whole = max(1, int(number))
    unit = int(10 ** max(0, len(str(whole)) - 2))
    return whole // unit * unit


def _vocabulary(steps: int) -> int:
    """How many words occur often enough to be learnt: about the square root of the text."""
    return min(200_000, max(2_000, round(20 * math.sqrt(steps)) // 1000 * 1000))


def _block_steps(steps: int, lanes: int) -> int:
    """Several blocks for every lane, and long enough that little is padded."""
    return next((size for size in (1280, 640, 320) if steps >= 4 * lanes * size), 160)


def _cut(text: Survey, heldout: float) -> int:
    """Characters at which documents are cut, so that a held-out set has 10 pieces or more; or 0."""
    if text.longest < heldout * text.bytes / 5 and text.longest < 500_000:
        return 0
    longest = heldout * text.bytes / 10
    return next((size for size in (10_000, 5_000) if longest >= size), 2_000)


def starter_text(file: Path, paths: list[str], text: Survey, start: Start, hours: float) -> str:
    """The config file."""
    name = re.sub(r"[^A-Za-z0-9._-]", "-", file.stem).lstrip("._-")[:100]
    fields = {field for field in text.fields if field}
    common = fields.pop() if len(fields) == 1 else ""
    sources = [
        _quote(path)
        if common or field in ("", "text")
        else f"{{ path = {_quote(path)}, text_field = {_quote(field)} }}"
        for path, field in zip(paths, text.fields, strict=True)
    ]
    # TOML needs no escaping but that of its strings, which `quote` does.
    environment = Environment(  # noqa: S701
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=StrictUndefined
    )
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        vars(start.config),
        file=file,
        name=name or "run",
        text=text,
        start=start,
        hours=hours,
        sources=sources,
        text_field="" if common == "text" else common,
        language=f"{name_of(text.language)}, {text.share:.0%} of a sample",
        pieces=-(-2 * text.alphabet // 1000) * 1000,
        default_pieces=Pieces().size,
        is_small=start.config.model == _SMALL,
        line="{:<29} # {}".format,
        percent="{:.1%}".format,
        quote=_quote,
        about=_about,
        plural=plural,
        size=size,
        in_words=in_words,
    )


def _quote(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _about(number: float) -> str:
    if number >= 1e6:
        return f"{number / 1e6:,.1f} million" if number < 1e7 else f"{number / 1e6:,.0f} million"
    return f"{_round(number):,}"


def _summary(file: Path, text: Survey, start: Start) -> str:
    files = f"{plural(text.files, 'file')}, " if text.files else ""
    language = f", {name_of(text.language)}" if text.share else ""
    lines = [
        f"wrote {file}",
        f"  text      {files}{size(text.bytes)}, about {_about(text.steps)} words{language}",
    ]
    if start.cut:
        lines.append(
            f"  held-out  {start.heldout:.0%}; documents are cut (the longest is "
            f"{text.longest / text.bytes:.1%} of the text)"
        )
    lines += [
        f"  training  {start.config.train.max_steps:,} steps, {start.epochs:.1f} times the text, "
        f"about {in_words(start.seconds)} here",
        f"Next: elmwright check {file}, then elmwright run {file}",
    ]
    return "\n".join(lines)
