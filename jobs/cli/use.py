"""The commands that use a model: embed, fill-cache, score, neighbours.

As in `command.py`, nothing heavy is imported before a command runs.
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

from elmwright.jobs.cli.early import check_file, check_model, check_text, run_of, text_or_corpus
from elmwright.jobs.terminal.wording import tell
from elmwright.jobs.using.argument_checks import check_output, check_query
from elmwright.pipeline.errors import UserError

Extend = Callable[[argparse.ArgumentParser], None]


def add_commands(
    add: Callable[..., argparse.ArgumentParser], with_model: Extend, with_quiet: Extend
) -> None:
    """Give the command line its subcommands for using a model."""

    def start(
        name: str, function: Callable[[argparse.Namespace], None], text: str, *aliases: str
    ) -> argparse.ArgumentParser:
        sub = add(name, function, text, *aliases)
        with_model(sub)
        sub.add_argument(
            "--device", default="cpu", choices=("cpu", "cuda", "auto"), help="where to compute"
        )
        return sub

    sub = start("embed", _embed, "write the vectors of every word of a text to a file")
    sub.add_argument(
        "input", metavar="INPUT", help="one tokenised sentence per line, or - for stdin"
    )
    sub.add_argument(
        "-o", "--output", required=True, metavar="OUT", help="file to write: .hdf5, .parquet, .npz"
    )
    sub.add_argument(
        "--format", choices=("hdf5", "parquet", "npz"), help="where OUT ends in something else"
    )
    which = sub.add_mutually_exclusive_group()
    which.add_argument(
        "--layers", choices=("all", "top", "mean"), default="all", help="which layers (all)"
    )
    which.add_argument(
        "--mix",
        metavar="W0,W1,…",
        help="one vector per word: the layers times these weights, added",
    )
    sub.add_argument("--gamma", type=float, default=1.0, help="with --mix: scales the sum (1)")
    sub.add_argument("--batch-size", type=int, default=32, help="sentences at a time (32)")
    sub.add_argument(
        "--workers", type=int, default=1, metavar="N", help="processes, started with Ray (1)"
    )
    sub.add_argument(
        "--carry-state",
        action="store_true",
        help="line n continues the LSTM states of line n minus batch size; off: every sentence "
        "starts afresh",
    )
    sub.add_argument("--cache", default="", metavar="TABLE", help="a file of fill-cache")
    sub.add_argument("--force", action="store_true", help="replace OUT if it exists")
    with_quiet(sub)

    sub = add("fill-cache", _fill_cache, "encode a vocabulary once, to speed up many short embeds")
    with_model(sub)
    sub.add_argument("-o", "--output", required=True, metavar="TABLE", help="file to write")
    sub.add_argument("--words", metavar="FILE", help="one word per line (the model's vocabulary)")
    sub.add_argument("--force", action="store_true", help="replace TABLE if it exists")

    sub = start("score", _score, "log-probability of every sentence, or word, of a text")
    sub.add_argument(
        "input", metavar="TEXT", help="one tokenised sentence per line, or - for stdin"
    )
    sub.add_argument(
        "-o", "--output", metavar="OUT", help="file to write, .tsv or .jsonl (default: TSV, stdout)"
    )
    sub.add_argument("--words", action="store_true", help="of every word, too")
    sub.add_argument("--force", action="store_true", help="replace OUT if it exists")

    text = "where a text uses a word as this sentence does"
    sub = start("neighbours", _neighbours, text, "neighbors")
    sub.add_argument("--word", required=True, help="a word of the sentence")
    sub.add_argument(
        "--in", required=True, dest="sentence", metavar="SENTENCE", help="the tokenised sentence"
    )
    sub.add_argument(
        "--corpus",
        metavar="TEXT",
        help="one tokenised sentence per line; or a RUN or corpus folder, whose held-out sentences "
        "are read (if MODEL is a RUN, its own)",
    )
    sub.add_argument("-k", type=int, default=10, help="how many neighbours (10)")
    sub.add_argument("--layer", default="top", help="top, mean, or the number of a layer (top)")
    sub.add_argument("--any-word", action="store_true", help="compare with every word, not its own")
    sub.add_argument("--html", metavar="OUT", help="write a page as well")
    sub.add_argument("--force", action="store_true", help="replace that page if it exists")
    sub.add_argument("--json", action="store_true", help="print the result as JSON")


def _embed(options: argparse.Namespace) -> None:
    from elmwright.jobs.using.embed_output import output_format

    output = Path(options.output)
    mix = None if options.mix is None else _numbers(options.mix)
    output_format(output, options.format)
    check_output(output, options.force)
    check_model(options.model, options.require_signature)
    check_text(options.input)
    if options.cache:
        check_file(options.cache, "table of fill-cache")
    from elmwright.jobs.terminal.console import Console
    from elmwright.jobs.using.embed import embed_file
    from elmwright.pipeline.progress import silent

    sentence = embed_file(
        options.model,
        options.input,
        output,
        layers=options.layers,
        mix=mix,
        gamma=options.gamma,
        kind=options.format,
        batch_size=options.batch_size,
        carry_state=options.carry_state,
        force=options.force,
        workers=options.workers,
        device=options.device,
        table=options.cache,
        progress=silent if options.quiet else Console(sys.stderr).progress,
    )
    tell(sentence)


def _fill_cache(options: argparse.Namespace) -> None:
    check_output(Path(options.output), options.force)
    check_model(options.model, options.require_signature)
    if options.words:
        check_file(options.words, "word list")
    from elmwright.jobs.using.fill_cache import write_table

    tell(write_table(options.model, Path(options.output), options.words, force=options.force))


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise UserError(
            "argument", f"--mix {text} is not a list of numbers such as 0.2,0.3,0.5"
        ) from error


def _score(options: argparse.Namespace) -> None:
    output = None if options.output is None else Path(options.output)
    if output is not None:
        check_output(output, options.force)
        if output.suffix not in (".tsv", ".jsonl"):
            raise UserError("argument", f"{output.name} ends neither in .tsv nor in .jsonl")
    check_model(options.model, options.require_signature)
    check_text(options.input)
    from elmwright.jobs.using.score import score_file

    sentence = score_file(
        options.model,
        options.input,
        output,
        words=options.words,
        device=options.device,
        force=options.force,
    )
    tell(sentence, sys.stderr)


def _neighbours(options: argparse.Namespace) -> None:
    page = None if options.html is None else Path(options.html)
    if page is not None:
        check_output(page, options.force)
    check_query(options.word, options.sentence, options.k)
    check_model(options.model, options.require_signature)
    corpus = text_or_corpus(options.corpus or run_of(options.model))
    from elmwright.jobs.using.neighbours import as_table, find_neighbours, write_page

    found = find_neighbours(
        options.model,
        options.word,
        options.sentence,
        corpus,
        count=options.k,
        layer=options.layer,
        any_word=options.any_word,
        device=options.device,
    )
    if page is not None:
        write_page(found, page)
    if options.json:
        print(json.dumps(found.as_dict(), indent=1, ensure_ascii=False))
    else:
        from elmwright.jobs.terminal.wording import terminal_width

        print(as_table(found, sys.stdout.isatty(), terminal_width(sys.stdout)))
        if page is not None:
            tell(f"\nwrote {page}")
