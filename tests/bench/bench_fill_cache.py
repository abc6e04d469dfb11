"""Would a table of token-layer vectors, made beforehand, still pay off?

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
    import torch
    from safetensors.torch import save_file

    from elmwright.model.elmo import TypeCache
    from elmwright.model.folder import load_folder

    bilm = load_folder(folder).bilm
    text = json.loads((folder / "sentences.json").read_text())
    words = list(dict.fromkeys(["<S>", "</S>", *(word for line in text for word in line)]))
    with torch.no_grad():
        vectors, _ = TypeCache().encode(bilm, words, torch.device("cpu"))
    save_file({"vectors": vectors}, folder / "table.safetensors")
    (folder / "words.json").write_text(json.dumps(words))


def embed(folder: Path, count: int, with_table: bool) -> None:
    """What a short-lived process does."""
    import torch
    from safetensors.torch import load_file

    from elmwright.model.elmo import Elmo

    torch.set_num_threads(1)
    elmo = Elmo.from_pretrained(folder)
    if with_table:
        elmo._cache.vectors = load_file(folder / "table.safetensors")["vectors"]
        words = json.loads((folder / "words.json").read_text())
        elmo._cache.place = {word: number for number, word in enumerate(words)}
        encoder = elmo.bilm.encoder.parameters()
        elmo._cache.encoder = [(id(p), p.data_ptr(), p._version) for p in encoder]
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
