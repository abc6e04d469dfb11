"""The plan of a run as a person reads it: a dozen aligned lines that fit the terminal."""

import json
import shutil
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from elmwright.jobs.planning.estimate import in_words
from elmwright.jobs.terminal.wording import size
from elmwright.pipeline.cleaning.language import name_of
from elmwright.pipeline.config import EMBEDDED
from elmwright.pipeline.progress import plural

LABEL = 12
"""Columns of what stands in front of a line."""
SHOWN = 5
"""Sources that get a line of their own."""


def plan_lines(plan: dict[str, Any], name: str) -> Iterator[str]:
    """What matters first, each line no wider than the terminal."""
    width = max(60, min(100, shutil.get_terminal_size((80, 24)).columns))
    for label, text in (*_text_rows(plan), *_model_rows(plan), *_machine_rows(plan)):
        yield from _wrapped(f"  {label:<{LABEL}}", text, width)
    for warning in plan["warnings"]:
        yield from _wrapped("warning: ", warning, width, " " * 9)
    if not plan["problems"]:
        if plan["pending"]:
            yield f"Nothing stands in the way: elmwright run {name}"
        else:
            yield "Everything is done already."


def config_lines(plan: dict[str, Any]) -> Iterator[str]:
    """The resolved config, its hash and its sizes in full."""
    for section, values in plan["config"].items():
        if isinstance(values, dict):
            yield f"[{section}]"
            for key, value in values.items():
                yield f"{key} = {json.dumps(value, ensure_ascii=False)}"
    yield f"\nconfig hash  {plan['hash']}"
    for name, text in plan["sizes"].items():
        yield f"{name:<12} {text}"
    yield ""


def _wrapped(label: str, text: str, width: int, indent: str | None = None) -> Iterator[str]:
    indent = " " * len(label) if indent is None else indent
    yield from textwrap.wrap(
        text, width, initial_indent=label, subsequent_indent=indent,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def _text_rows(plan: dict[str, Any]) -> Iterator[tuple[str, str]]:
    text, sources = plan["text"], plan["sources"]
    yield "run", f"{plan['config']['run']['name']} in {_short(plan['sizes']['run folder'])}"
    if text["known"]:
        yield "text", f"the corpus is built: {text['tokens']:,} tokens to train on"
    else:
        for number, source in enumerate(sources[:SHOWN]):
            if source["path"] == EMBEDDED and not source["files"]:
                amount = "the documentation of this machine's Python packages"
            elif not source["files"]:
                amount = "nothing found"
            else:
                amount = f"{plural(source['files'], 'file')}, {size(source['bytes'])}"
            yield "" if number else "text", f"{source['path']}: {amount}"
        if len(sources) > SHOWN:
            rest = sources[SHOWN:]
            files, total = (sum(source[key] for source in rest) for key in ("files", "bytes"))
            many = plural(len(rest), "more source")
            yield "", f"{many}: {plural(files, 'file')}, {size(total)}"
        if plan["sample"]:
            yield "sample", _sample(plan["sample"], plan["config"]["corpus"])
    words = plan["vocabulary"]
    yield "vocabulary", f"{'' if words['known'] else 'up to '}{words['words']:,} words"


def _sample(sample: dict[str, Any], corpus: dict[str, Any]) -> str:
    parts = [plural(sample["documents"], "document") + (" (all)" if sample["whole"] else "")]
    languages = [
        f"{share:.0%} {name_of(code)} ({code})"
        for code, share in list(sample["languages"].items())[:3]
        if share >= 0.01
    ]
    main = next(iter(sample["languages"]), "")
    key = "languages" if corpus["languages"] else "language"
    wanted = corpus["languages"] or [corpus["language"]]
    fits = f" as in corpus.{key}" if main in {code.partition("-")[0] for code in wanted} else ""
    parts.append((", ".join(languages) or "language unknown") + fits)
    broken = sum(sample["broken"].values())
    if broken:
        parts.append(f"{broken:,} cannot be read")
    parts.append(f"the rules keep {sample['kept_words']:.0%} of the words")
    return "; ".join(parts)


def _model_rows(plan: dict[str, Any]) -> Iterator[tuple[str, str]]:
    parameters, train = plan["parameters"], plan["config"]["train"]
    own = parameters["encoder"] + parameters["lstm"]
    up_to = "" if plan["vocabulary"]["known"] else "up to "
    yield (
        "model",
        f"{_millions(own)} parameters, and {up_to}{_millions(parameters['softmax'])} of the "
        f"softmax; a checkpoint is {plan['sizes']['checkpoint']}",
    )
    tokens = train["lanes"] * train["window"] * train["accumulate"]
    epochs = ""
    if plan["text"]["tokens"]:
        times = train["max_steps"] * tokens / plan["text"]["tokens"]
        about = "" if plan["text"]["known"] else "about "
        shown = (
            f"{times:,.0f}" if times >= 10 else f"{times:.1f}" if times >= 0.1 else f"{times:.2g}"
        )
        epochs = f": {about}{shown} times the text"
    yield (
        "training",
        f"{plural(train['max_steps'], 'step')} of {tokens:,} tokens{epochs}",
    )
    base = plan["init_from"]
    if base["model"]:
        state = "found, of the same shape" if base["folder"] else "not used"
        if plan["problems"] and not base["folder"]:
            state = "see below"
        yield "init_from", f"{base['model']}: {state}"


def _machine_rows(plan: dict[str, Any]) -> Iterator[tuple[str, str]]:
    cores = plan["cores"]
    wanted = f"{plural(cores['processes'], 'process')} × {plural(cores['threads'], 'thread')}"
    if plan["cluster"]:
        yield "cores", f"{wanted} on the cluster at {plan['cluster']}"
    else:
        yield "cores", f"{wanted} on {plural(cores['here'], 'core')}"
    disk = plan["disk"]
    needed, free = size(disk["needed"]), size(disk["free"])
    yield "disk", f"about {needed} needed, {free} free"
    if plan["time"]:
        yield "time", _time(plan["time"])
    for name, place in plan["reachable"].items():
        if name == "mlflow":
            here = place["uri"].startswith("sqlite")
            shown = _database(place["uri"], plan["sizes"]["run folder"]) if here else place["uri"]
            state = "" if here else " answers" if place["answers"] else " does not answer"
            yield "MLflow", f"{shown}{state}"
        else:
            yield "store", f"{name} {'answers' if place['answers'] else 'does not answer'}"


def _database(uri: str, run: str) -> str:
    file = uri.removeprefix("sqlite:///")
    return "a file in the run's folder" if file.startswith(f"{run}/mlflow/") else _short(file)


def _time(time: dict[str, Any]) -> str:
    if not time["total"]:
        return "nothing is left to do"
    parts = [
        f"{name} {in_words(time[key])}"
        for key, name in (("corpus", "corpus"), ("train", "training"), ("evaluate", "evaluation"))
        if time[key] >= 1
    ]
    if time["measured"]:
        how = (
            f"training measured: {plural(time['steps'], 'step')} of one process on {time['text']}, "
            "without exchange between processes"
        )
    else:
        how = f"rule of thumb, {time['gflops_per_core']:.0f} GFLOP/s per core; --measure measures"
    rate = f"{time['tokens_per_s']:,.0f} tokens/s"
    return f"about {in_words(time['total'])} here: {', '.join(parts)}; {rate} ({how})"


def _millions(count: int) -> str:
    if count >= 10_000_000:
        return f"{count / 1e6:,.0f} M"
    return f"{count / 1e6:.1f} M" if count >= 100_000 else f"{count:,}"


def _short(path: str) -> str:
    """Relative to here where it is below."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return path
