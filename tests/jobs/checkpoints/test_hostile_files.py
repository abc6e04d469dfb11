"""Hostile files of runs, checkpoints and bundles are refused with one sentence each."""

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from elmwright.jobs.bundles.bundle import SUMS, verify_bundle, write_sums
from elmwright.jobs.checkpoints.checkpoint import (
    MANIFEST,
    begin_attempt,
    current_attempt,
    list_checkpoints,
    newest_valid,
    parse_manifest,
    read_checked,
    read_info,
    verify_checkpoint,
)
from elmwright.jobs.config.toml_file import config_from, config_hash, load_config, to_dict
from elmwright.jobs.publishing.choose_checkpoint import recorded
from elmwright.jobs.publishing.export import export_run
from elmwright.jobs.registry.contract import describe_bundle
from elmwright.jobs.registry.resolve import resolve
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.training.loop.exchange import Ranks
from elmwright.jobs.training.loop.input.block_cache import BlockCache
from elmwright.jobs.training.loop.starting import begin
from elmwright.jobs.using.evaluate_model import recorded_lanes
from elmwright.jobs.using.fill_cache import use_table, write_table
from elmwright.model.formats.folder import load_folder
from elmwright.model.inference.elmo import Elmo
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.format.manifest import Manifest, canonical
from elmwright.pipeline.storage.disk import sha256_bytes
from elmwright.pipeline.storage.files import at
from elmwright.pipeline.storage.untrusted import read_object
from tests.support.hostile import bounded, refusals, texts
from tests.support.mistakes import mistake

pytestmark = pytest.mark.slow(22)


def put(path: Path) -> Callable[[bytes], None]:
    return lambda data: path.write_bytes(data) and None


def seal(checkpoint: Path, **changes: object) -> None:
    """Write the manifest of a checkpoint anew, so that every digest is right."""
    path = checkpoint / MANIFEST
    manifest = json.loads(path.read_text())
    for name in manifest["files"]:
        file = checkpoint / name
        manifest["files"][name] = {"bytes": file.stat().st_size, "sha256": at(file).sha256()}
    manifest.pop("sha256")
    manifest |= changes
    path.write_text(json.dumps(manifest | {"sha256": sha256_bytes(canonical(manifest))}))


@pytest.fixture
def checkpoint(trained: Path, tmp_path: Path) -> Path:
    """A copy of the newest checkpoint of a tiny run, in its own run."""
    run = tmp_path / "run"
    shutil.copytree(trained, run, symlinks=True)
    return Path(list_checkpoints(run / "train" / "checkpoints")[-1].path)


def test_no_field_of_a_checkpoints_manifest_can_hang_a_reader(checkpoint: Path) -> None:
    path = checkpoint / MANIFEST
    content = json.loads(path.read_text())
    content.pop("sha256")
    few = content | {"files": dict(list(content["files"].items())[:2])}

    def sealed(data: bytes) -> None:
        path.write_bytes(data)
        try:
            changed = json.loads(data)
            digest = sha256_bytes(canonical(changed))
            path.write_text(json.dumps(changed | {"sha256": digest}))
        except (ValueError, TypeError, RecursionError):
            pass

    def use() -> None:
        assert newest_valid(checkpoint.parent, lambda _text: None) is not None
        list_checkpoints(checkpoint.parent)
        read_checked(checkpoint, "state.json")
        info = read_info(checkpoint)
        f"{info.step:08d} {info.bytes:,} {info.tokens:,}".encode()
        [f"{value:.2f}" for value in info.perplexity.values()]
        verify_checkpoint(checkpoint)
        parse_manifest(path.read_bytes(), str(path))

    cases = list(texts(content)) + list(texts(few))
    wrong, refused = refusals(cases, sealed, use, str(checkpoint))
    assert wrong == []
    assert refused > 0.7 * len(cases)


@pytest.mark.parametrize("name", ["state.json", "config.json"])
def test_no_field_of_a_checkpoint_can_hang_a_resume(checkpoint: Path, name: str) -> None:
    run = RunFolder.at(str(checkpoint.parent.parent.parent))
    config = config_from(at(run.config).read_json() or {}, run.config)
    manifest = Manifest.load(run.corpus)
    path = checkpoint / name
    content = json.loads(path.read_text())
    if name == "config.json":  # a run reads its own config, not that of its checkpoint
        content["run_config"] = {"eval": content["run_config"]["eval"]}
    else:
        content = {
            key: content[key]
            for key in ("step", "skipped", "best", "best_step", "best_of", "stale", "evaluation")
        }

    def sealed(data: bytes) -> None:
        path.write_bytes(data)
        seal(checkpoint)

    def use() -> None:
        info = newest_valid(checkpoint.parent, lambda _text: None)
        assert info is not None
        begin(config, run, manifest, Ranks())
        recorded(info, run, manifest)
        recorded_lanes(checkpoint)
        load_folder(checkpoint)

    cases = list(texts(content))
    if name == "config.json":
        cases = cases[-150:]  # the model's own fields are tested with the model
    wrong, refused = refusals(cases, sealed, use, str(checkpoint))
    assert wrong == []
    assert refused > len(cases) / 4


def test_huge_state_is_not_read(checkpoint: Path) -> None:
    with (checkpoint / "state.json").open("r+b") as file:
        file.truncate(20 << 30)  # takes no room on the disk
    with bounded():
        assert read_checked(checkpoint, "state.json") is None


@pytest.mark.parametrize("name", ["model", "softmax", "optimizer", "lanes"])
def test_resume_names_tensors_of_the_wrong_shape(checkpoint: Path, name: str) -> None:
    run = RunFolder.at(str(checkpoint.parent.parent.parent))
    config = config_from(at(run.config).read_json() or {}, run.config)
    manifest = Manifest.load(run.corpus)
    path = checkpoint / f"{name}.safetensors"
    tensors = load_file(path)
    first = next(iter(tensors))
    good = path.read_bytes()
    header = b'{"x":{"dtype":"F32","shape":[1000000000,1000000000],"data_offsets":[0,4]}}'
    beside = path.with_name("other")
    cases = [
        ("a huge header", struct.pack("<Q", 10**12) + good[8:]),
        ("a huge shape", struct.pack("<Q", len(header)) + header + bytes(4)),
        ("cut", good[: len(good) // 2]),
    ]
    for case, changed in (
        ("none", {}),
        ("another name", {**{k: v for k, v in tensors.items() if k != first}, "x": tensors[first]}),
        ("another shape", {**tensors, first: tensors[first].flatten()[:1].clone()}),
        ("another type", {**tensors, first: tensors[first].to(torch.int8)}),
    ):
        save_file(changed, beside)
        cases.append((case, beside.read_bytes()))
    beside.unlink()

    def sealed(data: bytes) -> None:
        path.write_bytes(data)
        seal(checkpoint)

    wrong, refused = refusals(
        cases, sealed, lambda: begin(config, run, manifest, Ranks()), str(checkpoint)
    )
    assert wrong == []
    assert refused >= len(cases) - 1


def test_no_field_of_a_bundle_can_hang_its_users(bundle: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    shutil.copytree(bundle, folder)
    for name in ("config.json", "provenance.json"):
        path = folder / name
        good = path.read_bytes()
        content = json.loads(good)
        for large in ("model", "packages"):
            content.pop(large, None)

        def sealed(data: bytes, path: Path = path) -> None:
            path.write_bytes(data)
            write_sums(folder)

        def use() -> None:
            verify_bundle(folder)
            describe_bundle(folder)

        cases = list(texts(content))[-30:]  # each verifies the whole bundle
        wrong, refused = refusals(cases, sealed, use, str(folder))
        assert wrong == []
        assert refused > 5
        path.write_bytes(good)


@pytest.mark.parametrize("name", [SUMS, "config.json", "options.json", "provenance.json"])
def test_huge_json_file_of_a_bundle_is_not_read(name: str, bundle: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    shutil.copytree(bundle, folder)
    with (folder / name).open("r+b") as file:
        file.truncate(3 << 30)
    with bounded(seconds=30), mistake("file-damaged", name, "3,221,225,472 bytes"):
        resolve(str(folder))


def test_no_attempt_number_can_stop_a_run(tmp_path: Path) -> None:
    path = tmp_path / "attempt.json"
    wrong, _ = refusals(texts({"attempt": 3}), put(path), lambda: current_attempt(path))
    assert wrong == []
    path.write_text('{"attempt": "x"}')
    assert begin_attempt(path, above=7) == 8


def test_block_cache_names_files_by_digest_only(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    cache = BlockCache(tmp_path / "cache", 1000)
    assert cache.get_or_read("../precious", lambda: b"data") == b"data"
    assert precious.read_text() == "mine"


def test_invalid_table_of_vectors_is_refused(bundle: Path, tmp_path: Path) -> None:
    path = tmp_path / "table"
    write_table(str(bundle), path)
    good = path.read_bytes()
    (size,) = struct.unpack("<Q", good[:8])
    header = json.loads(good[8 : 8 + size])
    elmo = Elmo.from_pretrained(bundle)
    cases = []
    for case, data in texts(header):
        cases.append((case, struct.pack("<Q", len(data)) + data + good[8 + size :]))
    cases += [(f"cut at {n}", good[:n]) for n in (0, 7, 100, len(good) // 2)]
    wrong, refused = refusals(cases, put(path), lambda: use_table(elmo, path), str(path))
    assert wrong == []
    assert refused > 0.8 * len(cases)


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 50_000,
        "a = " + "9" * 5_000,
        "a.b." * 50_000,
        "[" + "a." * 50_000 + "a]",
        "a = {b = 1, " + "a . " * 50_000 + "a = 1}",
        r'"a\".b".' + r"""'a'."b\"".""" * 50_000 + "a = 1",
        ("a." * 99 + ",") * 5_000,
        r'"a\"' * 100_000,
    ],
    ids=lambda text: text[:15],
)
def test_deeply_nested_config_file_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(text)
    with bounded(), pytest.raises(UserError, match=r"run\.toml"):
        load_config(str(path))


def test_many_dots_outside_of_keys_are_accepted(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    sources = [f"data/part-{n:03d}.txt" for n in range(120)]
    path.write_text(
        f"# {'.' * 200} see 1.2.3, " + "e.g. the ones below. " * 120 + "\n"
        f'[run] # {"- . " * 150}\nname = "dots"\n'
        f"[corpus]\nsources = [\n{', '.join(map(json.dumps, sources))}\n]\n"
    )
    found = load_config(str(path)).corpus.sources
    assert [source.path for source in found] == sources


def test_no_setting_of_a_run_can_hang_a_reader(checkpoint: Path) -> None:
    run = checkpoint.parent.parent.parent
    path = run / "config.json"
    content = json.loads(path.read_text())

    def use() -> None:
        config = config_from(read_object(path), str(path))
        to_dict(config)
        config_hash(config)
        assert config.shards.block_steps < 10**8

    cases = [(name, data) for name, data in texts(content) if "= " not in name or "000" in name]
    cases = cases[::2] + cases[-7:]
    wrong, refused = refusals(cases, put(path), use)
    assert wrong == []
    assert refused > len(cases) / 2


def test_damaged_config_of_a_run_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    run = checkpoint.parent.parent.parent
    path = run / "config.json"
    for data in (b"", b"[]", b"{", b"[" * 100_000, b"\xff"):
        path.write_bytes(data)
        with mistake("file-damaged", str(path)):
            export_run(str(run), "latest", str(tmp_path / "out"), overrides=[])
    path.write_bytes(b'{"run": 3}')
    with mistake("run-missing", str(run)):
        export_run(str(run), "latest", str(tmp_path / "out"), overrides=[])
