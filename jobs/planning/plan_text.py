"""The plan of a run as a person reads it: a dozen aligned lines that fit the terminal."""

import json
import shutil
import textwrap
from collections.abc import Iterator

from elmwright.jobs.planning.estimate import in_words
from elmwright.jobs.planning.plan_record import (
    MlflowServer,
    Plan,
    Processor,
    Sample,
    Time,
    shown_config,
)
from elmwright.jobs.terminal.wording import nearby, size
from elmwright.pipeline.cleaning.language import name_of
from elmwright.pipeline.config import EMBEDDED, CorpusConfig
from elmwright.pipeline.progress import plural

LABEL = 12
"""Columns of the label before a line."""
SHOWN = 5
"""How many sources get their own line."""


def plan_lines(plan: Plan, name: str) -> Iterator[str]:
    """The plan, most important facts first, each line no wider than the terminal."""
    width = max(60, min(100, shutil.get_terminal_size((80, 24)).columns))
    for label, text in (*_text_rows(plan), *_model_rows(plan), *_machine_rows(plan)):
        yield from _wrapped(f"  {label:<{LABEL}}", text, width)
    for warning in plan.warnings:
        yield from _wrapped("warning: ", warning, width)
    if not plan.problems and plan.pending:
        yield f"Ready to start: elmwright run {name}"
    elif not plan.problems:
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


def _wrapped(label: str, text: str, width: int) -> list[str]:
    return textwrap.wrap(
        text,
        width,
        initial_indent=label,
        subsequent_indent=" " * len(label),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _text_rows(plan: Plan) -> Iterator[tuple[str, str]]:
    text, sources = plan.text, plan.sources
    yield "run", f"{plan.config.run.name} in {nearby(plan.sizes['run folder'])}"
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
    codes = {code.partition("-")[0] for code in corpus.languages or (corpus.language,)}
    fits = f" as in corpus.{key}" if main in codes else ""
    parts.append((", ".join(languages) or "language unknown") + fits)
    broken = sum(sample.broken.values())
    if broken:
        parts.append(f"{broken:,} cannot be read")
    parts.append(f"the rules keep {sample.kept_words:.0%} of the words")
    return "; ".join(parts)


def _model_rows(plan: Plan) -> Iterator[tuple[str, str]]:
    parameters, train = plan.parameters, plan.config.train
    up_to = "" if plan.vocabulary.known else "up to "
    yield (
        "model",
        f"{_millions(parameters.encoder + parameters.lstm)} parameters, and "
        f"{up_to}{_millions(parameters.softmax)} in the softmax; a checkpoint takes "
        f"{plan.sizes['checkpoint']}",
    )
    epochs = ""
    if plan.text.tokens:
        times = train.max_steps * train.tokens / plan.text.tokens
        about = "" if plan.text.known else "about "
        digits = ",.0f" if times >= 10 else ".1f"
        if times < 0.1:
            digits = ".2g"
        epochs = f": {about}{times:{digits}} times the text"
    yield "training", f"{plural(train.max_steps, 'step')} of {train.tokens:,} tokens{epochs}"
    base = plan.init_from
    if base.model:
        state = "found, of the same shape" if base.folder else "not used"
        if plan.problems and not base.folder:
            state = "see below"
        yield "init_from", f"{base.model}: {state}"


def _machine_rows(plan: Plan) -> Iterator[tuple[str, str]]:
    cores = plan.cores
    place = f"the cluster at {plan.cluster}" if plan.cluster else plural(cores.here, "core")
    processes = f"{plural(cores.processes, 'process')} × {plural(cores.threads, 'thread')}"
    yield "cores", f"{processes} on {place}"
    if plan.processor:
        yield "processor", _processor(plan.processor)
    yield "disk", f"about {size(plan.disk.needed)} needed, {size(plan.disk.free)} free"
    if plan.time:
        yield "time", _time(plan.time)
    yield "MLflow", _mlflow(plan.reachable.mlflow, plan.sizes["run folder"])
    for name, store in plan.reachable.stores.items():
        yield "store", f"{name} {'answers' if store.answers else 'does not answer'}"


def _processor(processor: Processor) -> str:
    kernels = "kernels in C"
    if processor.why_torch:
        kernels = f"no kernels in C, so training is slower ({processor.why_torch})"
    if not processor.has_bf16:
        return f"{kernels}; no instructions for bfloat16"
    return (
        f"{kernels}; products in bfloat16 take 1/{processor.bf16_gain:.1f} of the time of float32 "
        '(train.precision = "bf16")'
    )


def _mlflow(server: MlflowServer, run: str) -> str:
    if not server.uri.startswith("sqlite"):
        return f"{server.uri} {'answers' if server.answers else 'does not answer'}"
    file = server.uri.removeprefix("sqlite:///")
    return "a file in the run's folder" if file.startswith(f"{run}/mlflow/") else nearby(file)


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
