"""MinHash band keys, ours and rensa's plain sketches side by side: speed, and the truth.

Text is the prose of the docstrings on this machine, a document a module. Each side makes 14 × 8
band keys of word 5-grams. Rounds alternate in one process; CPU seconds, best of several, as other
load comes and goes. rensa gets its shingles as strings, as its users give them, and once more as
our 64-bit shingle hashes, which leaves its kernel alone. Then both estimate known similarities.

    python tests/bench/bench_minhash.py [MEGABYTES]      (default: 8)
"""

import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

try:
    import rensa
except ImportError:
    print("skipped: rensa is not installed (pip install rensa==0.5.0)")
    sys.exit(0)

from elmwright.pipeline.cleaning import repair, words
from elmwright.pipeline.cleaning.tokens import Lexicon, Reader, Tokens
from elmwright.pipeline.config import MinHash
from elmwright.pipeline.dedup import minhash, ngrams
from elmwright.pipeline.format.lanes import hash64
from elmwright.pipeline.reading import harvest

ROUNDS, CONFIG, KNOWN = 5, MinHash(), 1_000_000
ROWS = CONFIG.bands * CONFIG.rows
WORD = re.compile(r"\w+")


def read_documents(size: int) -> list[list[str]]:
    documents, total = [], 0
    for _, path in harvest.list_modules():
        try:
            texts = [repair.normalise(text) for text in harvest.module_prose(Path(path))]
        except (SyntaxError, ValueError, OSError):
            continue
        found = (" ".join(line.split()) for text in texts for line in text.splitlines())
        lines = [line for line in found if line]
        if lines:
            documents.append(lines)
            total += sum(len(line.encode()) + 1 for line in lines)
        if total > size:
            break
    return documents


def tokenise(documents: list[list[str]]) -> Tokens:
    reader = Reader(words.chunk_rules("ptb"))
    return reader.read(documents)[1]


def split(documents: list[list[str]]) -> list[list[str]]:
    return [WORD.findall("\n".join(lines).lower()) for lines in documents]


def shingles(documents: list[list[str]]) -> list[list[str]]:
    n = CONFIG.ngram
    return [
        [" ".join(some[i : i + n]) for i in range(max(1, len(some) - n + 1))] for some in documents
    ]


def keys_of(rows: Any) -> Any:
    """Band keys of rensa's rows, made as ours are."""
    found = np.array(rows, np.uint64).reshape(-1, CONFIG.bands, CONFIG.rows)
    mixed = np.zeros(found.shape[:2], np.uint64)
    for row in range(CONFIG.rows):
        mixed = mixed * ngrams.FACTOR + found[:, :, row]
    return hash64(mixed)


def flat(tokens: Tokens) -> Any:
    hashes, offsets = ngrams.ngram_hashes(tokens, CONFIG.ngram)
    offsets = offsets.astype(np.uint64)
    return rensa.RMinHash.digest_matrix_from_flat_token_hashes(hashes, offsets, ROWS, 1).to_rows()


def r_strings(some: list[list[str]]) -> Any:
    return rensa.RMinHash.digest_matrix_from_token_sets(some, ROWS, 1).to_rows()


def c_strings(some: list[list[str]]) -> Any:
    return rensa.CMinHash.digests_from_token_sets(some, ROWS, 1)


def race(sides: dict[str, Callable[[], Any]], megabytes: float) -> None:
    best = dict.fromkeys(sides, float("inf"))
    for _ in range(ROUNDS):
        for name, run in sides.items():
            begin = time.process_time()
            run()
            best[name] = min(best[name], time.process_time() - begin)
    for name, seconds in best.items():
        rate, cost = megabytes / seconds, seconds / megabytes
        print(f"  {name:<52} {rate:7.1f} MB/s  {cost:.4f} CPU s/MB")


def estimates() -> None:
    """Each sketch's mean estimate over 1,000 pairs of sets whose union has 200 elements."""
    rng, lexicon, pairs = np.random.default_rng(0), Lexicon(), 1000
    for n in range(20_000):
        lexicon.number(f"w{n}")
    for truth in (0.3, 0.5, 0.8):
        sets = []
        for _ in range(pairs):
            some = rng.choice(20_000, 200, replace=False)
            common = round(200 * truth)
            half = common + (200 - common) // 2
            sets += [some[:half], np.concatenate([some[:common], some[half:]])]
        offsets = np.cumsum([0, *map(len, sets)])
        tokens = Tokens(np.concatenate(sets).astype(np.int32), offsets, lexicon)
        strings = [[f"w{n}" for n in some.tolist()] for some in sets]
        made = {
            "ours": minhash.signatures(ngrams.words_of(tokens), MinHash(ngram=1)).T,
            "RMinHash": np.array(r_strings(strings)),
            "CMinHash": np.array(c_strings(strings)),
        }
        print(f"  Jaccard {truth}:", end="")
        for name, rows in made.items():
            equal = (rows[::2] == rows[1::2]).mean(axis=1)
            print(f"  {name} {equal.mean():.4f} ± {equal.std() / pairs**0.5:.4f}", end="")
        print()


def main() -> int:
    documents = read_documents(int(float(sys.argv[1]) * 1e6) if len(sys.argv) > 1 else 8_000_000)
    megabytes = sum(len(line.encode()) + 1 for lines in documents for line in lines) / 1e6
    tokens, split_words = tokenise(documents), split(documents)
    lines = [[line] for some in documents for line in some]
    line_tokens = tokenise(lines)
    known = np.unique(hash64(np.arange(KNOWN), 5))
    print(f"{megabytes:.1f} MB, {len(documents)} documents, {tokens.ids.size} words")
    print("signatures, from words to band keys")
    race(
        {
            "ours": lambda: minhash.bands(tokens, CONFIG),
            "rensa RMinHash, our shingle hashes": lambda: keys_of(flat(tokens)),
            "rensa RMinHash, strings": lambda: keys_of(r_strings(shingles(split_words))),
            "rensa CMinHash, strings": lambda: keys_of(c_strings(shingles(split_words))),
        },
        megabytes,
    )
    print("all, from text to band keys")
    race(
        {
            "ours (Penn Treebank words)": lambda: minhash.bands(tokenise(documents), CONFIG),
            r"rensa RMinHash, \w+": lambda: keys_of(r_strings(shingles(split(documents)))),
            r"rensa CMinHash, \w+": lambda: keys_of(c_strings(shingles(split(documents)))),
        },
        megabytes,
    )
    print("ours, elsewhere")
    race(
        {
            f"band keys, a line a document ({len(lines)})": lambda: minhash.bands(
                line_tokens, CONFIG
            ),
            "13-grams looked up among a million": lambda: ngrams.first_hit(tokens, 13, known),
        },
        megabytes,
    )
    print("estimates")
    estimates()
    return 0


if __name__ == "__main__":
    sys.exit(main())
