"""`elmwright embed`: formats, texts, resuming after a kill, several processes."""

import io
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from pyarrow import parquet

from elmwright.jobs.cli.command import main
from elmwright.jobs.using import embed
from elmwright.jobs.using.embed import Recipe, embed_file
from elmwright.jobs.using.text import sentences
from elmwright.model.reference import ReferenceBiLM
from elmwright.pipeline.errors import Code, Interrupted
from tests.support.embedded import LINES, read_vectors
from tests.support.mistakes import mistake
from tests.support.random_model import SHAPE, write_random_model
from tests.support.tiny import write_text

pytestmark = pytest.mark.slow(9)


@pytest.mark.parametrize("suffix", [".hdf5", ".npz", ".parquet"])
def test_every_format_holds_the_reference_vectors(
    model: Path, text: Path, expected: list[np.ndarray], suffix: str
) -> None:
    out = text.with_name(f"out{suffix}")
    assert "5 sentences, 13 words" in embed_file(str(model), str(text), out)
    found = read_vectors(out)
    assert [vectors.shape for vectors in found] == [vectors.shape for vectors in expected]
    for got, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-5)
    assert sorted(p.name for p in text.parent.iterdir()) == sorted([out.name, "text.txt"])
    if suffix == ".parquet":
        tokens = parquet.read_table(out)["tokens"].to_pylist()
        assert tokens == [line.split() for line in LINES]


def test_layers_are_chosen_and_mixed(model: Path, text: Path, expected: list[np.ndarray]) -> None:
    for number, (options, wanted) in enumerate(
        [
            (["--layers", "top"], lambda v: v[2:]),
            (["--layers", "mean"], lambda v: v.mean(0, keepdims=True)),
            (
                ["--mix", "0.2,-0.3,0.5", "--gamma", "2"],
                lambda v: 2 * (0.2 * v[:1] - 0.3 * v[1:2] + 0.5 * v[2:]),
            ),
        ]
    ):
        out = text.with_name(f"{number}.npz")
        assert main(["embed", str(model), str(text), "-o", str(out), *options]) == 0
        for got, all_layers in zip(read_vectors(out), expected, strict=True):
            np.testing.assert_allclose(got, wanted(all_layers), atol=1e-5)
    with mistake("argument", "--mix", "2", "3"):
        embed_file(str(model), str(text), text.with_name("x.npz"), Recipe("mix", (1, 2)))


def test_parts_do_not_change_the_vectors(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = write_text(tmp_path / "text.txt", 20)
    whole, cut = tmp_path / "whole.npz", tmp_path / "cut.npz"
    embed_file(str(model), str(text), whole)
    monkeypatch.setattr(embed, "PART_BYTES", 700)
    embed_file(str(model), str(text), cut)
    assert len(read_vectors(whole)) == len(text.read_text().splitlines())
    for a, b in zip(read_vectors(whole), read_vectors(cut), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


SLOW = """
import sys, time
from elmwright.jobs.using import embed
from elmwright.jobs.cli.command import main
embed.PART_BYTES = 500
make = embed.Embedder.embed_piece
def slow(self, text, piece, part, *rest):
    if part.name == "part-000003":
        time.sleep(600)
    return make(self, text, piece, part, *rest)
embed.Embedder.embed_piece = slow
main(sys.argv[1:])
"""


def test_killed_command_resumes_from_its_parts(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = write_text(tmp_path / "text.txt", 20)
    out, undisturbed = tmp_path / "out.npz", tmp_path / "undisturbed.npz"
    arguments = "embed", str(model), str(text), "-o", str(out)
    victim = subprocess.Popen([sys.executable, "-c", SLOW, *arguments], stderr=subprocess.DEVNULL)
    third = tmp_path / ".out.npz.parts" / "part-000002"
    deadline = time.monotonic() + 240
    while not third.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    assert third.exists()
    assert not out.exists()
    made = []
    make = embed.Embedder.embed_piece

    def noted(self: embed.Embedder, text: Path, piece: object, part: Path, *rest: object) -> int:
        made.append(part.name)
        return make(self, text, piece, part, *rest)

    monkeypatch.setattr(embed, "PART_BYTES", 500)
    monkeypatch.setattr(embed.Embedder, "embed_piece", noted)
    embed_file(str(model), str(text), out)
    names = [f"part-{n:06}" for n in range(len(embed.pieces(text, 500)))]
    assert len(names) > 6
    assert made == names[3:]
    assert not third.parent.exists()
    embed_file(str(model), str(text), undisturbed)
    assert made[len(names) - 3 :] == names
    for a, b in zip(read_vectors(out), read_vectors(undisturbed), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_parts_of_another_text_or_model_are_not_used(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embed, "PART_BYTES", 50)
    out, text = tmp_path / "out.npz", tmp_path / "text.txt"
    text.write_text("The cat sees the dog .\n" * 10)
    make = embed.Embedder.embed_piece

    def stumble(self: embed.Embedder, text: Path, piece: object, part: Path, *rest: object) -> int:
        if part.name == "part-000002":
            raise KeyboardInterrupt
        return make(self, text, piece, part, *rest)

    monkeypatch.setattr(embed.Embedder, "embed_piece", stumble)
    with pytest.raises(KeyboardInterrupt):
        embed_file(str(model), str(text), out)
    assert len(list((tmp_path / ".out.npz.parts").glob("part-*"))) == 2
    monkeypatch.setattr(embed.Embedder, "embed_piece", make)
    text.write_text("The dog sees the cat .\n" * 10)
    other = write_random_model(tmp_path / "other", seed=2)
    embed_file(str(other), str(text), out)
    reference = ReferenceBiLM(other / "options.json", other / "weights.hdf5")
    wanted, _ = reference.embed("The dog sees the cat .".split())
    for got in read_vectors(out):
        np.testing.assert_allclose(got, wanted, atol=1e-5)


@pytest.mark.heavy
def test_workers_write_the_same_vectors(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embed, "PART_BYTES", 3000)
    text = write_text(tmp_path / "text.txt", 60)
    assert len(embed.pieces(text, 3000)) > 3
    for name, workers in (("one.npz", 1), ("two.npz", 2)):
        embed_file(str(model), str(text), tmp_path / name, Recipe("top"), workers=workers)
    for one, two in zip(
        read_vectors(tmp_path / "one.npz"), read_vectors(tmp_path / "two.npz"), strict=True
    ):
        np.testing.assert_allclose(one, two, atol=1e-5)
    text.write_bytes(b"fine\n" * 2000 + b"\xff\n")
    with mistake("file-unreadable", str(text), "UTF-8"):
        embed_file(str(model), str(text), tmp_path / "x.npz", workers=2)


def test_text_from_a_pipe(model: Path, tmp_path: Path, expected: list[np.ndarray]) -> None:
    out = tmp_path / "out.npz"
    subprocess.run(
        [sys.executable, "-m", "elmwright.jobs.cli", "embed", str(model), "-", "-o", str(out)],
        input="\ufeff" + "\r\n".join(LINES),
        text=True,
        check=True,
        encoding="utf-8",
    )
    for got, wanted in zip(read_vectors(out), expected, strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-5)
    assert [p.name for p in tmp_path.iterdir()] == ["out.npz"]


def test_line_of_ten_thousand_words(model: Path, tmp_path: Path) -> None:
    text, out = tmp_path / "text.txt", tmp_path / "out.hdf5"
    words = [f"w{n % 700}" for n in range(10_000)]
    text.write_text(" ".join(words) + "\nbird\n")
    embed_file(str(model), str(text), out)
    long, short = read_vectors(out)
    assert long.shape == (3, 10_000, 16)
    assert short.shape == (3, 1, 16)
    reference = ReferenceBiLM(model / "options.json", model / "weights.hdf5")
    forward, _ = reference.read(["<S>", *words[:50]], 0, reference.zeros())
    np.testing.assert_allclose(long[2, :50, :8], [layers[2] for layers in forward[1:]], atol=1e-5)


def memory(name: str) -> int:
    """A line of this process's status, in megabytes."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(rf"{name}:\s+(\d+) kB", status)[1]) >> 10  # type: ignore[index]


def test_memory_does_not_grow_with_the_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The vectors of this text take 184 MB; the command may take 80."""
    monkeypatch.setattr(sentences, "WORDS_AT_ONCE", 500)
    wide = write_random_model(tmp_path / "wide", shape=replace(SHAPE, projection_dim=256))
    text, out = tmp_path / "text.txt", tmp_path / "out.hdf5"
    line = " ".join(f"word{n}" for n in range(50)) + "\n"
    text.write_text(line * 20)
    embed_file(str(wide), str(text), out)
    text.write_text(line * 600)
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
    before = memory("VmRSS")
    embed_file(str(wide), str(text), out, force=True)
    assert out.stat().st_size > 170 * 2**20
    assert memory("VmHWM") - before < 80


@pytest.fixture(scope="module")
def model_without_vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_random_model(tmp_path_factory.mktemp("model") / "bundle")
    (folder / "vocab.txt").unlink()
    return folder


@pytest.mark.parametrize("which", ["model", "model_without_vocabulary"])
@pytest.mark.parametrize(
    ("content", "code", "names"),
    [
        (b"", "no-text", []),
        (b"fine\n\xff\xfe\n", "file-unreadable", ["UTF-8", "byte 8"]),
        (b"x" * (1 << 20) + b"y\n", "file-unreadable", ["byte 0", "1,048,576 bytes"]),
        (None, "file-missing", []),
    ],
)
def test_unreadable_texts_are_refused(
    request: pytest.FixtureRequest,
    which: str,
    tmp_path: Path,
    content: bytes | None,
    code: Code,
    names: list[str],
) -> None:
    model = request.getfixturevalue(which)
    text = tmp_path / "text.txt"
    if content is not None:
        text.write_bytes(content)
    with mistake(code, str(text), *names):
        embed_file(str(model), str(text), tmp_path / "out.hdf5")
    assert [p.name for p in tmp_path.iterdir()] == ([] if content is None else ["text.txt"])


def test_empty_text_leaves_the_parts_of_an_earlier_command(
    model_without_vocabulary: Path, tmp_path: Path
) -> None:
    text, part = tmp_path / "text.txt", tmp_path / ".out.npz.parts" / "part-000000"
    text.touch()
    part.parent.mkdir()
    part.touch()
    with mistake("no-text", str(text)):
        embed_file(str(model_without_vocabulary), str(text), tmp_path / "out.npz")
    assert part.exists()


def test_unsuitable_outputs_are_refused(
    model: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*arguments: object) -> str:
        assert main(["embed", str(model), str(text), *map(str, arguments)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        return line

    out = text.with_name("out.npz")
    out.write_text("precious")
    assert "exists already" in refuse("-o", out)
    assert out.read_text() == "precious"
    assert main(["embed", str(model), str(text), "-o", str(out), "--force"]) == 0
    assert len(read_vectors(out)) == len(LINES)
    capsys.readouterr()
    assert "--format hdf5|parquet|npz" in refuse("-o", text.with_name("out.bin"))
    assert "is a folder" in refuse("-o", text.parent, "--format", "npz")
    assert "there is no folder" in refuse("-o", text.parent / "no" / "x.npz")
    assert "at least 1" in refuse("-o", text.with_name("x.npz"), "--workers", 0)
    assert "not a list of numbers" in refuse("-o", text.with_name("x.npz"), "--mix", "a,b")
    assert "cannot use --workers" in refuse(
        "-o", text.with_name("x.npz"), "--carry-state", "--workers", 2
    )
    if not torch.cuda.is_available():
        assert "no GPU" in refuse("-o", text.with_name("x.npz"), "--device", "cuda")


def test_second_command_for_an_output_is_refused(model: Path, text: Path) -> None:
    out = text.with_name("out.npz")
    with (
        embed._work_folder(out, can_resume=True),
        mistake("busy", "out.npz"),
    ):
        embed_file(str(model), str(text), out)
    assert os.listdir(text.parent) == ["text.txt"]


def test_unreadable_pipe_is_called_standard_input_and_leaves_no_file(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embed, "PART_BYTES", 50)
    cases: list[tuple[bytes, Code, str]] = [
        (b"The cat sees the dog .\n" * 10 + b"\xff\n", "file-unreadable", "UTF-8"),
        (b"fine\n" * 20 + b"x" * ((1 << 20) + 1), "file-unreadable", "byte 100"),
        (b"", "no-text", ""),
    ]
    for content, code, name in cases:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        with mistake(code, "standard input", name) as refused:
            embed_file(str(model), "-", tmp_path / "out.npz")
        assert "stdin." not in str(refused.value)
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("raised", [SystemExit(15), KeyboardInterrupt()])
def test_signal_during_ray_start_is_resumable(
    model: Path,
    text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    raised: BaseException,
) -> None:
    """Ray takes SIGTERM while it starts, and ends the process with its number."""
    import ray

    def init(**_: object) -> None:
        raise raised

    monkeypatch.setattr(ray, "init", init)
    command = ["embed", str(model), str(text), "-o", str(tmp_path / "o.npz"), "--workers", "2"]
    assert main(command) == 75
    error = capsys.readouterr().err
    assert error.endswith("stopped: while Ray was starting; the same command resumes\n")


def test_ray_that_does_not_start_is_a_failure(
    model: Path,
    text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Not resumable: a scheduler would start the command again for ever."""

    def start(_cpus: int) -> None:
        raise Interrupted("because Ray did not start; run the same command again later")

    monkeypatch.setattr(embed, "start_local_ray", start)
    command = ["embed", str(model), str(text), "-o", str(tmp_path / "o.npz"), "--workers", "2"]
    assert main(command) == 1
    error = capsys.readouterr().err
    assert "Ray did not start" in error
    assert "--workers 1" in error
