"""How long training waits for its data: at most 2 % of the time of a step.

`jobs/training/loop/train.py` itself, one process with one thread, `small.toml`'s model and 64 lanes
× 20 steps, reads a WikiText-2 corpus: from the disk, from an S3 server on this machine, and from
the same server behind a proxy that delays each of its answers by 50 ms. The blocks have an eighth
of `small.toml`'s size, so that there are eight times as many to fetch and all lanes enter new ones
every 16 steps. Printed: the wait for the first batch, the share of the time of the other steps that
`Prefetch.next` took, and how many of the prepared batches were in the queue when the step asked for
the next (0 would mean that it waited).

python tests/bench/bench_loading.py [steps]
"""

import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import mean

from corpus import wikitext_corpus
from workload import ROOT, SHARED, skip

from elmwright.jobs.checkpoints.checkpoint import begin_attempt
from elmwright.jobs.config.toml_file import load_config
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.training.loop import train as loop
from elmwright.jobs.training.loop.exchange import Ranks
from elmwright.jobs.training.loop.input.stream import AHEAD, Batch, Prefetch

sys.path.insert(0, str(ROOT))
from tests.support.s3_server import environment, rclone, s3_server

LIMIT, DELAY, BLOCK = 0.02, 0.05, 320


class Watched(Prefetch):
    """Remembers when each batch was asked for and came, and how many were ready."""

    asked: list[float]
    came: list[float]
    depth: list[int]

    def next(self) -> Batch:
        Watched.depth.append(self._queue.qsize())
        Watched.asked.append(time.perf_counter())
        batch = super().next()
        Watched.came.append(time.perf_counter())
        return batch


def measure(name: str, corpus: str, folder: Path, steps: int) -> bool:
    Watched.asked, Watched.came, Watched.depth = [], [], []
    settings = [
        f"run.dir={folder / name.replace(' ', '-')}",
        f"corpus.dir={corpus}",
        "train.processes=1",
        f"shards.block_steps={BLOCK}",
        "train.lanes=64",
        f"train.max_steps={steps}",
        "checkpoint.every_steps=1000000",
    ]
    config = load_config("small", settings)
    run = RunFolder.of(config)
    loop.train(config, run, begin_attempt(run.attempt), Ranks())
    asked, came = Watched.asked, Watched.came
    waits = [b - a for a, b in zip(asked, came, strict=True)]
    share = sum(waits[1:]) / (came[-1] - came[0])
    cached = sum(path.stat().st_size for path in (run.scratch / "blocks").glob("?" * 64))
    print(
        f"{name}: first batch after {waits[0]:.2f} s, then {100 * share:.3f} % of the time of a "
        f"step ({(came[-1] - came[0]) / (steps - 1):.3f} s) is loading, longest wait "
        f"{1000 * max(waits[1:]):.1f} ms; of {AHEAD} batches {mean(Watched.depth[1:]):.2f} were "
        f"ready, at least {min(Watched.depth[1:])}; {cached / 1e6:.1f} MB cached; at most "
        f"{100 * LIMIT:.0f} %: {'holds' if share <= LIMIT else 'does not hold'}",
        flush=True,
    )
    return share <= LIMIT


@contextmanager
def delayed(port: int) -> Iterator[int]:
    """A proxy that passes everything on, the server's answers `DELAY` seconds late."""

    def pump(one: socket.socket, other: socket.socket, delay: float) -> None:
        with suppress(OSError):
            while data := one.recv(1 << 20):
                time.sleep(delay)
                other.sendall(data)
        for end in (one, other):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def serve(server: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = server.accept()
                store = socket.create_connection(("127.0.0.1", port))
                for pair in ((client, store, 0.0), (store, client, DELAY)):
                    threading.Thread(target=pump, args=pair, daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, args=(server,), daemon=True).start()
        yield server.getsockname()[1]


def main() -> int:
    if not (SHARED / "data" / "wikitext2").is_dir():
        skip(f"{SHARED} has no data/wikitext2; ELMWRIGHT_SHARED names the folder that holds it")
    if rclone() is None:
        skip("rclone is not installed: no S3 server to read from")
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    loop.Prefetch = Watched  # type: ignore[misc]
    folder = Path(tempfile.mkdtemp(prefix="elmwright-bench-"))
    buckets = folder / "buckets"
    wikitext_corpus(folder, BLOCK, buckets / "bucket" / "corpus")
    good = [measure("disk", str(buckets / "bucket" / "corpus"), folder, steps)]
    with s3_server(buckets) as settings, environment(settings):
        good.append(measure("store", "s3://bucket/corpus", folder, steps))
        port = int(settings["AWS_ENDPOINT_URL"].rpartition(":")[2])
        with (
            delayed(port) as far,
            environment({"AWS_ENDPOINT_URL": f"http://127.0.0.1:{far}"}),
        ):
            good.append(measure("distant store", "s3://bucket/corpus", folder, steps))
    shutil.rmtree(folder)
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
