"""`elmwright init`: a commented config for the user's own text."""

import json
from pathlib import Path

from elmwright.pipeline.errors import UserError

_TEMPLATE = """\
# An ELMo of your own text. Run it with:  elmwright run {file}
# Every setting and its meaning:          elmwright config --explain
# What this file amounts to:              elmwright check {file}
version = 1

[run]
name = "{name}"
# Everything of the run is kept in runs/{name}; the same command goes on where it stopped.

[corpus]
# Files, folders or globs, here or on s3:// and gs://: text, .jsonl, .parquet, .warc and .html, each
# also .gz, .bz2, .xz or .zst. Try the rules on a sample: elmwright corpus {file} --sample 1000
sources = {sources}
# documents = "blank-line"    # what separates documents in .txt: blank-line, line or file
# text_field = "text"         # the field of a .jsonl record that holds the text
# tokenizer = "ptb"           # "whitespace" if the text is tokenised already,
#                             # "sentencepiece" for languages written without spaces
# language = "en"             # for finding sentence boundaries
# rules = ["gopher-repetition", "gopher-quality", "c4", "fineweb"]    # for text from the web
# languages = ["en"]          # keep only documents in these languages
heldout = {{ heldout = 0.01 }}  # split off, never trained on, used to measure the model
dedup = "near"                # exact and near copies; "document" for exact ones only
# dedup_lines = "sentence"    # also drop sentences that occurred before

[vocab]
max_size = 50000
min_count = 3

[shards]
block_steps = 1280

[model]
# A small model for a first look. The published sizes: elmwright config --recipe small
dim = 512
projection_dim = 128
filters = [[1, 32], [2, 32], [3, 64], [4, 128], [5, 256]]
n_highway = 1

[train]
processes = 2                 # as many as you have cores or GPUs to give
reset_states = "block"        # so that it knows how to begin, as embedding does
lanes = 32                    # rows of the batch, shared evenly by the processes
window = 20
max_steps = 2000
negatives = 2048

[eval]
every_steps = 500

[checkpoint]
every_steps = 250
"""


def write_starter(file: Path, sources: list[str]) -> Path:
    """Write the starter file; never over one that exists."""
    if file.exists():
        raise UserError(f"{file} exists already; choose another name")
    name = "".join(c if c.isalnum() or c in "._-" else "-" for c in file.stem).lstrip("._-")
    text = _TEMPLATE.format(
        file=file, name=name or "run", sources=json.dumps(sources or ["text/*.txt"])
    )
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{file} cannot be written: {error.strerror}") from error
    return file
