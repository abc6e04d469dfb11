"""What a table of token-layer vectors (`elmwright fill-cache`) still spares.

    python tests/bench/bench_fill_cache.py [rounds [sentences …]]

The old tools encoded every *occurrence* of a word, so a table of its vocabulary spared them the
character CNN altogether. `Elmo.embed` encodes a word type once a process. What a table can still
spare is that once; it is measured here for whole processes, in CPU seconds from start to exit: open
the model, read the table (or not), embed N sentences of WikiText-2. Every word is in the table,
which flatters it.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import median

from bench_embed import real_sentences, write_folder


def make_table(folder: Path) -> None:
    from elmwright.jobs.using.fill_cache import write_table

    text = json.loads((folder / "sentences.json").read_text())
    words = dict.fromkeys(word for line in text for word in line)
    (folder / "words.txt").write_text("\n".join(words), encoding="utf-8")
    write_table(str(folder), folder / "table.safetensors", str(folder / "words.txt"))


def embed(folder: Path, count: int, with_table: bool) -> None:
    """What a short-lived process does."""
    import torch

    from elmwright.jobs.using.fill_cache import use_table
    from elmwright.jobs.using.pretrained import Elmo

    torch.set_num_threads(1)
    elmo = Elmo.from_pretrained(folder)
    if with_table:
        use_table(elmo, folder / "table.safetensors")
    elmo.embed(json.loads((folder / "sentences.json").read_text())[:count])


def cpu_seconds(*arguments: object) -> float:
    process = subprocess.Popen([sys.executable, __file__, *map(str, arguments)])
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    rounds, *counts = [int(argument) for argument in sys.argv[1:]] or [3]
    counts = counts or [10, 100, 400, 2000]
    text = real_sentences(max(counts))
    folder = write_folder(text)
    make_table(folder)
    for count in counts:
        pairs = [
            (cpu_seconds("embed", folder, count, 0), cpu_seconds("embed", folder, count, 1))
            for _ in range(rounds)
        ]
        without, with_table = (median(column) for column in zip(*pairs, strict=True))
        words = sum(map(len, text[:count]))
        types = len({word for line in text[:count] for word in line})
        print(
            f"{count} sentences, {words:,} words, {types:,} types: {without:.2f} CPU s, with a "
            f"table {with_table:.2f}, ratio {without / with_table:.2f}",
            flush=True,
        )
    shutil.rmtree(folder)


if __name__ == "__main__":
    if sys.argv[1:2] == ["embed"]:
        embed(Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "1")
    else:
        main()
