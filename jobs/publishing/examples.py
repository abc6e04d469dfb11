"""Sentences of a corpus's own held-out text, as examples in the language of the model.

A model card, the registry and the last screen of a run show how to use a model. What they show as
input is a sentence that the model could have been made for. The same corpus gives the same one.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from elmwright.pipeline.cleaning.words import ptb
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.format.block import sentences
from elmwright.pipeline.format.manifest import Manifest
from elmwright.pipeline.format.pieces import text_of
from elmwright.pipeline.format.shards import ShardReader
from elmwright.pipeline.storage.files import join

MAX_WORDS = 12
"""The most words in an example."""
MAX_CHARS = 120
"""The most characters of an example that is published, also where words have no spaces."""
MIN_SENTENCES = 3
"""The fewest sentences that must contain an example's word, including its own."""
ENDS = tuple(".?!。？！।؟")
_BEFORE_MARK = re.compile(r" (?=[.,;:?!](?: |$))")


@dataclass(frozen=True)
class Example:
    """A sentence."""

    text: str
    """As a person would write it, or nearly."""
    words: tuple[str, ...]
    """Its words: those of a person where they are looked for, the model's own on a card."""

    @property
    def is_simple(self) -> bool:
        """Whether it is short and needs no quoting in a shell."""
        return len(self.words) <= MAX_WORDS and all(
            char.isalnum() or char in ".,;:?-" for word in self.words for char in word
        )


PLAIN = Example("The quick brown fox", ("The", "quick", "brown", "fox"))
"""The example of a corpus that cannot be read."""


def heldout_examples(corpus: str, manifest: Manifest, *, or_of_train: bool = True) -> list[Example]:
    """The sentences of the first held-out block (of train, where there is none)."""
    held_out = [split for name, split in manifest.splits.items() if name != "train"]
    shards = [shard.tar for split in held_out for shard in split.shards]
    if or_of_train:
        shards += [shard.tar for shard in manifest.splits["train"].shards]
    try:
        block = ShardReader(join(corpus, shards[0])).read(0)
    except (OSError, UserError, IndexError):  # an example is not worth failing a finished run
        return []
    settings = manifest.config.get("corpus", {})
    tokenise = partial(ptb, language=settings.get("language", "en"), version=manifest.rules)
    if settings.get("tokenizer") == "sentencepiece":
        texts = [text_of(pieces) for pieces in sentences(block)]
        return [Example(text, tuple(tokenise(text).split())) for text in texts if text]
    examples = []
    for words in sentences(block):
        text = " ".join(words)
        written = _BEFORE_MARK.sub("", text)  # as a person would write it
        can_be_read = settings.get("tokenizer") == "ptb" and tokenise(written) == text
        examples.append(Example(written if can_be_read else text, tuple(words)))
    return examples


def example_sentence(corpus: str, manifest: Manifest) -> str:
    """A short held-out sentence that a model card may show as what the model reads."""
    examples = heldout_examples(corpus, manifest, or_of_train=False)
    if not examples:
        return PLAIN.text

    def order(example: Example) -> tuple[bool, bool, int, str]:
        is_whole = example.text.endswith(ENDS)
        return not example.is_simple, not is_whole, abs(len(example.words) - 7), example.text

    return " ".join(min(examples, key=order).text.split()[: 2 * MAX_WORDS])[:MAX_CHARS]


def choose_example(examples: Sequence[Example]) -> tuple[str, str] | None:
    """A word that occurs in several sentences, preferably a long word, and a short sentence that
    contains it; None if there is none."""
    short = [example for example in examples if example.is_simple]
    counts = Counter(word for example in examples for word in set(example.words))
    candidates = {
        word
        for example in short
        for word in example.words
        if word.isalpha() and word == word.lower() and counts[word] >= MIN_SENTENCES
    }
    if not candidates:
        return None
    best = min(candidates, key=lambda word: (-min(len(word), 6), -counts[word], word))
    holding = (example for example in short if best in example.words)
    return best, min(holding, key=lambda e: (-len(e.words), *e.words)).text
