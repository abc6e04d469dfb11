"""A served model under load: no request is dropped, and every answer is that of `embed`.

    python tests/bench/bench_serving.py [MODEL] [--seconds 60] [--clients 8]

`mlflow models serve` serves MODEL, a bundle, by default one of the shape of the recipe demo with
random weights (the time does not depend on them). Each client sends one request after the other:
one to eight sentences of 1 to 60 words, as strings and as lists, with all ways to choose layers.
Printed are sentences and requests per second, and how long requests took: p50, p99 and the longest.

Answers may differ from `embed` of the whole text by the rounding of float32, because products of
other shapes add numbers up in another order. How far that goes depends on the model. With LSTM
weights of three times the usual size, as in the random models of tests, every step of a sentence
enlarges a difference, and one of 1e-7 becomes 1e-2 in 60 words without any error of serving. So the
bench also prints how far `embed` differs from itself where it reads each sentence alone.
"""

import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
from safetensors.torch import save_file

from elmwright.jobs.bundles.bundle import write_sums
from elmwright.jobs.config.toml_file import load_config
from elmwright.jobs.using.layer_choice import choose_layers
from elmwright.jobs.using.pretrained import Elmo
from elmwright.model.bilm import BiLM
from elmwright.model.formats.bilm_format import write_weights
from elmwright.model.formats.folder import model_tensors

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from tests.support.random_model import write_random_model  # noqa: E402

SERVE = f"{sys.executable} -m mlflow models serve --env-manager local --host 127.0.0.1".split()
TOLERANCE = 1e-5
START_SECONDS = 300
SENTENCES, LONGEST, MOST = 200, 60, 8


@dataclass
class Client:
    """What one client has seen."""

    seconds: list[float] = field(default_factory=list)
    sentences: int = 0
    largest: float = 0.0
    """Largest difference from `embed`."""
    failures: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Text:
    """What clients may ask for."""

    sentences: list[Any]
    expected: list[Any]
    """The vectors of `embed`."""
    layers: list[str]
    """The ways to choose layers."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--clients", type=int, default=8)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="elmwright-bench-") as name:
        folder = Path(name)
        model = options.model or demo_model(folder / "bundle")
        mlflow.pyfunc.save_model(
            path=str(folder / "served"),
            loader_module="elmwright.jobs.serving",
            data_path=str(model),
            signature=signature(),
        )
        text = sentences(model)
        elmo = Elmo.from_pretrained(model)
        expected = elmo.embed(text)
        alone = [elmo.embed([sentence])[0] for sentence in text]
        own = max(float(np.abs(a - b).max()) for a, b in zip(alone, expected, strict=True))
        layers = ["all", "top", "mean", *map(str, range(elmo.bilm.config.n_layers + 1))]
        asked = Text(text, expected, layers)
        with served(folder / "served") as url:
            ask(url, Client(), asked, random.Random(0))  # loads what the first request needs
            started = time.monotonic()
            clients = load(url, asked, options.clients, options.seconds)
            seconds = time.monotonic() - started
    return report(clients, seconds, own)


def signature() -> Any:
    from elmwright.jobs.registry.mlflow_signature import signature as ours

    return ours()


def demo_model(folder: Path) -> Path:
    """A model of the recipe's shape and size of vocabulary."""
    config = load_config("demo")
    words = [f"w{number}" for number in range(config.vocab.max_size - 3)]
    write_random_model(folder, ["<S>", "</S>", "<UNK>", *words], shape=config.model)
    # Not its large weights, whose states grow the smallest difference with every step.
    tensors = model_tensors(BiLM(config.model, 1))
    save_file(tensors, folder / "model.safetensors")
    write_weights(folder / "weights.hdf5", config.model, tensors)
    (folder / "README.md").write_text("# A model for a bench\n")
    (folder / "provenance.json").write_text("{}\n")
    write_sums(folder)
    return folder


def sentences(model: Path) -> list[Any]:
    """Sentences of all lengths, in words of the model: every second one is a list."""
    words = (model / "vocab.txt").read_text(encoding="utf-8").split("\n")[3:-1]
    draw = random.Random(1)
    lists = [draw.choices(words, k=1 + n % LONGEST) for n in range(SENTENCES)]
    return [" ".join(found) if n % 2 else found for n, found in enumerate(lists)]


@contextmanager
def served(model: Path) -> Iterator[str]:
    """The address of a server, which is stopped at the end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = (model.parent / "server.log").open("w+")
    server = subprocess.Popen(
        [*SERVE, "-m", str(model), "-p", str(port)],
        env={
            **os.environ,
            "MLFLOW_TRACKING_URI": f"sqlite:///{model.parent / 'mlflow.db'}",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        },
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                urllib.request.urlopen(f"{url}/ping", timeout=5).close()  # noqa: S310
                break
            except OSError:
                if time.monotonic() > deadline or server.poll() is not None:
                    log.seek(0)
                    sys.exit(f"the server did not start:\n{log.read()[:3000]}")
                time.sleep(0.2)
        yield url
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            if server.poll() is None:
                os.killpg(server.pid, number)
                with suppress(subprocess.TimeoutExpired):
                    server.wait(30)
        log.close()


def load(url: str, text: Text, count: int, seconds: float) -> list[Client]:
    """Let this many clients send requests for this long, and the last ones end."""
    clients = [Client() for _ in range(count)]
    end = time.monotonic() + seconds

    def work(client: Client, seed: int) -> None:
        draw = random.Random(seed)
        try:
            while time.monotonic() < end:
                ask(url, client, text, draw)
        except Exception as error:  # a thread would end without a word
            client.failures.append(f"the client ended early: {error!r}")

    threads = [
        threading.Thread(target=work, args=(client, seed)) for seed, client in enumerate(clients, 1)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return clients


def ask(url: str, client: Client, text: Text, draw: random.Random) -> None:
    """Send one request and compare its answer."""
    numbers = draw.sample(range(len(text.sentences)), draw.randint(1, MOST))
    layers = draw.choice(text.layers)
    # As `inputs` MLflow would refuse lists of several lengths.
    rows = {"data": [[text.sentences[n]] for n in numbers]}
    body = {"dataframe_split": rows, "params": {"layers": layers}}
    request = urllib.request.Request(  # noqa: S310 - our own server
        f"{url}/invocations", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    start = time.monotonic()
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:  # noqa: S310
            found = json.loads(answer.read())["predictions"]
    except urllib.error.HTTPError as error:
        client.failures.append(f"{error}: {error.read()[:300]!r}")
        return
    except (OSError, HTTPException, ValueError, KeyError) as error:
        client.failures.append(repr(error))
        return
    client.seconds.append(time.monotonic() - start)
    client.sentences += len(numbers)
    if len(found) != len(numbers):
        client.failures.append(f"{len(numbers)} sentences, {len(found)} answers")
    for n, vectors in zip(numbers, found, strict=False):
        wanted = choose_layers(text.expected[n], layers)
        given = np.array(vectors, np.float32)
        if given.shape != wanted.shape:
            client.failures.append(f"shape {given.shape} instead of {wanted.shape}")
        else:
            client.largest = max(client.largest, float(np.abs(given - wanted).max()))
            if not np.isfinite(given).all():
                client.failures.append("vectors with NaN or infinity")


def report(clients: list[Client], seconds: float, own: float) -> int:
    """Print the numbers; 1 if a request failed or an answer differs."""
    times = np.array([took for client in clients for took in client.seconds])
    failures = [failure for client in clients for failure in client.failures]
    largest = max(client.largest for client in clients)
    if len(times):
        p50, p99 = np.quantile(times, [0.5, 0.99])
        print(
            f"{len(clients)} clients, {seconds:.0f} s: "
            f"{sum(client.sentences for client in clients) / seconds:.1f} sentences/s, "
            f"{len(times) / seconds:.1f} requests/s, p50 {1000 * p50:.0f} ms, "
            f"p99 {1000 * p99:.0f} ms, longest {1000 * times.max():.0f} ms"
        )
    dropped = len(failures)
    print(
        f"{dropped} requests failed; largest difference from embed {largest:.1e} "
        f"(embed of each sentence alone differs by {own:.1e})"
    )
    if own > TOLERANCE:
        print("this model enlarges the rounding of float32, so it cannot show errors of serving")
    for failure in failures[:5]:
        print(f"  {failure}")
    return 1 if failures or not len(times) or largest > TOLERANCE else 0


if __name__ == "__main__":
    sys.exit(main())
