"""`elmwright init`: a config for the user's own text that learns something in the time given.

It asks nothing. `survey.py` looks at the files; the rest are rules, and the file that is written
says how each number came about:

- the optimiser, its schedule and the small model are the demo recipe's, which has been tuned for
  minutes on a few cores; a larger model only where there is the text and the time for it;
- steps: as many as fit the hours at the rule of thumb of `estimate.py`, but no more than `EPOCHS`
  times the text;
- one process for each core, lanes that they share evenly, blocks small enough that every lane has
  several;
- long documents are cut where one of them would be a good part of the held-out text.
"""

import json
import math
import os
import re
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

from elmwright.jobs.config.sections import CheckpointSection, EvalSection, RunConfig, TrainSection
from elmwright.jobs.config.toml_file import config_from
from elmwright.jobs.planning.estimate import CORPUS_BYTES, START_SECONDS, in_words, rule_of_thumb
from elmwright.jobs.planning.survey import Survey, survey
from elmwright.jobs.terminal.wording import size
from elmwright.model.config import ModelConfig, OptimConfig
from elmwright.pipeline.cleaning.language import name_of
from elmwright.pipeline.config import EMBEDDED, Pieces
from elmwright.pipeline.errors import UserError

EPOCHS = 8
"""How often the text is read, at most: more mostly memorises it."""
WINDOW, LANES = 20, 64
LARGE_TEXT, LARGE_BUDGET = 10_000_000, 20_000_000
"""Tokens of text, and tokens to be trained on, from which the larger model is worth its time."""
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
    """What ended the steps: "time" or "text"."""


def write_starter(file: Path, given: list[str], *, hours: float = 1.0, force: bool = False) -> str:
    """Write the config; what was found and chosen, in a few lines."""
    if file.exists() and not force:
        raise UserError("output", f"{file} exists already; choose another name, or add --force")
    if not 0 < hours <= 10_000:
        raise UserError(
            "argument", f"--hours {hours:g}: give the hours that training may take, such as 2"
        )
    paths = given or _here()
    found = survey(paths)
    start = choose(found, hours, len(os.sched_getaffinity(0)))
    text = starter_text(file, paths, found, start, hours)
    config_from(tomllib.loads(text), str(file))  # refuses what 'run' would refuse
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError("output", f"{file} cannot be written: {error.strerror}") from error
    return _summary(file, found, start)


def _here() -> list[str]:
    """What to read if nothing was named."""
    if any(path.is_file() for path in Path("text").rglob("*")):
        return ["text"]
    raise UserError(
        "no-text",
        "there is no text yet: name it (elmwright init my.toml --source 'books/*.txt'), or put "
        "files into a folder called text",
    )


def choose(found: Survey, hours: float, cores: int) -> Start:
    """The numbers for this much text, time and machine."""
    processes = min(cores, PROCESSES)
    threads = max(1, cores // processes)
    # A lane should have some windows to read even of a small text.
    most = max(1, found.steps // (WINDOW * 20))
    lanes = max(processes, min(-(-LANES // processes), max(1, most // processes)) * processes)
    vocabulary = _vocabulary(found.steps)
    seconds = 3600 * hours - START_SECONDS - found.bytes / (CORPUS_BYTES * cores)
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
    if found.steps < LARGE_TEXT or rate * seconds < LARGE_BUDGET:
        config, rate = shaped(_SMALL, 0.008, 1024)
    by_time, by_text = rate * seconds, EPOCHS * found.steps
    steps = max(50, _round(min(by_time, by_text) / config.train.tokens))
    epochs = steps * config.train.tokens / max(1, found.steps)
    saved = max(10, min(steps // 4, _round(120 * rate / config.train.tokens)))
    heldout = 0.01 if found.steps >= 2_000_000 else 0.02 if found.steps >= 500_000 else 0.05
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
        block_steps=_block_steps(found.steps, lanes),
        heldout=heldout,
        cut=_cut(found, heldout),
        tokens_per_s=rate,
        epochs=epochs,
        limited_by="time" if by_time < by_text else "text",
    )


def _round(number: float) -> int:
    """To two figures, so that it reads as the rough number it is."""
    whole = max(1, int(number))
    unit = int(10 ** max(0, len(str(whole)) - 2))
    return whole // unit * unit


def _vocabulary(steps: int) -> int:
    """Words that occur often enough to be learnt: their number grows like the root of the text."""
    return min(200_000, max(2_000, round(20 * math.sqrt(steps)) // 1000 * 1000))


def _block_steps(steps: int, lanes: int) -> int:
    """Several blocks for every lane, and long enough that little is padded."""
    return next((size for size in (1280, 640, 320) if steps >= 4 * lanes * size), 160)


def _cut(found: Survey, heldout: float) -> int:
    """0, or characters at which documents are cut: a held-out set should be 10 pieces or more."""
    if found.longest < heldout * found.bytes / 5 and found.longest < 500_000:
        return 0
    wanted = heldout * found.bytes / 10
    return next((size for size in (10_000, 5_000) if wanted >= size), 2_000)


def starter_text(file: Path, paths: list[str], found: Survey, start: Start, hours: float) -> str:
    """The config file."""
    name = re.sub(r"[^A-Za-z0-9._-]", "-", file.stem).lstrip("._-")[:100]
    lines = [
        f"# An ELMo of your own text. Run it with:  elmwright run {file}",
        f"# What that will take:                    elmwright check {file}",
        "# Every setting and its meaning:          elmwright config --explain",
        "version = 1",
        "",
        "[run]",
        f'name = "{name or "run"}"',
        "",
        *_corpus_lines(file, paths, found, start),
        "",
        *_shape_lines(start),
        "",
        *_training_lines(start, hours),
    ]
    return "\n".join(lines) + "\n"


def _line(setting: str, comment: str) -> str:
    return f"{setting:<29} # {comment}"


def _corpus_lines(file: Path, paths: list[str], found: Survey, start: Start) -> list[str]:
    fields = {field for field in found.fields if field}
    one = fields.pop() if len(fields) == 1 else ""
    quoted = [json.dumps(path, ensure_ascii=False) for path in paths]
    sources = [
        path
        if one or field in ("", "text")
        else f"{{ path = {path}, text_field = {json.dumps(field)} }}"
        for path, field in zip(quoted, found.fields, strict=True)
    ]
    share = found.longest / max(1, found.bytes)
    lines = ["[corpus]"]
    if paths != [EMBEDDED]:
        lines += [
            f"# {found.files:,} file{'s' * (found.files != 1)} with about "
            f"{size(found.bytes)} of text, some {_about(found.steps)} words.",
            f"# See what the cleaning rules do to it: elmwright corpus {file} --sample 1000",
        ]
    lines.append(f"sources = [{', '.join(sources)}]")
    if one and one != "text":
        lines.append(_line(f"text_field = {json.dumps(one)}", "the field with the text"))
    if found.documents == "file":
        lines.append(_line('documents = "file"', "a file is one document"))
    elif found.documents == "line":
        lines.append(_line('documents = "line"', "too large to be read whole"))
    if start.cut:
        lines += [
            f"# The longest document is {share:.1%} of the text. Cut into pages, long ones do not "
            "go",
            "# into the held-out set as a whole.",
            _line(f"cut_documents = {start.cut}", "characters, cut at the ends of paragraphs"),
        ]
    if found.language != "en":
        whose = f"{name_of(found.language)}, {found.share:.0%} of a sample"
        lines.append(_line(f'language = "{found.language}"', whose))
    if found.tokenizer == "whitespace":
        lines.append(_line('tokenizer = "whitespace"', "it looks tokenised already"))
    elif found.tokenizer == "sentencepiece":
        lines.append(_line('tokenizer = "sentencepiece"', "written without spaces"))
    words = _about(start.heldout * found.steps)
    lines.append(
        _line(f"heldout = {{ heldout = {start.heldout} }}", f"{words} words to measure by")
    )
    if found.tokenizer == "sentencepiece":
        lines += _pieces_lines(found)
    return lines


def _pieces_lines(found: Survey) -> list[str]:
    """Room for the characters and as many pieces again, where the default has not."""
    size = -(-2 * found.alphabet // 1000) * 1000
    if size <= Pieces().size:
        return []
    comment = f"the text has some {found.alphabet:,} characters"
    return ["", "[corpus.sentencepiece]", _line(f"size = {size}", comment)]


def _shape_lines(start: Start) -> list[str]:
    model = start.config.model
    filters = json.dumps([list(pair) for pair in model.filters])
    which = (
        "The demo's model"
        if model == _SMALL
        else "Between the demo's model and the small published one"
    )
    return [
        "[vocab]",
        _line(f"max_size = {start.vocabulary}", "the most words that it can predict"),
        "",
        "[shards]",
        f"block_steps = {start.block_steps}",
        "",
        "[model]",
        f"# {which}: right for this much text and time.",
        f"dim = {model.dim}",
        f"projection_dim = {model.projection_dim}",
        f"filters = {filters}",
        f"n_highway = {model.n_highway}",
    ]


def _training_lines(start: Start, hours: float) -> list[str]:
    config = start.config
    optim, train = config.optim, config.train
    trained = train.max_steps * train.tokens
    took = in_words(trained / start.tokens_per_s)
    tokens = f"{_about(trained)} tokens, {start.epochs:.1f} times the text"
    why = (
        f"As many as fit {hours:g} hour{'s' * (hours != 1)}: {tokens}."
        if start.limited_by == "time"
        else f"{tokens[0].upper()}{tokens[1:]}: more would mostly memorise it."
    )
    threads = [f"threads = {train.threads}"] * (train.threads > 1)
    lanes = [f"lanes = {config.eval.lanes}"] * (config.eval.lanes != 16)
    return [
        "[optim]",
        "# AdamW learns more in the first hours than the Adagrad of the original.",
        f'name = "{optim.name}"',
        f"lr = {optim.lr}",
        f"clip_norm = {optim.clip_norm}",
        "scale_by_window = false",
        f'schedule = "{optim.schedule}"',
        f"warmup_steps = {optim.warmup_steps}",
        "",
        "[train]",
        _line(f"processes = {train.processes}", "one for each core"),
        *threads,
        _line(f"lanes = {train.lanes}", "rows of the batch, shared evenly by the processes"),
        f"window = {train.window}",
        f"# {why} That is",
        f"# about {took} at {start.tokens_per_s:,.0f} tokens/s, a rule of thumb for this many",
        "# cores; 'elmwright check --measure' measures this machine.",
        f"max_steps = {train.max_steps}",
        f"negatives = {train.negatives}",
        f"dropout = {train.dropout}",
        _line('reset_states = "block"', "so that it knows how to begin, as embedding does"),
        "",
        "[eval]",
        f"every_steps = {config.eval.every_steps}",
        f"max_tokens = {config.eval.max_tokens}",
        *lanes,
        "",
        "[checkpoint]",
        f"every_steps = {config.checkpoint.every_steps}",
    ]


def _about(number: float) -> str:
    if number >= 1e6:
        return f"{number / 1e6:,.1f} million" if number < 1e7 else f"{number / 1e6:,.0f} million"
    return f"{_round(number):,}"


def _summary(file: Path, found: Survey, start: Start) -> str:
    config = start.config
    files = f"{found.files:,} file{'s' * (found.files != 1)}, " if found.files else ""
    language = f", {name_of(found.language)}" if found.share else ""
    took = in_words(config.train.max_steps * config.train.tokens / start.tokens_per_s)
    lines = [
        f"wrote {file}",
        f"  text      {files}{size(found.bytes)}, about {_about(found.steps)} words{language}",
    ]
    if start.cut:
        share = found.longest / max(1, found.bytes)
        lines.append(
            f"  held-out  {start.heldout:.0%}; documents are cut (the longest is {share:.1%} of "
            "the text)"
        )
    lines += [
        f"  training  {config.train.max_steps:,} steps, {start.epochs:.1f} times the text, about "
        f"{took} here",
        f"Next: elmwright check {file}, then elmwright run {file}",
    ]
    return "\n".join(lines)
