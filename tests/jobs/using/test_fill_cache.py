"""A table of token vectors, made once: it changes no vector, and a wrong one is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from elmwright.jobs.cli.command import main
from elmwright.jobs.using.embed import embed_file
from elmwright.jobs.using.fill_cache import write_table
from elmwright.model.encoder import TokenEncoder
from elmwright.model.inference.elmo import TypeCache
from elmwright.pipeline.errors import UserError
from tests.support.embedded import read_vectors
from tests.support.random_model import write_random_model


def test_a_table_of_token_vectors_spares_their_encoding_and_changes_nothing(
    model: Path, text: Path, expected: list[np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    table, out = text.with_name("table.safetensors"), text.with_name("out.npz")
    assert main(["fill-cache", str(model), "-o", str(table)]) == 0
    encoded: list[int] = []
    encode = TokenEncoder.forward

    def noted(self: TokenEncoder, chars: torch.Tensor) -> torch.Tensor:
        encoded.append(len(chars))
        return encode(self, chars)

    monkeypatch.setattr(TokenEncoder, "forward", noted)
    assert main(["embed", str(model), str(text), "-o", str(out), "--cache", str(table)]) == 0
    assert sum(encoded) == 3, "only café, naïve and 東京 are not in the vocabulary"
    for got, wanted in zip(read_vectors(out), expected, strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-5)


def test_tables_that_are_refused(model: Path, text: Path, tmp_path: Path) -> None:
    table, out = tmp_path / "table.safetensors", tmp_path / "out.npz"
    other = write_random_model(tmp_path / "other", seed=2)
    (tmp_path / "words.txt").write_text("bird\nbird\n\nhouse\n", encoding="utf-8")
    assert "4 words, <S> and </S> among them" in write_table(
        str(other), table, str(tmp_path / "words.txt")
    )
    with pytest.raises(UserError, match="was made for another model"):
        embed_file(str(model), str(text), out, table=str(table))
    with pytest.raises(UserError, match="exists already"):
        write_table(str(other), table)
    with pytest.raises(UserError, match="there is no word list"):
        write_table(str(other), tmp_path / "x", str(tmp_path / "none.txt"))
    table.write_bytes(table.read_bytes()[:100])
    with pytest.raises(UserError, match="cannot be read as a table"):
        embed_file(str(model), str(text), out, table=str(table))
    with pytest.raises(UserError, match="is not a table"):
        embed_file(str(model), str(text), out, table=str(model / "model.safetensors"))
    with pytest.raises(UserError, match="cannot be read as a table"):
        embed_file(str(model), str(text), out, table=str(tmp_path / "none"))


def test_a_table_with_any_changed_byte_is_refused(model: Path, text: Path) -> None:
    table, out = text.with_name("table.safetensors"), text.with_name("out.npz")
    write_table(str(model), table)
    data = table.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    for at in (start, start + 3, (start + len(data)) // 2, len(data) - 1):
        changed = bytearray(data)
        changed[at] ^= 1
        table.write_bytes(changed)
        with pytest.raises(UserError, match=r"table\.safetensors is damaged; make it again"):
            embed_file(str(model), str(text), out, table=str(table))
    table.write_bytes(data)
    embed_file(str(model), str(text), out, table=str(table))


def test_a_table_of_numbers_that_are_none_is_refused(
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
    with pytest.raises(UserError, match="not finite"):
        embed_file(str(model), str(text), text.with_name("out.npz"), table=str(table))


def test_a_word_list_of_another_system_is_understood(model: Path, tmp_path: Path) -> None:
    lists = {"unix": b"bird\nhouse\n", "other": b"\xef\xbb\xbfbird\r\nhouse\r\n\r\n"}
    for name, content in lists.items():
        (tmp_path / name).write_bytes(content)
        write_table(str(model), tmp_path / f"{name}.table", str(tmp_path / name))
    words = [bytes(load_file(tmp_path / f"{name}.table")["words"]) for name in lists]
    assert words == [b"<S>\n</S>\nbird\nhouse"] * 2
