"""The warnings of `elmwright check`: settings that work, but perhaps not as intended."""

from elmwright.jobs.cluster.connection import is_remote
from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.environment.machine_facts import bf16_instructions
from elmwright.jobs.planning.plan_record import Cores, Disk, Plan, Sample, TextSize
from elmwright.jobs.terminal.wording import size
from elmwright.pipeline.cleaning.language import name_of

SHORT_RUN = 10_000
"""Steps below which Adagrad with the settings of the original ELMo has hardly begun to learn."""


def warnings_of(plan: Plan) -> list[str]:
    """One sentence for each setting that deserves a second look."""
    config = plan.config
    warnings = (
        _cores_warning(config, plan.cores),
        _language_warning(config, plan.sample),
        _heldout_warning(config, plan.sample, plan.text),
        _broken_warning(plan.sample),
        _epochs_warning(config, plan.text.tokens),
        _optimiser_warning(config),
        _precision_warning(config),
        _disk_warning(plan.disk),
        plan.reachable.mlflow.note,
    )
    return [warning for warning in warnings if warning]


def _cores_warning(config: RunConfig, cores: Cores) -> str:
    threads = cores.processes * cores.threads
    if is_remote(config) or threads <= cores.here or config.train.device == "cuda":
        return ""
    return (
        f"train.processes × train.threads = {threads}, more than the {cores.here} cores here, so "
        "they wait for each other; lower one of them"
    )


def _language_warning(config: RunConfig, sample: Sample | None) -> str:
    if not sample or not sample.languages:
        return ""
    shares, codes = sample.languages, config.corpus.languages
    main = next(iter(shares))
    if codes:
        wanted = {code.partition("-")[0] for code in codes}
        share = sum(shares.get(code, 0.0) for code in wanted)
        if share < config.corpus.language_threshold:
            other = next((code for code in shares if code not in wanted), main)
            return (
                f"only {share:.0%} of the sample is in corpus.languages = {list(codes)}; most of "
                f"the rest is {name_of(other)}, which is dropped"
            )
    elif main != config.corpus.language.partition("-")[0] and shares[main] > 0.5:
        return (
            f"the text is {name_of(main)} ({shares[main]:.0%}), but corpus.language is "
            f'"{config.corpus.language}": set it to "{main}", or sentences are split by the wrong '
            "rules"
        )
    return ""


def _heldout_warning(config: RunConfig, sample: Sample | None, text: TextSize) -> str:
    """For a document that is larger than a held-out share: documents are held out as a whole."""
    shares = [e for e in config.corpus.heldout.values() if isinstance(e, float) and e]
    if not shares or not sample or not text.bytes:
        return ""
    longest = sample.longest_characters / text.bytes
    if longest < 2 * min(shares):
        return ""
    return (
        f"corpus.heldout is {min(shares):.1%} of the documents, but one document alone is "
        f"{longest:.1%} of the text; corpus.cut_documents = 10000 cuts long ones into pieces"
    )


def _broken_warning(sample: Sample | None) -> str:
    broken = sum(sample.broken.values()) if sample else 0
    if not sample or not broken or broken * 20 < sample.documents:
        return ""
    why = max(sample.broken, key=sample.broken.__getitem__)
    return (
        f"{broken} of {sample.documents} documents of the sample cannot be read, mostly because "
        f"of: {why}"
    )


def _epochs_warning(config: RunConfig, tokens: int) -> str:
    batch = config.train.lanes * config.train.window
    if not tokens:
        return ""
    if tokens < batch:
        return (
            f"the text has about {tokens:,} tokens, less than one batch of train.lanes × "
            f"train.window = {batch:,}"
        )
    epochs = config.train.max_steps * config.train.tokens / tokens
    if epochs > 30:
        return (
            f"the run reads the text {epochs:,.0f} times, and will mostly memorise it; lower "
            "train.max_steps or add text"
        )
    return ""


def _optimiser_warning(config: RunConfig) -> str:
    if config.optim.name != "adagrad" or config.train.max_steps >= SHORT_RUN:
        return ""
    return (
        f"Adagrad, as in the original ELMo, learns little in {config.train.max_steps:,} steps; the "
        "demo recipe's [optim] (AdamW) does better in short runs: elmwright config --recipe demo"
    )


def _precision_warning(config: RunConfig) -> str:
    if config.train.device == "cuda" or is_remote(config):
        return ""
    if config.train.precision == "tf32" and config.train.device == "cpu":
        return 'train.precision = "tf32" changes nothing on a CPU'
    if not config.train.precision.startswith("bf16") or bf16_instructions() is not False:
        return ""
    return (
        'train.precision = "bf16" is emulated on this processor, and slow; use "fp32", or train on '
        "a GPU"
    )


def _disk_warning(disk: Disk) -> str:
    if disk.needed <= disk.free:
        return ""
    return (
        f"the whole run needs about {size(disk.needed)} of disk, but {disk.where} has "
        f"{size(disk.free)} free"
    )
