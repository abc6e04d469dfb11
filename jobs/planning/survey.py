"""What kind of text a user's files hold, so that `elmwright init` need not ask.

Formats are recognised by the endings of names. The beginnings of a few files show which field of a
record holds the text, what separates documents in plain text and whether it is tokenised already;
a sample (`pipeline/build/preview.py`) shows the language and the number of words. All of this is a
guess, written into the config for the user to see and change.
"""

import json
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from statistics import median
from typing import Any

from elmwright.jobs.planning.estimate import HARVEST_BYTES, HARVEST_TOKENS
from elmwright.pipeline.build.preview import Preview, preview_text, text_bytes
from elmwright.pipeline.cleaning.pieces import WITHOUT_SPACES
from elmwright.pipeline.config import EMBEDDED, CorpusConfig, Source
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.reading import sources
from elmwright.pipeline.reading.decode import blocks, decode
from elmwright.pipeline.reading.sources import SourceFile
from elmwright.pipeline.storage.files import at

HEAD = 300_000
"""Bytes at the beginning of a file that are inspected."""
FILES = 12
"""Files whose beginnings are inspected."""
WHOLE = 30_000_000
"""Larger files are not read as one document (`corpus.max_document_mb`)."""
DOCUMENT = 1_000
"""Text between blank lines is a document, not a paragraph, if it has this many characters."""
TEXT = 20
"""The least average length of a field of text, in characters: names and numbers are shorter."""
USUAL = ("text", "content", "body", "article", "document", "raw_content", "page_content", "story")
"""Usual names of fields of text, the most certain first."""


@dataclass(frozen=True)
class Survey:
    """Properties of a user's text, on which a config depends."""

    files: int
    """Files in all sources."""
    bytes: int
    """About how many bytes of text they have."""
    steps: int
    """About how many words and sentences they have."""
    fields: tuple[str, ...]
    """For each source, the field of its records that holds the text; "" where it has none."""
    documents: str = "blank-line"
    """corpus.documents."""
    tokenizer: str = "ptb"
    """corpus.tokenizer."""
    language: str = "en"
    """Code of the language of most of the text."""
    share: float = 1.0
    """Share of the text that is in this language; 0 if unknown."""
    longest: int = 0
    """About how many characters the longest document has."""
    alphabet: int = 0
    """Distinct characters that sentencepiece would need to spell the text."""


def survey(paths: Sequence[str]) -> Survey:
    """Inspect the files that paths, folders and globs name; `UserError` for one that names none."""
    files: list[SourceFile] = []
    fields = []
    for index, path in enumerate(paths):
        stats = [] if path == EMBEDDED else sources.expand(path, "--source")
        source_files = [
            sources.source_file(stat, number, "train", CorpusConfig(), Source(path), index)
            for number, stat in enumerate(stats, len(files))
        ]
        fields.append(text_field(source_files))
        files += source_files
    if not files:
        return Survey(0, HARVEST_BYTES, HARVEST_TOKENS, tuple(fields))
    if not any(file.bytes for file in files):
        raise UserError(
            "no-text", f"the files of --source {paths[0]} are empty; name some with text"
        )
    plain_text = [file for file in files if file.format == "text"]
    heads = [_head(file) for file in _spread(plain_text)]
    documents = separator(plain_text, [head for head in heads if head])

    def sample(tokenizer: str, language: str) -> Preview:
        source_files = [
            replace(file, documents=documents, text_field=fields[file.source] or "text")
            for file in files
        ]
        config = CorpusConfig(tokenizer=tokenizer, language=language)  # type: ignore[arg-type]
        return preview_text(source_files, config)

    preview = sample("ptb", "en")
    if not preview.sentences:
        raise UserError(
            "no-text",
            f"--source {', '.join(paths)}: no text could be read there {preview.detail}".rstrip(),
        )
    language, share = next(iter(preview.languages.items()), ("en", 0.0))
    tokenizer = "sentencepiece" if language in WITHOUT_SPACES else "ptb"
    if tokenizer == "ptb" and is_tokenised(heads):
        tokenizer = "whitespace"
    if (language, tokenizer) != ("en", "ptb"):
        preview = sample(tokenizer, language)
    longest = preview.longest
    if documents == "file":
        longest = max(longest, *map(text_bytes, plain_text))
    return Survey(
        files=len(files),
        bytes=preview.text_bytes,
        steps=preview.steps,
        fields=tuple(fields),
        documents=documents,
        tokenizer=tokenizer,
        language=language,
        share=share,
        longest=longest,
        alphabet=preview.alphabet,
    )


def _spread(files: Sequence[SourceFile], count: int = FILES) -> list[SourceFile]:
    """At most `count` files from all over the list."""
    step = max(1.0, len(files) / count)
    return [files[int(n * step)] for n in range(min(count, len(files)))]


def _first_bytes(file: SourceFile) -> bytes:
    """The first bytes of a file, decompressed."""
    data = b""
    with at(file.path).reading() as stream:
        for block in blocks(stream, file.path, 0, -1):
            data += block
            if len(data) >= HEAD:
                break
    return data[:HEAD]


def _head(file: SourceFile) -> str:
    """The beginning of a text file, without an incomplete last line."""
    data = _first_bytes(file)
    if len(data) == HEAD and b"\n" in data:
        data = data[: data.rindex(b"\n") + 1]
    return decode(data, file.encoding)[0].replace("\r\n", "\n")


def separator(files: Sequence[SourceFile], heads: Sequence[str]) -> str:
    """What separates documents in plain text: blank-line, line or file.

    Blank lines separate documents if the text between them is as long as a document, or is several
    lines that each end a sentence. Otherwise they separate paragraphs, and a file is a document:
    the order of paragraphs is kept, and long files can be cut. A file that is too large to be one
    document is divided at its blank lines, or at every line if it has none.
    """
    if not files:
        return "blank-line"
    can_be_whole = max(map(text_bytes, files)) < WHOLE
    groups = [group for head in heads for group in re.split(r"\n[ \t]*\n\s*", head.strip())]
    if len(groups) <= len(heads):
        return "file" if can_be_whole else "line"
    sizes = sorted(map(len, groups))
    totals = list(accumulate(sizes))
    # At least half of the text is in groups of at least this size.
    size = sizes[bisect_left(totals, totals[-1] / 2)]
    lines = [group.split("\n") for group in groups]
    ended = [bool(re.search(r"[.!?…。！？][\"'”’»)]*\s*$", line)) for ls in lines for line in ls]
    by_sentence = median(map(len, lines)) >= 2 and sum(ended) > 0.8 * len(ended)
    if size >= DOCUMENT or by_sentence or not can_be_whole:
        return "blank-line"
    return "file"


def is_tokenised(heads: Iterable[str]) -> bool:
    """Whether full stops and commas are separated from the words before them."""
    text = "\n".join(heads)
    marks = len(re.findall(r"(?<=\S)[.,](?=\s)|(?<=\s)[.,](?=\s)", text))
    apart = len(re.findall(r"(?<=\s)[.,](?=\s)", text))
    return marks >= 20 and apart > 0.8 * marks


def text_field(files: Sequence[SourceFile]) -> str:
    """The field or column that holds the text; "" where the files have none."""
    tables = [file for file in files if file.format in ("jsonl", "parquet")]
    sizes: Counter[str] = Counter()
    records = 0
    names: dict[str, None] = {}
    for file in _spread(tables, 4):
        for record in _records(file):
            records += 1
            names.update(dict.fromkeys(record))
            for name, value in record.items():
                if isinstance(value, str):
                    sizes[name] += len(value)
    if not records:
        return ""
    long_enough = [name for name, size in sizes.most_common() if size >= TEXT * records]
    if not long_enough:
        seen = ", ".join(list(names)[:20])
        raise UserError(
            "source",
            f"{tables[0].path} has no field with text (its fields are {seen}); give records a "
            'field with the text of a document, such as {"text": "…"}',
        )
    return next((name for name in USUAL if name in long_enough), long_enough[0])


def _records(file: SourceFile) -> list[dict[str, Any]]:
    if file.format == "parquet":
        return _rows(file)
    records = []
    for line in _first_bytes(file).split(b"\n")[:100]:
        try:
            record = json.loads(line)
        except ValueError:
            continue  # incomplete, or invalid: building the corpus reports which
        if isinstance(record, dict):
            records.append(record)
    return records


def _rows(file: SourceFile) -> list[dict[str, Any]]:
    from pyarrow import ArrowException, parquet

    with at(file.path).reading() as stream:
        try:
            batches = parquet.ParquetFile(stream).iter_batches(100)
            first = next(iter(batches), None)
        except (ArrowException, OSError) as error:
            raise UserError(
                "file-unreadable", f"{file.path} cannot be read as Parquet ({error})"
            ) from error
    return first.to_pylist() if first is not None else []
