"""Compressed files are unpacked in bounded memory, and encodings are found."""

import gzip
import io
import lzma
import os
from typing import Any

import pytest

from elmwright.pipeline.reading import decode
from elmwright.pipeline.reading.record import DAMAGED, Broken
from tests.support.corpus.packed import PACKERS, Cut

TEXT = "".join(f"line {n} of {os.urandom(6).hex()}\n" for n in range(20_000)).encode()


each = pytest.mark.parametrize("ending", PACKERS)


def unpack(data: bytes, ending: str) -> tuple[bytes, Broken | None]:
    """What came out, and what was wrong."""
    parts: list[bytes] = []
    try:
        for block in decode.blocks(io.BytesIO(data), "a.txt" + ending):
            assert len(block) <= decode.BLOCK
            parts.append(block)
    except Broken as broken:
        return b"".join(parts), broken
    return b"".join(parts), None


@each
def test_every_compression_is_read_and_so_are_files_put_together(ending: str) -> None:
    one, two = PACKERS[ending](TEXT), PACKERS[ending](b"more")
    assert unpack(one, ending) == (TEXT, None)
    assert unpack(one + two, ending) == (TEXT + b"more", None)
    assert unpack(one, ending.upper()) == (TEXT, None)


@pytest.mark.parametrize("ending", [".gz", ".bz2", ".xz"])
def test_zeros_between_and_after_members_are_padding(ending: str) -> None:
    packed = PACKERS[ending](b"text")
    assert unpack(packed + bytes(8) + packed + bytes(200_000), ending) == (b"texttext", None)


@each
def test_a_truncated_file_gives_what_came_before(ending: str) -> None:
    out, broken = unpack(PACKERS[ending](TEXT)[:-20], ending)
    assert broken is not None
    assert (broken.problem, broken.offset) == (DAMAGED, len(out))
    assert TEXT.startswith(out)
    assert len(out) > 0 or ending == ".bz2"  # one block of bzip2 is larger than the text


@each
def test_damage_and_junk_are_noticed(ending: str) -> None:
    packed = bytearray(PACKERS[ending](TEXT))
    packed[len(packed) // 2 : len(packed) // 2 + 50] = b"x" * 50
    for bad in (bytes(packed), b"no such format", PACKERS[ending](b"text") + b"junk at the end"):
        _, broken = unpack(bad, ending)
        assert broken is not None
        assert broken.problem == DAMAGED
    assert unpack(PACKERS[ending](b"text") + b"junk at the end", ending)[0] in (b"text", b"")


@each
def test_a_bomb_is_stopped(ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "BOMB_BYTES", 2_000_000)
    # That of zstd is not as strong as the others: a repeated byte costs a block header.
    monkeypatch.setattr(decode, "BOMB_RATIO", 20)
    out, broken = unpack(PACKERS[ending](bytes(30_000_000)), ending)
    assert broken is not None
    assert broken.problem == "expands suspiciously"
    assert len(out) < 5_000_000
    assert unpack(PACKERS[ending](bytes(1_000_000)), ending)[1] is None


def test_the_largest_ratio_of_gzip_passes_while_it_is_small() -> None:
    assert unpack(gzip.compress(bytes(20_000_000)), ".gz")[1] is None


def test_xz_may_not_ask_for_gigabytes() -> None:
    filters: list[dict[str, Any]] = [{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 20}]
    packed = bytearray(lzma.compress(b"text", filters=filters))
    # The dictionary's size is a byte of the header, which a checksum of its own protects.
    header = packed[12:24]
    header[header.index(0x21) + 2] = 39
    header[8:12] = __import__("zlib").crc32(bytes(header[:8])).to_bytes(4, "little")
    packed[12:24] = header
    _, broken = unpack(bytes(packed), ".xz")
    assert broken is not None
    assert "emory" in broken.detail


@each
def test_an_error_of_the_disk_is_not_taken_for_damage(ending: str) -> None:
    packed = PACKERS[ending](os.urandom(400_000))
    with pytest.raises(OSError, match="Input/output error"):
        list(decode.blocks(Cut(packed), "a" + ending))


def test_a_range_is_read_and_no_more() -> None:
    assert b"".join(decode.blocks(io.BytesIO(b"0123456789"), "a", 2, 5)) == b"234"
    assert b"".join(decode.blocks(io.BytesIO(b"0123456789"), "a", 2)) == b"23456789"


def test_peeking_changes_nothing_and_keeps_an_error_for_later() -> None:
    def source() -> Any:
        yield b"abc"
        raise Broken(DAMAGED, "gone")

    head, again = decode.peek(source())
    assert head == b"abc"
    assert next(again) == b"abc"
    with pytest.raises(Broken):
        next(again)


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("Das Mädchen läuft über die Straße und ißt schöne Äpfel.", "latin-1"),
        ("It’s a “quoted” naïve café in one long English sentence.", "cp1252"),
        ("El señor come.", "latin-1"),
        ("Привет мир, как дела сегодня? Всё хорошо, спасибо.", "cp1251"),
        ("Привет мир, как дела сегодня? Всё хорошо, спасибо.", "koi8-r"),
        ("今日は良い天気ですね。東京へ行きます。", "shift_jis"),
        ("你好世界，今天天气很好，我们去公园。", "gb18030"),
    ],
)
def test_other_encodings_are_guessed(text: str, encoding: str) -> None:
    assert decode.decode(text.encode(encoding), "auto") == (text, True)


def test_utf_8_with_a_few_bad_bytes_stays_utf_8() -> None:
    text = "Grüße aus Köln, schöne Straße. " * 50
    assert decode.decode(text.encode() + b"\xff\xc3", "auto") == (text + "\ufffd" * 2, True)
    assert decode.decode(b"plain " * 50 + b"\xff", "auto") == ("plain " * 50 + "\ufffd", True)


def test_utf_8_and_zeros_need_no_repair() -> None:
    assert decode.decode("schön\x00\x00".encode(), "auto") == ("schön\x00\x00", False)


def test_a_configured_encoding_is_used() -> None:
    assert decode.decode(b"sch\xf6n", "latin-1") == ("schön", False)
    assert decode.decode(b"sch\xf6n", "utf-8") == ("sch\ufffdn", True)
    assert decode.decode(b"sch\xf6n", "ascii") == ("sch\ufffdn", True)
    assert decode.decode(b"a\x81b", "cp1252") == ("a\ufffdb", True)


@pytest.mark.parametrize("guess", [None, "no-such-codec", "utf-8"])
def test_a_guess_that_cannot_be_used_is_western(
    guess: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resiliparse.parse.encoding.detect_encoding", lambda _: guess)
    assert decode.decode(b"caf\xe9", "auto") == ("café", True)


@pytest.mark.parametrize(
    "encoding", ["utf-16", "utf-32", "utf-16-le", "utf-16-be", "utf-8-sig", "utf-8"]
)
def test_whole_messages_are_decoded_by_their_mark_or_their_zeros(encoding: str) -> None:
    text = "A text that is mostly English, with a schön word.\n" * 3
    assert decode.decode_whole(text.encode(encoding), "auto") == (text, False)


@pytest.mark.parametrize(
    ("head", "name"),
    [
        (b"%PDF-1.7 \n", "PDF"),
        (b"PK\x03\x04rest", "zip"),
        (b"\x7fELF\x02", "program"),
        (b"\x89PNG\r\n", "PNG"),
        (b"\xff\xd8\xff\xe0", "JPEG"),
        (b"\x1f\x8b\x08\x00", "must end in .gz"),
        (b"name.txt" + bytes(249) + b"ustar\x0000", "tar"),
        (bytes(512), "control characters"),
        (bytes(range(256)) * 8, "control characters"),
        (b"caf\xc3\xa9 and text", ""),
        (b"tabs\tand\x0cpages\r\n\x1b[0m", ""),
        (b"a \x00 zero in a text of some length " * 5, ""),
        ("A text in UTF-16".encode("utf-16"), ""),
        ("A text in UTF-16 without a mark".encode("utf-16-le"), ""),
        (b"", ""),
    ],
)
def test_binary_files_are_recognised(head: bytes, name: str) -> None:
    found = decode.not_text(head, "auto")
    assert name in found
    assert bool(found) == bool(name)


def test_text_in_ebcdic_is_text_if_the_user_says_so() -> None:
    assert decode.not_text(("a\n" * 50).encode("cp037"), "cp037") == ""
