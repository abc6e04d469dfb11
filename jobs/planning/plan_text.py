"""The plan of a run as a person reads it: a dozen aligned lines that fit the terminal."""

import json
import shutil
import textwrap
from collections.abc import Iterator
from pathlib import Path

from elmwright.jobs.planning.estimate import in_words
from elmwright.jobs.planning.plan_record import MlflowServer, Plan, Sample, Time, shown_config
from elmwright.jobs.terminal.wording import size
from elmwright.pipeline.cleaning.language import name_of
from elmwright.pipeline.config import EMBEDDED, CorpusConfig
from elmwright.pipeline.progress import plural

LABEL = 12
"""Columns of what stands in front of a line."""
SHOWN = 5
"""Sources that get a line of their own."""


def plan_lines(plan: Plan, name: str) -> Iterator[str]:
    """What matters first, each line no wider than the terminal."""
    width = max(60, min(100, shutil.get_terminal_size((80, 24)).columns))
    for label, text in (*_text_rows(plan), *_model_rows(plan), *_machine_rows(plan)):
        yield from _wrapped(f"  {label:<{LABEL}}", text, width)
    for warning in plan.warnings:
        yield from _wrapped("warning: ", warning, width, " " * 9)
    if not plan.problems:
        if plan.pending:
            yield f"Nothing stands in the way: elmwright run {name}"
        else:
            yield "Everything is done already."


def config_lines(plan: Plan) -> Iterator[str]:
    """The resolved config, its hash and its sizes in full."""
    for section, values in shown_config(plan).items():
        if isinstance(values, dict):
            yield f"[{section}]"
            for key, value in values.items():
                yield f"{key} = {json.dumps(value, ensure_ascii=False)}"
    yield f"\nconfig hash  {plan.hash}"
    for name, text in plan.sizes.items():
        yield f"{name:<12} {text}"
    yield ""


def _wrapped(label: str, text: str, width: int, indent: str | None = None) -> Iterator[str]:
    indent = " " * len(label) if indent is None else indent
    yield from textwrap.wrap(
        text,
        width,
        initial_indent=label,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _text_rows(plan: Plan) -> Iterator[tuple[str, str]]:
    text, sources = plan.text, plan.sources
    yield "run", f"{plan.config.run.name} in {_short(plan.sizes['run folder'])}"
    if text.known:
        yield "text", f"the corpus is built: {text.tokens:,} tokens to train on"
    else:
        for number, source in enumerate(sources[:SHOWN]):
            if source.path == EMBEDDED and not source.files:
                amount = "the documentation of this machine's Python packages"
            elif not source.files:
                amount = "nothing found"
            else:
                amount = f"{plural(source.files, 'file')}, {size(source.bytes)}"
            yield "" if number else "text", f"{source.path}: {amount}"
        if len(sources) > SHOWN:
            rest = sources[SHOWN:]
            files = plural(sum(source.files for source in rest), "file")
            total = size(sum(source.bytes for source in rest))
            yield "", f"{plural(len(rest), 'more source')}: {files}, {total}"
        if plan.sample:
            yield "sample", _sample(plan.sample, plan.config.corpus)
    up_to = "" if plan.vocabulary.known else "up to "
    yield "vocabulary", f"{up_to}{plan.vocabulary.words:,} words"


def _sample(sample: Sample, corpus: CorpusConfig) -> str:
    parts = [plural(sample.documents, "document") + (" (all)" if sample.whole else "")]
    languages = [
        f"{share:.0%} {name_of(code)} ({code})"
        for code, share in list(sample.languages.items())[:3]
        if share >= 0.01
    ]
    main = next(iter(sample.languages), "")
    key = "languages" if corpus.languages else "language"
    wanted = corpus.languages or (corpus.language,)
    fits = f" as in corpus.{key}" if main in {code.partition("-")[0] for code in wanted} else ""
    parts.append((", ".join(languages) or "language unknown") + fits)
    broken = sum(sample.broken.values())
    if broken:
        parts.append(f"{broken:,} cannot be read")
    parts.append(f"the rules keep {sample.kept_words:.0%} of the words")
    return "; ".join(parts)


def _model_rows(plan: Plan) -> Iterator[tuple[str, str]]:
    parameters, train = plan.parameters, plan.config.train
    own = parameters.encoder + parameters.lstm
    up_to = "" if plan.vocabulary.known else "up to "
    yield (
        "model",
        f"{_millions(own)} parameters, and {up_to}{_millions(parameters.softmax)} of the "
        f"softmax; a checkpoint is {plan.sizes['checkpoint']}",
    )
    epochs = ""
    if plan.text.tokens:
        times = train.max_steps * train.tokens / plan.text.tokens
        about = "" if plan.text.known else "about "
        shown = (
            f"{times:,.0f}" if times >= 10 else f"{times:.1f}" if times >= 0.1 else f"{times:.2g}"
        )
        epochs = f": {about}{shown} times the text"
    yield (
        "training",
        f"{plural(train.max_steps, 'step')} of {train.tokens:,} tokens{epochs}",
    )
    base = plan.init_from
    if base.model:
        state = "found, of the same shape" if base.folder else "not used"
        if plan.problems and not base.folder:
            state = "see below"
        yield "init_from", f"{base.model}: {state}"


def _machine_rows(plan: Plan) -> Iterator[tuple[str, str]]:
    cores = plan.cores
    wanted = f"{plural(cores.processes, 'process')} × {plural(cores.threads, 'thread')}"
    if plan.cluster:
        yield "cores", f"{wanted} on the cluster at {plan.cluster}"
    else:
        yield "cores", f"{wanted} on {plural(cores.here, 'core')}"
    yield "disk", f"about {size(plan.disk.needed)} needed, {size(plan.disk.free)} free"
    if plan.time:
        yield "time", _time(plan.time)
    yield "MLflow", _mlflow(plan.reachable.mlflow, plan.sizes["run folder"])
    for name, store in plan.reachable.stores.items():
        yield "store", f"{name} {'answers' if store.answers else 'does not answer'}"


def _mlflow(server: MlflowServer, run: str) -> str:
    if server.uri.startswith("sqlite"):
        return _database(server.uri, run)
    return f"{server.uri} {'answers' if server.answers else 'does not answer'}"


def _database(uri: str, run: str) -> str:
    file = uri.removeprefix("sqlite:///")
    return "a file in the run's folder" if file.startswith(f"{run}/mlflow/") else _short(file)


def _time(time: Time) -> str:
    if not time.total:
        return "nothing is left to do"
    stages = {"corpus": time.corpus, "training": time.train, "evaluation": time.evaluate}
    parts = [f"{name} {in_words(seconds)}" for name, seconds in stages.items() if seconds >= 1]
    if time.measured:
        how = (
            f"training measured: {plural(time.steps, 'step')} of one process on {time.text}, "
            "without exchange between processes"
        )
    else:
        how = f"rule of thumb, {time.gflops_per_core:.0f} GFLOP/s per core; --measure measures"
    rate = f"{time.tokens_per_s:,.0f} tokens/s"
    return f"about {in_words(time.total)} here: {', '.join(parts)}; {rate} ({how})"


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
