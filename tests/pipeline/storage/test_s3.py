"""Input from and output to a real S3 server, and a server that fails."""

import contextlib
import errno
import hashlib
import json
import multiprocessing
import os
import re
import socket
import threading
from dataclasses import replace

import pytest
import ray

from elmwright.pipeline.build.ray_tasks import run_once, task
from elmwright.pipeline.config import CorpusConfig, Source
from elmwright.pipeline.format.manifest import Manifest
from elmwright.pipeline.format.verify_corpus import verify_corpus
from elmwright.pipeline.storage import object_store
from elmwright.pipeline.storage.files import at
from tests.support.corpus.corpora import digests, make, sentences, some_text
from tests.support.mistakes import mistake

pytestmark = pytest.mark.slow(11)


@pytest.fixture(scope="module")
def store(s3):
    """The server, and a Ray whose workers know of it."""
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield s3
    ray.shutdown()


@pytest.mark.parametrize("kind", ["store", "disk"])
def test_both_kinds_of_location_do_the_same(s3, tmp_path, kind):
    folder = "s3://bucket/a" if kind == "store" else str(tmp_path / "a")
    one = at(f"{folder}/one.txt")
    one.write_bytes(b"one\ntwo\n")
    with at(f"{folder}/b/two.txt").writing() as file:
        file.write(b"x" * 3_000_000)
    with pytest.raises(ZeroDivisionError):
        write_half(f"{folder}/never.txt")
    listed = at(folder).list_files()
    assert [(f.path, f.bytes) for f in listed] == [
        (f"{folder}/b/two.txt", 3_000_000),
        (f"{folder}/one.txt", 8),
    ]
    with one.reading() as file:
        assert file.readline() == b"one\n"
        assert file.seek(0) == 0
        assert file.read() == b"one\ntwo\n"
    assert one.read_range(4, 7) == b"two"
    assert one.read_range(4, 70) == b"two\n"
    with one.arrow_file() as file:
        assert file.read() == b"one\ntwo\n"
    assert one.is_unchanged(8, listed[1].mtime_ns)
    assert not one.is_unchanged(9, listed[1].mtime_ns)
    assert [f.path for f in at(f"{folder}/**/*.txt").glob()] == [f.path for f in listed]
    assert [f.path for f in at(f"{folder}/[o]*.txt").glob()] == [one.path]
    assert one.sha256() == hashlib.sha256(b"one\ntwo\n").hexdigest()
    three = at(f"{folder}/three.txt")
    three.copy_from(one)
    assert three.read_bytes() == b"one\ntwo\n"
    three.clear()
    assert not three.exists() or three.stat().bytes == 0
    at(folder).remove_folder()
    assert at(folder).list_files() == []
    assert not one.exists()
    assert one.stat() is one.read_json() is None
    one.remove()
    assert one.absolute() == one.resolved() == one.path
    assert not one.is_relative


def test_a_forked_process_opens_connections_of_its_own(s3):
    here, _ = object_store.file_system("s3://bucket/x")
    assert object_store.file_system("s3://bucket/y")[0] is here
    fork = multiprocessing.get_context("fork")
    same = fork.Value("b", 2)

    def look():
        same.value = object_store.file_system("s3://bucket/x")[0] is here

    child = fork.Process(target=look)
    child.start()
    child.join(60)
    assert same.value == 0


def write_half(path):
    with at(path).writing() as file:
        file.write(b"half")
        raise ZeroDivisionError


def test_copy_from_a_store_into_a_forbidden_folder_is_refused(s3, tmp_path, monkeypatch):
    one = at("s3://bucket/forbidden/one.txt")
    one.write_bytes(b"one")

    def forbid(*_arguments, **_options):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("pathlib.Path.mkdir", forbid)
    with mistake("permission", str(tmp_path / "new")):
        at(tmp_path / "new" / "one.txt").copy_from(one)


def test_address_with_a_login_is_refused_before_anything_is_made():
    with mistake("secret", "s3://"), at("s3://me:word@bucket/x").writing():
        pytest.fail("the block was run")


@pytest.mark.parametrize("path", ["s3://bucket/none.txt", "s3://no-such-bucket/x.txt"])
def test_missing_object_or_bucket_is_refused(s3, path):
    with mistake("file-missing", path):
        at(path).read_bytes()


def test_a_corpus_is_built_from_and_into_a_store_with_the_bytes_of_a_local_one(store, tmp_path):
    at("s3://bucket/text/a.txt").write_bytes(some_text(300, 1).encode())
    records = [json.dumps({"text": doc}) for doc in some_text(100, 2).split("\n\n")]
    at("s3://bucket/text/deep/b.jsonl").write_bytes("\n".join(records).encode())
    remote = CorpusConfig(sources=(Source("s3://bucket/text"),), dedup_lines="sentence")
    local = replace(remote, sources=(Source(str(store / "bucket/text")),))
    manifest = make("s3://bucket/corpus", remote)
    expected = make(tmp_path / "corpus", local)
    assert manifest.fingerprint == expected.fingerprint
    here, there = digests(tmp_path / "corpus"), digests(store / "bucket/corpus")
    assert {k: v for k, v in here.items() if k != "MANIFEST.json"} == {
        k: v for k, v in there.items() if k != "MANIFEST.json"
    }
    assert verify_corpus(Manifest.load("s3://bucket/corpus"), "s3://bucket/corpus") == []
    assert sentences("s3://bucket/corpus", "train") == sentences(tmp_path / "corpus", "train")
    assert make("s3://bucket/corpus", remote) == manifest, "a finished corpus is recognised"


def test_missing_source_in_a_store_is_refused(store):
    with mistake("file-missing", "s3://bucket/nothing-here"):
        make("s3://bucket/other", CorpusConfig(sources=(Source("s3://bucket/nothing-here"),)))


def test_a_task_is_tried_again_when_the_store_drops_the_connection(tmp_path, monkeypatch):
    monkeypatch.setattr(object_store, "PAUSE", 0.01)
    tries = []

    def shaky(_work, _out):
        tries.append(1)
        if len(tries) < 3:
            raise OSError("When reading: AWS Error NETWORK_CONNECTION during GetObject")
        return {"answer": 1}

    one = task("x", shaky)
    assert run_once(str(tmp_path), str(tmp_path / "recall"), one).report == {"answer": 1}
    assert len(tries) == 3
    assert (tmp_path / one.mark).exists()


def test_store_that_never_answers_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(object_store, "PAUSE", 0.01)

    def dead(_work, _out):
        raise OSError("AWS Error NETWORK_CONNECTION\nduring GetObject")

    one = task("x", dead)
    with mistake("store-failed", "4 times") as error:
        run_once(str(tmp_path), str(tmp_path / "recall"), one)
    assert "\n" not in str(error.value)
    assert not (tmp_path / one.mark).exists()


class Dropping:
    """A proxy to the store that closes its first two connections in the middle of an answer."""

    def __init__(self, port: int) -> None:
        self.target = port
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        self.connections = self.dropped = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self.server.accept()
            except OSError:
                return
            self.connections += 1
            drop = self.connections <= 2
            self.dropped += drop
            store = socket.create_connection(("127.0.0.1", self.target))
            for one, other in ((client, store), (store, client)):
                limit = 100_000 if drop and one is store else None
                threading.Thread(target=self._pump, args=(one, other, limit), daemon=True).start()

    @staticmethod
    def _pump(one: socket.socket, other: socket.socket, limit: int | None) -> None:
        sent = 0
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                if limit is not None and sent + len(data) > limit:
                    break
                other.sendall(data)
                sent += len(data)
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def test_dropped_connections_are_retried_without_loss(s3, monkeypatch):
    data = os.urandom(300_000)
    for number in range(6):
        at(f"s3://bucket/drop/{number}.bin").write_bytes(data)
    proxy = Dropping(int(os.environ["AWS_ENDPOINT_URL"].rpartition(":")[2]))
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
    object_store._connect.cache_clear()
    try:

        def read_all(_work, _out):
            assert [at(f"s3://bucket/drop/{n}.bin").read_bytes() for n in range(6)] == [data] * 6
            return {}

        monkeypatch.setattr(object_store, "PAUSE", 0.01)
        run_once("s3://bucket/drop", "s3://bucket/drop/recall", task("x", read_all))
        assert proxy.dropped == 2
    finally:
        proxy.server.close()
        object_store._connect.cache_clear()


@pytest.mark.parametrize(
    ("pattern", "matches", "other"),
    [
        ("s3://b/[!a]*.txt", "s3://b/b1.txt", "s3://b/a1.txt"),
        ("s3://b/[ab].txt", "s3://b/a.txt", "s3://b/c.txt"),
        ("s3://b/**/x?.txt", "s3://b/deep/er/x1.txt", "s3://b/x.txt"),
        ("s3://b/*.txt", "s3://b/a+b.txt", "s3://b/c/a.txt"),
    ],
)
def test_globs_in_a_store_mean_what_they_mean_on_a_disk(pattern, matches, other):
    expression = re.compile(object_store._glob_to_regex(pattern))
    assert expression.fullmatch(matches)
    assert not expression.fullmatch(other)


def test_error_codes_inside_digests_are_not_refusals():
    dropped = "AWS Error NETWORK_CONNECTION for key clean/a403f401.arrow"
    with pytest.raises(OSError, match="NETWORK_CONNECTION"), object_store.explaining("s3://b/x"):
        raise OSError(dropped)
    with mistake("store-refused", "s3://b/x"), object_store.explaining("s3://b/x"):
        raise OSError("AWS Error ACCESS_DENIED during GetObject")
