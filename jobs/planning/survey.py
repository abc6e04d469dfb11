"""What kind of text is in a user's files, so that `elmwright init` need not ask.

Formats go by the endings of names. The beginnings of a few files then tell which field of a record
holds the text, what separates documents in plain text and whether it is tokenised already; a sample
(`pipeline/build/preview.py`) tells the language and how many words there are. All of this is a
guess that is written into the config for the user to see and change.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from statistics import median
from typing import Any

from elmwright.jobs.planning.estimate import HARVEST_BYTES, HARVEST_STEPS
from elmwright.pipeline.build.preview import Look, look_at, text_bytes
from elmwright.pipeline.config import EMBEDDED, CorpusConfig, Source
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.reading import sources
from elmwright.pipeline.reading.decode import blocks, decode
from elmwright.pipeline.reading.sources import SourceFile
from elmwright.pipeline.storage.files import at

HEAD = 300_000
"""Bytes at the beginning of a file that are looked at."""
FILES = 12
"""Files whose beginnings are looked at."""
WHOLE = 30_000_000
"""Larger files are not read as one document (`corpus.max_document_mb`)."""
DOCUMENT = 1_000
"""Characters from which what stands between blank lines is a document, not a paragraph."""
TEXT = 20
"""Characters that a field of text has on average, at least: names and numbers have fewer."""
USUAL = ("text", "content", "body", "article", "document", "raw_content", "page_content", "story")
"""Names that fields of text often have, the surest first."""
WITHOUT_SPACES = frozenset({"zh", "ja", "th", "lo", "km", "my", "bo", "dz"})
"""Languages that are written without spaces between words."""


@dataclass(frozen=True)
class Survey:
    """What was found."""

    files: int
    """Files in all sources."""
    bytes: int
    """Bytes of text in them, about."""
    steps: int
    """Words and sentences in them, about."""
    fields: tuple[str, ...]
    """For each source, the field of its records that holds the text; "" where it has none."""
    documents: str
    """corpus.documents."""
    tokenizer: str
    """corpus.tokenizer."""
    language: str
    """The code of most of the text."""
    share: float
    """The share of it that is in this language; 0 where nobody can tell."""
    longest: int
    """Characters of the longest document, about."""
    alphabet: int = 0
    """Distinct characters that pieces of words would have to spell."""


def survey(paths: Sequence[str]) -> Survey:
    """Look at what paths, folders and globs name; a `UserError` for one that names nothing."""
    found: list[SourceFile] = []
    fields = []
    for index, path in enumerate(paths):
        mine: list[SourceFile] = []
        if path != EMBEDDED:
            stats = sources.expand(path, "--source")
            plain = CorpusConfig()
            mine = [
                sources.source_file(stat, len(found) + n, "train", plain, Source(path), index)
                for n, stat in enumerate(stats)
            ]
        fields.append(text_field(mine))
        found += mine
    if not found:
        return Survey(
            0, HARVEST_BYTES, HARVEST_STEPS, tuple(fields), "blank-line", "ptb", "en", 1.0, 0
        )
    if not sum(file.bytes for file in found):
        raise UserError(
            "no-text", f"the files of --source {paths[0]} are empty; name some with text"
        )
    plain_text = [file for file in found if file.format == "text"]
    documents = separator(plain_text, [head for file in _some(plain_text) if (head := _head(file))])
    look = _look(found, fields, documents)
    if not look.sentences:
        raise UserError(
            "no-text",
            f"--source {', '.join(paths)}: no text could be read there {look.detail}".rstrip(),
        )
    language, share = next(iter(look.languages.items()), ("en", 0.0))
    tokenizer = "sentencepiece" if language in WITHOUT_SPACES else "ptb"
    if tokenizer == "ptb" and is_tokenised(_head(file) for file in _some(plain_text)):
        tokenizer = "whitespace"
    if (language, tokenizer) != ("en", "ptb"):
        look = _look(found, fields, documents, tokenizer, language)
    longest = look.longest
    if documents == "file":
        longest = max(longest, *(text_bytes(file) for file in plain_text))
    return Survey(
        len(found),
        look.text_bytes,
        look.steps,
        tuple(fields),
        documents,
        tokenizer,
        language,
        share,
        longest,
        look.alphabet,
    )


def _look(
    found: Sequence[SourceFile],
    fields: Sequence[str],
    documents: str,
    tokenizer: str = "ptb",
    language: str = "en",
) -> Look:
    read = [
        replace(file, documents=documents, text_field=fields[file.source] or "text")
        for file in found
    ]
    config = CorpusConfig(tokenizer=tokenizer, language=language)  # type: ignore[arg-type]
    return look_at(read, config)


def _some(files: Sequence[SourceFile]) -> list[SourceFile]:
    """A few files from all over the list."""
    return (
        [files[n * len(files) // FILES] for n in range(FILES)] if len(files) > FILES else [*files]
    )


def _bytes_of(file: SourceFile) -> bytes:
    """The first bytes of a file, unpacked."""
    data = b""
    with at(file.path).reading() as stream:
        for block in blocks(stream, file.path, 0, -1):
            data += block
            if len(data) >= HEAD:
                break
    return data[:HEAD]


def _head(file: SourceFile) -> str:
    """The beginning of a text file, without a last line that was cut."""
    data = _bytes_of(file)
    if len(data) == HEAD and b"\n" in data:
        data = data[: data.rindex(b"\n") + 1]
    return decode(data, file.encoding)[0].replace("\r\n", "\n")


def separator(files: Sequence[SourceFile], heads: Sequence[str]) -> str:
    """What separates documents in plain text: blank-line, line or file.

    Blank lines do, if what is between them is as long as a document, or is several lines that each
    end a sentence. Otherwise they separate paragraphs, and a file is a document: the order of
    paragraphs is kept, and long files can be cut.
    """
    if not files:
        return "blank-line"
    whole = max(map(text_bytes, files)) < WHOLE
    groups = [group for head in heads for group in re.split(r"\n[ \t]*\n\s*", head.strip())]
    if len(groups) <= len(heads):
        return "file" if whole else "line"
    sizes = sorted(map(len, groups))
    half, seen = sum(sizes) / 2, 0
    for size in sizes:  # half of the text is in groups at least so long
        seen += size
        if seen >= half:
            break
    lines = [group.split("\n") for group in groups]
    ended = [bool(re.search(r"[.!?…。！？][\"'”’»)]*\s*$", line)) for ls in lines for line in ls]
    by_sentence = median(map(len, lines)) >= 2 and sum(ended) > 0.8 * len(ended)
    if size >= DOCUMENT or by_sentence or not whole:
        return "blank-line"
    return "file"


def is_tokenised(heads: Iterable[str]) -> bool:
    """Whether full stops and commas stand apart from the words before them."""
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
    for file in _some(tables)[:4]:
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
    found = []
    for line in islice(_bytes_of(file).split(b"\n"), 100):
        try:
            record = json.loads(line)
        except ValueError:
            continue  # cut, or broken: the corpus will say which
        if isinstance(record, dict):
            found.append(record)
    return found


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
