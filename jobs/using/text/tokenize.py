"""`elmwright tokenize`: the words that a model makes of raw text.

One sentence per line, its words separated by spaces: text for the other commands' `--tokenized`,
and for any program that wants the words of the model's corpus. As JSON, each word has its place in
the line (with `--split`, in the text): a half-open range of characters.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from elmwright.jobs.registry.resolve import resolve
from elmwright.jobs.using.text.sentences import pieces, read_lines, text_file
from elmwright.jobs.using.text.text_lines import Reading, read_parts, warn_of_text
from elmwright.model.text.text_input import TextInput
from elmwright.pipeline.cleaning.tokeniser import Word


def tokenize_file(model: str, source: str, *, split: bool = False, as_json: bool = False) -> None:
    """Print the words of every sentence of `source`."""
    folder = resolve(model)
    text = TextInput.of_folder(folder)
    with TemporaryDirectory() as scratch, text_file(source, Path(scratch)) as path:
        sentences = _split(text, path) if split else _lines(text, path)
        if not split:
            warn_of_text(folder, text, path, Reading())
        for number, words in enumerate(sentences):
            if as_json:
                row = {
                    "line": number,
                    "tokens": [word.text for word in words],
                    "offsets": [[word.start, word.end] for word in words],
                }
                print(json.dumps(row, ensure_ascii=False))
            else:
                print(*(word.text for word in words))


def _lines(text: TextInput, path: Path) -> Iterator[list[Word]]:
    (whole,) = pieces(path, None)
    for line, _ in read_lines(path, whole):
        yield text.tokenise(line.rstrip("\r\n"))


def _split(text: TextInput, path: Path) -> Iterator[list[Word]]:
    """The sentences of running text, with places counted from the beginning of the text."""
    start = 0
    for part in read_parts(path):
        for sentence in text.split(part):
            yield [Word(word, start + begin, start + end) for word, begin, end in sentence.words]
        start += len(part)
