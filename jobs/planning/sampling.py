"""`elmwright corpus CONFIG --sample N`: the effect of the rules on a few documents, in seconds."""

import json
import sys
from dataclasses import asdict

from rich.cells import cell_len, set_cell_size

from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.terminal.listing import funnel_table
from elmwright.jobs.terminal.wording import tell, terminal_width
from elmwright.pipeline.build.sample import try_rules
from elmwright.pipeline.errors import UserError

WIDTH = 160
"""Characters of an example in a pipe or a file; a terminal shows one line of it."""
INDENT = 4
KEPT = {
    "": "Kept, as sentences and words:",
    "corpus": "Kept, as sentences and pieces:",
    "sample": "Kept, as sentences and pieces of a model trained on this sample:",
}
"""What kept documents are shown as, by `Sample.pieces_of`."""


def show_sample(config: RunConfig, documents: int, *, as_json: bool) -> None:
    """Print the funnel of a sample, with an example of what each rule dropped."""
    if documents < 1:
        raise UserError(
            "argument", f"--sample {documents}: give a number of documents, such as 1000"
        )
    sample = try_rules(config.corpus, RunFolder.of(config).corpus, documents, config.run.seed)
    if as_json:
        print(json.dumps(asdict(sample), indent=1))
        return
    width = terminal_width(sys.stdout)
    counts = [(rule, whole, part, words) for rule, (whole, part, words) in sample.funnel.items()]
    print("\n".join(funnel_table(counts, width)))
    columns = WIDTH if width is None else width - INDENT
    dropped = [(rule, examples[0]) for rule, examples in sample.examples.items() if examples]
    if dropped:
        print("\nDropped, with an example for each rule:")
    for rule, example in dropped:
        detail = f" ({example.detail})" if example.detail else ""
        tell(f"  {rule}{detail}")
        print(f"{' ' * INDENT}{_line(example.text, columns)}")
    if sample.kept:
        print(f"\n{KEPT[sample.pieces_of]}")
    for example in sample.kept:
        for sentence in example.text.split("\n")[:2]:
            print(f"{' ' * INDENT}{_line(sentence, columns)}")
    tell(
        "\nNext: change a threshold ('elmwright config --explain' lists them) and try again, or "
        "build the corpus with the same command without --sample."
    )


def _line(text: str, columns: int) -> str:
    """The beginning of a text on one line, without control characters."""
    plain = "".join(c if c.isprintable() else " " for c in " ".join(text.split()))
    return plain if cell_len(plain) <= columns else f"{set_cell_size(plain, columns - 1).rstrip()}…"
