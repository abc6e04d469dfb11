"""A table of token vectors changes no vector, and an unsuitable one is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from elmwright.jobs.cli.command import main
from elmwright.jobs.using.embed import Recipe, embed_file
from elmwright.jobs.using.fill_cache import write_table
from elmwright.model.bilm import BiLM
from elmwright.model.inference import word_types
from elmwright.model.inference.word_types import TypeCache
from tests.support.embedded import read_vectors
from tests.support.mistakes import mistake
from tests.support.random_model import write_random_model


def test_table_replaces_encoding_and_changes_no_vector(
    model: Path, text: Path, expected: list[np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    table, out = text.with_name("table.safetensors"), text.with_name("out.npz")
    assert main(["fill-cache", str(model), "-o", str(table)]) == 0
    encoded: list[int] = []
    encode = word_types.encode_types

    def noted(bilm: BiLM, ids: word_types.CharIds, *rest: Any) -> torch.Tensor:
        encoded.append(len(ids))
        return encode(bilm, ids, *rest)

    monkeypatch.setattr(word_types, "encode_types", noted)
    assert main(["embed", str(model), str(text), "-o", str(out), "--cache", str(table)]) == 0
    assert sum(encoded) == 3, "only café, naïve and 東京 are not in the vocabulary"
    for got, wanted in zip(read_vectors(out), expected, strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-5)


def test_unsuitable_tables_are_refused(model: Path, text: Path, tmp_path: Path) -> None:
    table, out = tmp_path / "table.safetensors", tmp_path / "out.npz"
    other = write_random_model(tmp_path / "other", seed=2)
    (tmp_path / "words.txt").write_text("bird\nbird\n\nhouse\n", encoding="utf-8")
    assert "4 words, <S> and </S> among them" in write_table(
        str(other), table, str(tmp_path / "words.txt")
    )
    with mistake("argument", table.name):
        embed_file(str(model), str(text), out, Recipe(table=str(table)))
    with mistake("output", table.name):
        write_table(str(other), table)
    with mistake("file-missing", "none.txt", "--words"):
        write_table(str(other), tmp_path / "x", str(tmp_path / "none.txt"))
    table.write_bytes(table.read_bytes()[:100])
    with mistake("file-unreadable", str(tmp_path)):
        embed_file(str(model), str(text), out, Recipe(table=str(table)))
    with mistake("format", "model.safetensors"):
        embed_file(str(model), str(text), out, Recipe(table=str(model / "model.safetensors")))
    with mistake("file-unreadable", str(tmp_path)):
        embed_file(str(model), str(text), out, Recipe(table=str(tmp_path / "none")))


def test_a_table_with_any_changed_byte_is_refused(model: Path, text: Path) -> None:
    table, out = text.with_name("table.safetensors"), text.with_name("out.npz")
    write_table(str(model), table)
    data = table.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    for at in (start, start + 3, (start + len(data)) // 2, len(data) - 1):
        changed = bytearray(data)
        changed[at] ^= 1
        table.write_bytes(changed)
        with mistake("file-damaged", table.name):
            embed_file(str(model), str(text), out, Recipe(table=str(table)))
    table.write_bytes(data)
    embed_file(str(model), str(text), out, Recipe(table=str(table)))


def test_table_with_infinite_numbers_is_refused(
    model: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = text.with_name("table.safetensors")
    encode = TypeCache.encode

    def spoilt(self: TypeCache, *arguments: Any) -> Any:
        vectors, places = encode(self, *arguments)
        return vectors / 0, places

    with monkeypatch.context() as now:
        now.setattr(TypeCache, "encode", spoilt)
        write_table(str(model), table)
    with mistake("file-damaged", table.name, "not finite"):
        embed_file(str(model), str(text), text.with_name("out.npz"), Recipe(table=str(table)))


def test_word_list_from_windows_is_read(model: Path, tmp_path: Path) -> None:
    lists = {"unix": b"bird\nhouse\n", "other": b"\xef\xbb\xbfbird\r\nhouse\r\n\r\n"}
    for name, content in lists.items():
        (tmp_path / name).write_bytes(content)
        write_table(str(model), tmp_path / f"{name}.table", str(tmp_path / name))
    words = [bytes(load_file(tmp_path / f"{name}.table")["words"]) for name in lists]
    assert words == [b"<S>\n</S>\nbird\nhouse"] * 2
