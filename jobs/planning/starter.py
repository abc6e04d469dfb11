"""`elmwright init`: writes a config for the user's own text whose training fits a given time.

`survey.py` inspects the text, and these rules choose the numbers, which comments in the file
(`starter.toml.jinja`) explain:

- the optimiser, its schedule and the small model are the demo recipe's, which was tuned for
  minutes on a few cores; a larger model is chosen only if text and time are enough for it;
- as many steps as fit the hours by the rule of thumb of `estimate.py`, but at most `EPOCHS`
  passes over the text;
- one process per core, the same number of lanes per process, and blocks small enough that every
  lane has several;
- long documents are cut if a single one would be a large part of the held-out text.
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
"""Most passes over the text; with more the model would mostly memorise it."""
WINDOW, LANES = 20, 64
LARGE_TEXT, LARGE_BUDGET = 10_000_000, 20_000_000
"""Fewest tokens of text, and fewest tokens to train on, for the larger model."""
EVALUATION_SHARE = 0.1
"""Share of the time that evaluation and export take."""
MAX_PROCESSES = 16
"""More would lose more time to communication than they gain; further cores become threads."""

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
class StarterNumbers:
    """The numbers of a starter config."""

    config: RunConfig
    """[model], [optim], [train], [eval], [checkpoint]."""
    vocabulary: int
    block_steps: int
    heldout: float
    cut_documents: int
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
        """Estimated time of training."""
        return self.tokens / self.tokens_per_s


def write_starter(
    file: Path, sources: list[str], *, hours: float = 1.0, force: bool = False
) -> str:
    """Write the config; return a summary of the text and the chosen numbers in a few lines."""
    if file.exists() and not force:
        raise UserError("output", f"{file} exists already; choose another name, or add --force")
    if not 0 < hours <= 10_000:
        raise UserError(
            "argument", f"--hours {hours:g}: give the hours that training may take, such as 2"
        )
    paths = sources or _default_sources()
    text = survey(paths)
    numbers = choose(text, hours, len(os.sched_getaffinity(0)))
    content = starter_text(file, paths, text, numbers, hours)
    config_from(tomllib.loads(content), str(file))  # refuses what 'run' would refuse
    try:
        file.write_text(content, encoding="utf-8")
    except OSError as error:
        raise UserError("output", f"{file} cannot be written: {error.strerror}") from error
    return _summary(file, text, numbers)


def _default_sources() -> list[str]:
    """The folder `text`, for a user who named no source."""
    if any(path.is_file() for path in Path("text").rglob("*")):
        return ["text"]
    raise UserError(
        "no-text",
        "there is no text yet; name it (elmwright init my.toml --source 'books/*.txt'), or put "
        "files into a folder called text",
    )


def choose(text: Survey, hours: float, cores: int) -> StarterNumbers:
    """The numbers for a text, a time and a number of cores."""
    processes = min(cores, MAX_PROCESSES)
    threads = max(1, cores // processes)
    # Even with a small text each lane should have about 20 windows to read.
    max_lanes = max(1, text.steps // (WINDOW * 20))
    lanes = max(processes, min(-(-LANES // processes), max(1, max_lanes // processes)) * processes)
    vocabulary = _vocabulary(text.steps)
    seconds = 3600 * hours - START_SECONDS - text.bytes / (CORPUS_BYTES * cores)
    seconds = max(0.25 * 3600 * hours, seconds) * (1 - EVALUATION_SHARE)

    def config_and_rate(model: ModelConfig, lr: float, negatives: int) -> tuple[RunConfig, float]:
        config = RunConfig(
            model=model,
            optim=OptimConfig(
                "adamw",
                lr,
                softmax_lr=2.0,  # 4.0 is no better on WikiText-2
                softmax_betas=(0.0, 0.99),
                clip_norm=1.0,
                scale_by_window=False,
                schedule="linear",
            ),
            train=TrainSection(
                processes,
                threads,
                lanes=lanes,
                window=WINDOW,
                negatives=negatives,
            ),
        )
        return config, rule_of_thumb(config, vocabulary, cores)

    config, rate = config_and_rate(_LARGE, 0.004, 2048)
    if text.steps < LARGE_TEXT or rate * seconds < LARGE_BUDGET:
        config, rate = config_and_rate(_SMALL, 0.008, 1024)
    by_time, by_text = rate * seconds, EPOCHS * text.steps
    steps = max(50, _round_down(min(by_time, by_text) / config.train.tokens))
    epochs = steps * config.train.tokens / max(1, text.steps)
    checkpoint_steps = max(10, min(steps // 4, _round_down(120 * rate / config.train.tokens)))
    heldout = 0.01 if text.steps >= 2_000_000 else 0.02 if text.steps >= 500_000 else 0.05
    config = replace(
        config,
        optim=replace(config.optim, warmup_steps=min(100, max(5, steps // 10))),
        train=replace(config.train, max_steps=steps, dropout=0.1 if epochs > 2 else 0.0),
        eval=EvalSection(
            every_steps=max(10, _round_down(steps / 5)),
            max_tokens=20_000,
            lanes=16 if 16 % processes == 0 else processes,
        ),
        checkpoint=CheckpointSection(every_steps=checkpoint_steps),
    )
    return StarterNumbers(
        config=config,
        vocabulary=vocabulary,
        block_steps=_block_steps(text.steps, lanes),
        heldout=heldout,
        cut_documents=_cut_documents(text, heldout),
        tokens_per_s=rate,
        epochs=epochs,
        limited_by="time" if by_time < by_text else "text",
    )


def _round_down(number: float) -> int:
    """Round down to two digits, because the estimate is no more precise."""
    whole = max(1, int(number))
    unit = int(10 ** max(0, len(str(whole)) - 2))
    return whole // unit * unit


def _vocabulary(steps: int) -> int:
    """About how many words of a text occur often enough to be learnt: 20 times its square root."""
    return min(200_000, max(2_000, round(20 * math.sqrt(steps)) // 1000 * 1000))


def _block_steps(steps: int, lanes: int) -> int:
    """The largest block of which every lane has at least four, because larger ones pad less."""
    return next((size for size in (1280, 640, 320) if steps >= 4 * lanes * size), 160)


def _cut_documents(text: Survey, heldout: float) -> int:
    """Characters per piece of a long document, for at least 10 pieces in the held-out set; or 0."""
    if text.longest < heldout * text.bytes / 5 and text.longest < 500_000:
        return 0
    max_size = heldout * text.bytes / 10
    return next((size for size in (10_000, 5_000) if size <= max_size), 2_000)


def starter_text(
    file: Path, paths: list[str], text: Survey, numbers: StarterNumbers, hours: float
) -> str:
    """The content of the config file."""
    name = re.sub(r"[^A-Za-z0-9._-]", "-", file.stem).lstrip("._-")[:100]
    fields = {field for field in text.fields if field}
    common_field = fields.pop() if len(fields) == 1 else ""
    sources = [
        _quote(path)
        if common_field or field in ("", "text")
        else f"{{ path = {_quote(path)}, text_field = {_quote(field)} }}"
        for path, field in zip(paths, text.fields, strict=True)
    ]
    # The file is TOML, not HTML: `quote` escapes its strings.
    environment = Environment(  # noqa: S701
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=StrictUndefined
    )
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        vars(numbers.config),
        file=file,
        name=name or "run",
        text=text,
        numbers=numbers,
        hours=hours,
        sources=sources,
        text_field="" if common_field == "text" else common_field,
        language=f"{name_of(text.language)}, {text.share:.0%} of a sample",
        pieces=-(-2 * text.alphabet // 1000) * 1000,
        default_pieces=Pieces().size,
        is_small=numbers.config.model == _SMALL,
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
    return f"{_round_down(number):,}"


def _summary(file: Path, text: Survey, numbers: StarterNumbers) -> str:
    files = f"{plural(text.files, 'file')}, " if text.files else ""
    language = f", {name_of(text.language)}" if text.share else ""
    lines = [
        f"wrote {file}",
        f"  text      {files}{size(text.bytes)}, about {_about(text.steps)} words{language}",
    ]
    if numbers.cut_documents:
        lines.append(
            f"  held-out  {numbers.heldout:.0%}; documents are cut (the longest is "
            f"{text.longest / text.bytes:.1%} of the text)"
        )
    lines += [
        f"  training  {numbers.config.train.max_steps:,} steps, {numbers.epochs:.1f} times "
        f"the text, about {in_words(numbers.seconds)} here",
        f"Next: elmwright check {file}, then elmwright run {file}",
    ]
    return "\n".join(lines)
