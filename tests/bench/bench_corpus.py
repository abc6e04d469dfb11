"""The whole corpus stage: raw JSON Lines to finished shards with near-dedup, Ray and all.

    python tests/bench/bench_corpus.py [MB] [file.jsonl ...]

Prints its CPU seconds (driver, workers, Ray's own processes: everything that was started) against
those of a bare `re` pass that finds the words of the same text, measured before and after; at most
15 times as many are allowed. Then the peak memory of any worker and of the driver at three sizes of
corpus (a half, one and two times the text), which must not grow with it: workers below 1.5 GB, the
driver below 1 GB. The text is real (English Wikipedia and novels); the third size adds a copy of it
with every third word changed, so that it is not a duplicate. Every twentieth document is followed
by a near-copy of itself, so that there is something to find.
"""

import json
import lzma
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from meter import Meter, keep_orphans

LIMIT, WORKER_MB, DRIVER_MB = 15.0, 1500, 1000
WORD = re.compile(r"\w+|[^\w\s]")
SHARED = Path(os.environ.get("ELMWRIGHT_SHARED", Path(__file__).resolve().parents[3] / "shared"))

BUILD = """
import json, logging, sys
from pathlib import Path
import ray
from elmwright.pipeline.build.driver import build_corpus
from elmwright.pipeline.config import CorpusConfig, ShardsConfig, Source, VocabConfig
from elmwright.pipeline.build.ray_tasks import peak_mb
text, folder = sys.argv[1:]
ray.init(address="local", num_cpus=2, include_dashboard=False, logging_level=logging.ERROR,
         log_to_driver=False)
manifest = build_corpus(CorpusConfig(sources=(Source(text),)), VocabConfig(),
                        ShardsConfig(), seed=1, folder=folder)
ray.shutdown()
stages = json.loads(Path(folder, "statistics.json").read_text())["stages"]
(mark,) = Path(folder, "work/clusters").glob("*.done.json")
near = json.loads(mark.read_text())["report"]
print(json.dumps({
    "words": manifest.splits["train"].words,
    "driver_mb": peak_mb(),
    "pairs": near["edges"],
    "stages": [[s[k] for k in ("name", "seconds", "cpu_seconds", "peak_mb")] for s in stages],
}))
"""


def documents(paths: list[str]) -> Iterator[str]:
    found = [Path(path) for path in paths]
    if not found:
        if not SHARED.is_dir():
            print("skipped: no text; name JSON Lines files, or set ELMWRIGHT_SHARED")
            sys.exit(0)
        folders = ("enwiki2014", "novels_en")
        found = [path for name in folders for path in sorted((SHARED / "data" / name).iterdir())]
    for path in found:
        if path.name == "ORIGIN.txt":
            continue
        data = path.read_bytes()
        data = lzma.decompress(data) if path.suffix == ".xz" else data
        for line in data.splitlines():
            yield json.loads(line)["text"]


def sized(texts: list[str], megabytes: float) -> list[str]:
    """Texts of this many megabytes in total, repeated with changed words if there are too few."""
    taken: list[str] = []
    size, round_ = 0, 0
    while size < megabytes * 1e6:
        for text in texts:
            words = text.split(" ")
            if round_:
                words[::3] = [f"{word}{round_}" for word in words[::3]]
            taken.append(" ".join(words))
            size += len(taken[-1].encode())
            if len(taken) % 20 == 0:
                words[len(words) // 2] = "changed"
                taken.append(" ".join(words))
                size += len(taken[-1].encode())
            if size >= megabytes * 1e6:
                break
        round_ += 1
    return taken


def bare_pass(texts: list[str]) -> float:
    before = time.process_time()
    for text in texts:
        WORD.findall(text)
    return time.process_time() - before


def build(texts: list[str]) -> tuple[float, dict]:
    """CPU seconds of a build and of all it started, and its report."""
    folder = tempfile.mkdtemp(prefix="elmwright-bench-")
    try:
        source = Path(folder, "text.jsonl")
        with open(source, "w") as file:
            for text in texts:
                file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
        meter = Meter()
        meter.start()
        command = [sys.executable, "-c", BUILD, str(source), f"{folder}/corpus"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        return meter.seconds(), json.loads(done.stdout.splitlines()[-1])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    arguments = sys.argv[1:]
    megabytes = float(arguments.pop(0)) if arguments and not Path(arguments[0]).exists() else 60.0
    keep_orphans()
    texts = list(documents(arguments))
    ok = True
    for share in (0.5, 1.0, 2.0):
        taken = sized(texts, megabytes * share)
        size = sum(len(text.encode()) for text in taken) / 1e6
        bare = [bare_pass(taken)]
        used, report = build(taken)
        bare.append(bare_pass(taken))
        ratio = used / (sum(bare) / 2)
        worker = max(stage[3] for stage in report["stages"])
        print(
            f"{size:.0f} MB, {report['words']:,} words: {used:.1f} CPU s = {ratio:.1f} × a bare re "
            f"pass ({bare[0]:.1f} and {bare[1]:.1f} s; allowed {LIMIT:.0f} ×); peak memory: "
            f"worker {worker:.0f} MB, driver {report['driver_mb']:.0f} MB; "
            f"{report['pairs']:,} pairs of near-copies"
        )
        inside = sum(stage[2] for stage in report["stages"])
        for name, seconds, cpu, peak in report["stages"]:
            print(f"    {name:<16} {seconds:7.1f} s {cpu:8.1f} CPU s {peak:7.0f} MB")
        print(f"    {'outside tasks':<16} {'':9} {used - inside:8.1f} CPU s")
        ok &= worker < WORKER_MB and report["driver_mb"] < DRIVER_MB
        ok &= ratio <= LIMIT or share < 1
    print("holds" if ok else "DOES NOT HOLD")
    sys.exit(not ok)


if __name__ == "__main__":
    main()
