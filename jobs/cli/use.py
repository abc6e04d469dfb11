"""The commands that use a model, from embed to fill-cache.

Each checks its arguments first and then imports what loads torch.
"""

import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from elmwright.jobs.cli.early import (
    check_file,
    check_model,
    check_pairs,
    check_split,
    check_text,
    run_of,
    text_or_corpus,
)
from elmwright.jobs.cli.output import print_json
from elmwright.jobs.runbook.find_corpus import corpus_of
from elmwright.jobs.terminal.wording import tell, terminal_width
from elmwright.jobs.using.argument_checks import (
    check_count,
    check_output,
    check_query,
    check_score_input,
    check_score_output,
)
from elmwright.jobs.using.text.marked_sentence import find_mark
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.progress import silent
from elmwright.pipeline.records import to_data

if TYPE_CHECKING:
    from elmwright.jobs.using.text.text_lines import Reading


def embed(options: Namespace) -> None:
    from elmwright.jobs.using.embed_output import output_format

    output = Path(options.output)
    mix = () if options.mix is None else _numbers(options.mix)
    output_format(output, options.format)
    check_output(output, options.force)
    check_model(options.model, options.require_signature)
    check_text(options.input)
    if options.cache:
        check_file(options.cache, "table of fill-cache")
    from elmwright.jobs.terminal.console import Console
    from elmwright.jobs.using.embed import Recipe, embed_file

    recipe = Recipe(
        layers="mix" if mix else options.layers,
        mix=tuple(options.gamma * weight for weight in mix),
        batch_size=options.batch_size,
        carry_state=options.carry_state,
        device=options.device,
        dtype=options.dtype,
        precision=options.precision,
        table=options.cache,
        reading=_reading(options),
        pool=options.pool,
    )
    sentence = embed_file(
        options.model,
        options.input,
        output,
        recipe,
        kind=options.format,
        workers=options.workers,
        force=options.force,
        progress=silent if options.quiet else Console(sys.stderr).progress,
    )
    tell(sentence)


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise UserError(
            "argument", f"--mix {text} is not a list of numbers such as 0.2,0.3,0.5"
        ) from error


def score(options: Namespace) -> None:
    output = None if options.output is None else Path(options.output)
    check_score_input(
        options.input,
        options.pairs,
        words=options.words,
        split=options.split,
        as_json=options.json,
    )
    if output is not None:
        check_score_output(output, options.force)
    check_model(options.model, options.require_signature)
    if options.pairs is not None:
        _score_pairs(options, output)
        return
    check_text(options.input)
    from elmwright.jobs.using.score import score_file

    sentence = score_file(
        options.model,
        options.input,
        output,
        words=options.words,
        reading=_reading(options),
        device=options.device,
        force=options.force,
    )
    tell(sentence, sys.stderr)


def _score_pairs(options: Namespace, output: Path | None) -> None:
    check_pairs(options.pairs)
    from elmwright.jobs.using.score_pairs import as_text, score_pairs

    result = score_pairs(
        options.model,
        options.pairs,
        output,
        reading=_reading(options),
        device=options.device,
        force=options.force,
    )
    if options.json:
        print_json(result)
    else:
        tell(as_text(result, terminal_width(sys.stdout)))


def substitutes(options: Namespace) -> None:
    find_mark(options.sentence)
    check_count(options.k)
    check_model(options.model, options.require_signature)
    from elmwright.jobs.using.pretrained import Elmo
    from elmwright.jobs.using.substitutes import as_table

    elmo = Elmo.from_pretrained(options.model, device=options.device, pool=None)
    sentence = options.sentence.split() if options.tokenized else options.sentence
    (result,) = elmo.substitutes([sentence], options.k)
    if options.json:
        print(json.dumps(to_data(result), indent=1, ensure_ascii=False))
    else:
        print(as_table(result, terminal_width(sys.stdout)))


def neighbours(options: Namespace) -> None:
    page = None if options.html is None else Path(options.html)
    if page is not None:
        check_output(page, options.force)
    check_query(options.word, options.sentence, options.k)
    check_model(options.model, options.require_signature)
    corpus = text_or_corpus(options.corpus or run_of(options.model))
    from elmwright.jobs.using.neighbours import as_table, find_neighbours, write_page

    result = find_neighbours(
        options.model,
        options.word,
        options.sentence,
        corpus,
        count=options.k,
        layer=options.layer,
        any_word=options.any_word,
        reading=_reading(options),
        device=options.device,
    )
    if page is not None:
        write_page(result, corpus, page)
    if options.json:
        print(json.dumps(to_data(result), indent=1, ensure_ascii=False))
        return
    print(as_table(result, sys.stdout.isatty(), terminal_width(sys.stdout)))
    if page is not None:
        tell(f"\nwrote {page}")


def _reading(options: Namespace) -> "Reading":
    from elmwright.jobs.using.text.text_lines import Reading

    return Reading(tokenized=options.tokenized, split=options.split)


def tokenize(options: Namespace) -> None:
    check_model(options.model, options.require_signature)
    check_text(options.input)
    from elmwright.jobs.using.text.tokenize import tokenize_file

    tokenize_file(options.model, options.input, split=options.split, as_json=options.json)


def evaluate(options: Namespace) -> None:
    check_model(options.model, options.require_signature)
    corpus = corpus_of(options.corpus or run_of(options.model))
    if options.split:
        check_split(corpus, options.split)
    from elmwright.jobs.terminal.console import Console
    from elmwright.jobs.training.loop.evaluate import states_warning
    from elmwright.jobs.using.evaluate_model import evaluate_model

    results = evaluate_model(options.model, corpus, options.split, Console(sys.stderr).progress)
    if text := states_warning(results):
        tell(f"warning: {text}", sys.stderr)
    if options.json:
        print_json(results)
        return
    for split, result in results.items():
        tell(
            f"{split}: perplexity {result.perplexity:.2f} "
            f"(forward {result.forward_perplexity:.2f}, "
            f"backward {result.backward_perplexity:.2f}; "
            f"{result.carried_perplexity:.2f} with states carried over), "
            f"{result.bits_per_character:.3f} bits per character, {result.tokens:,} tokens, "
            f"{result.unk_share:.2%} <UNK> targets"
        )


def fill_cache(options: Namespace) -> None:
    output = Path(options.output)
    check_output(output, options.force)
    check_model(options.model, options.require_signature)
    if options.words:
        check_file(options.words, "word list")
    from elmwright.jobs.using.fill_cache import write_table

    tell(write_table(options.model, output, options.words, force=options.force))
