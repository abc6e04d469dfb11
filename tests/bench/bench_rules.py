"""Gopher quality + C4 + MinHash 14 × 8: CPU time and decisions of Elmwright and of datatrove.

    ELMWRIGHT_DATATROVE_PYTHON=/path/to/python bench_rules.py [MEGABYTES] [ROUNDS]   (12 and 2)

Both read the same JSON Lines and write what is left. Measured is the CPU time (user and system) of
a process that has loaded its libraries and models and has cleaned one short document; our memory of
chunks starts empty all the same. Each side runs in a process of its own, in turns; the best round
counts. datatrove runs as it comes (spaCy words) and with BlingFire words.

Documents: Wikipedia articles and novels in pieces of about 1000 words (from ELMWRIGHT_SHARED/data,
if that is there), docstrings of the standard library (messy: most rules fire), and every twentieth
document once more with a few words changed. Decisions on near-copies are compared by who has one,
because which of them stays is a choice. Required are 98 % against datatrove as it comes: BlingFire
changes datatrove's own decisions by more.
"""

import ast
import inspect
import json
import lzma
import os
import random
import resource
import subprocess
import sys
import sysconfig
import tempfile
import warnings
from collections import Counter
from itertools import zip_longest
from pathlib import Path

HERE = Path(__file__).resolve().parent
PEER = os.environ.get("ELMWRIGHT_DATATROVE_PYTHON", "")
DATA = Path(os.environ.get("ELMWRIGHT_SHARED", HERE.parents[2] / "shared")) / "data"
TARGETS = {"spacy": 20.0, "blingfire": 4.0}
EQUAL = 0.98
NAMES = {
    "gopher_short_doc": "gopher_quality.min_words",
    "gopher_long_doc": "gopher_quality.max_words",
    "gopher_below_avg_threshold": "gopher_quality.min_word_length",
    "gopher_above_avg_threshold": "gopher_quality.max_word_length",
    "gopher_too_many_hashes": "gopher_quality.max_symbol_share",
    "gopher_too_many_ellipsis": "gopher_quality.max_symbol_share",
    "gopher_too_many_bullets": "gopher_quality.max_bullet_lines",
    "gopher_too_many_end_ellipsis": "gopher_quality.max_ellipsis_lines",
    "gopher_below_alpha_threshold": "gopher_quality.min_letter_words",
    "gopher_enough_stop_words": "gopher_quality.min_stop_words",
    "lorem_ipsum": "c4.lorem_ipsum",
    "curly_bracket": "c4.curly_bracket",
    "too_few_sentences": "c4.min_sentences",
}


def stored(name: str):
    for path in sorted((DATA / name).glob("*.jsonl.xz")):
        with lzma.open(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                yield json.loads(line)["text"]


def pieces(texts, words: int = 1000):
    """Texts cut at line ends into documents of about `words` words."""
    for text in texts:
        held: list[str] = []
        size = 0
        for line in text.split("\n"):
            held.append(line)
            size += line.count(" ") + 1
            if size >= words:
                yield "\n".join(held)
                held, size = [], 0


def docstrings():
    """All docstrings of a module of the standard library as one document."""
    warnings.simplefilter("ignore")
    for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        if "site-packages" in path.parts:
            continue
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            continue
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
        found = [ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, kinds)]
        text = "\n\n".join(inspect.cleandoc(part) for part in found if part)
        if text:
            yield text


def documents(megabytes: float) -> list[str]:
    """The same for the same size: the sources in turns, near-copies at the end."""
    chosen, size = [], 0.0
    sources = stored("enwiki2014"), pieces(stored("novels_en")), docstrings()
    for row in zip_longest(*sources):
        chosen += [text for text in row if text]
        size += sum(len(text.encode()) for text in row if text) / 1e6
        if size >= megabytes:
            break
    rng = random.Random(0)
    for text in chosen[::20]:
        words = text.split(" ")
        for _ in range(len(words) // 200):
            words[rng.randrange(len(words))] = "changed"
        chosen.append(" ".join(words))
    return chosen


def ours(folder: Path) -> None:
    """Our side: prints one line of JSON."""
    import numpy as np

    from elmwright.pipeline.cleaning.cleaner import Cleaner
    from elmwright.pipeline.cleaning.tokens import Reader
    from elmwright.pipeline.cleaning.words import chunk_rules
    from elmwright.pipeline.config import CorpusConfig, MinHash
    from elmwright.pipeline.dedup import clusters, minhash

    def cpu() -> float:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return used.ru_utime + used.ru_stime

    cleaner = Cleaner(CorpusConfig(rules=("gopher-quality", "c4")))
    warm = cleaner.clean(["A warm sentence â€™, with the words of it that load ftfy. " * 9])
    minhash.bands(warm.tokens, MinHash())
    cleaner._reader = Reader(chunk_rules("ptb"))

    start, signing = cpu(), 0.0
    ids: list[str] = []
    texts: list[str] = []
    reasons, keys = {}, []
    with open(folder / "in" / "docs.jsonl", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    for begin in range(0, len(rows), 1000):
        batch = rows[begin : begin + 1000]
        cleaned = cleaner.clean([row["text"] for row in batch])
        for row, verdict, text in zip(batch, cleaned.verdicts, cleaned.texts, strict=True):
            if verdict:
                reasons[row["id"]] = verdict
            else:
                ids.append(row["id"])
                texts.append(text)
        before = cpu()
        keys.append(minhash.bands(cleaned.tokens, MinHash()))
        signing += cpu() - before
    before = cpu()
    label = np.arange(len(ids))
    ends = []
    for band in np.concatenate(keys).T:
        order = np.argsort(band, kind="stable")
        same = np.flatnonzero(np.diff(band[order]) == 0)
        ends.append(np.stack([order[same], order[same + 1]]))
    label = clusters.components(*np.concatenate(ends, axis=1), len(ids))
    signing += cpu() - before
    final = np.flatnonzero(label == np.arange(len(ids))).tolist()
    with open(folder / "ours.jsonl", "w", encoding="utf-8") as out:
        for row in final:
            out.write(json.dumps({"id": ids[row], "text": texts[row]}) + "\n")
    total = cpu() - start
    sizes = Counter(label.tolist())
    shared = {ids[n]: int(c) for n, c in enumerate(label.tolist()) if sizes[c] > 1}
    result = {"rules": total - signing, "total": total, "reasons": reasons, "kept": ids}
    print(json.dumps(result | {"final": [ids[row] for row in final], "clusters": shared}))


def run(*command: str) -> dict:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        sys.exit(f"error: {' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def compare(my_name: str, mine: dict, name: str, theirs: dict, ids: list[str]) -> float:
    """Print how the decisions differ; the share that is equal in all."""
    differing: Counter[tuple[str, str]] = Counter()
    named = {key: NAMES.get(reason, reason) for key, reason in theirs["reasons"].items()}
    dropped = {key: NAMES.get(reason, reason) for key, reason in mine["reasons"].items()}
    for key in ids:
        if (key in dropped) != (key in named):
            differing[named.get(key, "keep"), dropped.get(key, "keep")] += 1
    rules = 1 - sum(differing.values()) / len(ids)
    same_rule = sum(dropped.get(key) == named.get(key) for key in ids) / len(ids)
    both = [key for key in ids if key not in dropped and key not in named]
    near = sum((key in mine["clusters"]) == (key in theirs["clusters"]) for key in both)
    equal = (near + sum(key in dropped and key in named for key in ids)) / len(ids)
    print(f"  decisions, {my_name} and datatrove {name}: {equal:.2%} equal")
    print(f"    rules: keep or drop {rules:.2%}, by the same rule {same_rule:.2%};")
    for (their, our), count in differing.most_common():
        print(f"      {count:5}  datatrove {name}: {their}; {my_name}: {our}")
    print(
        f"    near-copies: {near / max(1, len(both)):.2%} of {len(both)} kept by both; "
        f"in clusters {len(theirs['clusters'])} and {len(mine['clusters'])}; "
        f"removed {len(theirs['kept']) - len(theirs['final'])} "
        f"and {len(mine['kept']) - len(mine['final'])}"
    )
    return equal


def main() -> int:
    megabytes = float(sys.argv[1]) if len(sys.argv) > 1 else 12.0
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 2
    if not PEER or not Path(PEER).exists():
        print("skipped: set ELMWRIGHT_DATATROVE_PYTHON to a Python that has datatrove and spacy")
        return 0
    texts = documents(megabytes)
    size = sum(len(text.encode()) for text in texts) / 1e6
    ids = [str(number) for number in range(len(texts))]
    sides: dict[str, list[dict]] = {"ours": [], "spacy": [], "blingfire": []}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "in").mkdir()
            with open(folder / "in" / "docs.jsonl", "w", encoding="utf-8") as out:
                for key, text in zip(ids, texts, strict=True):
                    out.write(json.dumps({"id": key, "text": text}) + "\n")
            sides["ours"].append(run(sys.executable, __file__, "--ours", name))
            for kind in TARGETS:
                sides[kind].append(run(PEER, str(HERE / "peer_datatrove.py"), name, kind))
    print(f"{len(texts)} documents, {size:.1f} MB, Gopher quality + C4 + MinHash 14 × 8, one core")
    best = {name: min(runs, key=lambda r: r["total"]) for name, runs in sides.items()}
    for name, result in best.items():
        print(
            f"  {name:10} {result['total']:8.2f} CPU s = {size / result['total']:6.2f} MB/s; "
            f"rules alone {size / result['rules']:6.2f} MB/s"
        )
    good = True
    for name, target in TARGETS.items():
        ratio = best[name]["total"] / best["ours"]["total"]
        rules = best[name]["rules"] / best["ours"]["rules"]
        good &= ratio >= target
        print(f"  datatrove ({name}) ÷ ours: {ratio:.1f} (target {target:.0f}); rules {rules:.1f}")
    good &= compare("ours", best["ours"], "as it comes", best["spacy"], ids) >= EQUAL
    compare("ours", best["ours"], "with BlingFire", best["blingfire"], ids)
    compare("with BlingFire", best["blingfire"], "as it comes", best["spacy"], ids)
    return 0 if good else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--ours"]:
        ours(Path(sys.argv[2]))
    else:
        sys.exit(main())
