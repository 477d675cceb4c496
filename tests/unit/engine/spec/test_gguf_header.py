"""GGUF headers: what is read, and what is refused before anything of a claimed size is made."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest

from engine.errors import ConfigError, UnsupportedFormat
from engine.spec.gguf_header import MAX_ARRAY_ITEMS, MAX_STRING_BYTES, is_gguf, read_gguf_header

F32, Q4_0 = 0, 2
HUGE = (1 << 64) - 1
Raw = Callable[..., Path]


def array(item_type: int, count: int, body: bytes = b"") -> bytes:
    return struct.pack("<IIQ", 9, item_type, count) + body


def nested(depth: int) -> bytes:
    """An array in an array, `depth` deep, the innermost of one number."""
    inner = struct.pack("<IQI", 4, 1, 7)
    for _ in range(depth - 1):
        inner = struct.pack("<IQ", 9, 1) + inner
    return struct.pack("<I", 9) + inner


def test_header_written_by_gguf_package_is_read_back(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "w.gguf", "llama")
    writer.add_uint8("u8", 200)
    writer.add_int8("i8", -3)
    writer.add_uint16("u16", 60000)
    writer.add_int16("i16", -300)
    writer.add_int32("i32", -70000)
    writer.add_uint64("u64", 1 << 40)
    writer.add_int64("i64", -(1 << 40))
    writer.add_float64("f64", 0.1)
    writer.add_bool("yes", True)
    writer.add_string("emoji", "🐎")
    writer.add_array("texts", ["a", "é", ""])
    writer.add_array("numbers", [1, -2, 3])
    writer.add_array("truths", [True, False])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    metadata = read_gguf_header(tmp_path / "w.gguf").metadata
    assert metadata == {
        "general.architecture": "llama",
        "u8": 200,
        "i8": -3,
        "u16": 60000,
        "i16": -300,
        "i32": -70000,
        "u64": 1 << 40,
        "i64": -(1 << 40),
        "f64": 0.1,
        "yes": True,
        "emoji": "🐎",
        "texts": ["a", "é", ""],
        "numbers": [1, -2, 3],
        "truths": [True, False],
    }


def test_smollm_header_equals_what_the_gguf_package_reads(smollm_path: Path) -> None:
    header = read_gguf_header(smollm_path)
    theirs = gguf.GGUFReader(smollm_path)
    assert header.data_offset_bytes == theirs.data_offset
    assert [(t.name, t.dtype, t.shape, t.offset_bytes, t.size_bytes) for t in header.tensors] == [
        (t.name, t.tensor_type.name, tuple(int(d) for d in t.shape[::-1]), t.data_offset, t.n_bytes)
        for t in theirs.tensors
    ]
    for key, found in header.metadata.items():
        assert found == theirs.fields[key].contents()


def test_nested_array_within_the_limit_is_read(raw_gguf: Raw) -> None:
    assert read_gguf_header(raw_gguf([("k", nested(2))])).metadata == {"k": [[7]]}


def test_tensors_keep_torch_order_and_absolute_offsets(raw_gguf: Raw) -> None:
    path = raw_gguf([], [("m", [64, 3], Q4_0, 0), ("v", [8], F32, 128)], 160)
    matrix, vector = read_gguf_header(path).tensors
    start = read_gguf_header(path).data_offset_bytes
    assert start % 32 == 0
    assert (matrix.shape, matrix.dtype, matrix.offset_bytes, matrix.size_bytes) == ((3, 64), "Q4_0", start, 3 * 36)
    assert (vector.shape, vector.offset_bytes, vector.size_bytes) == ((8,), start + 128, 32)


def test_other_alignment_is_followed(raw_gguf: Raw) -> None:
    path = raw_gguf([("general.alignment", 128)], [("v", [8], F32, 128)], 160, alignment=128)
    header = read_gguf_header(path)
    assert header.data_offset_bytes % 128 == 0
    assert header.tensors[0].offset_bytes == header.data_offset_bytes + 128


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "magic": ({"magic": b"GGML"}, "starts with b'GGML'"),
    "version-1": ({"version": 1}, "version is 1"),
    "version-4": ({"version": 4}, "version is 4"),
    "big-endian": ({"version": 3 << 24}, "big-endian"),
    "tensor-count-huge": ({"tensor_count": HUGE}, "claims 18,446,744,073,709,551,615 tensors"),
    "tensor-count-beyond-file": ({"tensor_count": 1000}, "claims 1,000 tensors"),
    "key-count-huge": ({"key_count": HUGE}, "keys"),
    "key-count-beyond-file": ({"key_count": 1000, "data_bytes": 64}, "claims 1,000 keys"),
    "key-length-huge": ({"metadata": [("k" * 5000, 1)]}, "claims 5,000 bytes"),
    "key-repeated": ({"metadata": [("k", 1), ("k", 2)]}, "'k' is there twice"),
    "value-type-unknown": ({"metadata": [("k", struct.pack("<II", 99, 0))]}, "unknown value type 99"),
    "bool-out-of-range": ({"metadata": [("k", struct.pack("<IB", 7, 2))]}, "truth value with the byte 2"),
    "bools-out-of-range": ({"metadata": [("k", array(7, 2, b"\1\5"))]}, "truth values"),
    "string-length-huge": ({"metadata": [("k", struct.pack("<IQ", 8, HUGE))]}, "claims 18,446"),
    "string-beyond-file": ({"metadata": [("k", struct.pack("<IQ", 8, MAX_STRING_BYTES))]}, "the file ends at"),
    "string-not-utf8": ({"metadata": [("k", struct.pack("<IQ", 8, 2) + b"\xff\xfe")]}, "not UTF-8"),
    "array-count-huge": ({"metadata": [("k", array(4, HUGE))]}, "items in k"),
    "array-count-beyond-file": ({"metadata": [("k", array(4, MAX_ARRAY_ITEMS))]}, "are left"),
    "array-type-unknown": ({"metadata": [("k", array(77, 1, b"1234"))]}, "unknown value type 77"),
    "array-strings-beyond-file": ({"metadata": [("k", array(8, 2, struct.pack("<QQ", 1 << 50, 0)))]}, "item 0 of k"),
    "array-nested-deep": ({"metadata": [("k", nested(40))]}, "nests arrays 3 deep"),
    "alignment-zero": ({"metadata": [("general.alignment", 0)]}, "general.alignment is 0"),
    "alignment-odd": ({"metadata": [("general.alignment", 48)]}, "general.alignment is 48"),
    "alignment-text": ({"metadata": [("general.alignment", "32")]}, "general.alignment is '32'"),
    "tensor-type-unknown": ({"tensors": [("t", [32], 4, 0)], "data_bytes": 128}, "unknown storage type 4"),
    "tensor-dimension-zero": ({"tensors": [("t", [32, 0], F32, 0)], "data_bytes": 128}, "dimension of 0"),
    "tensor-dimensions-none": ({"tensors": [("t", [], F32, 0)], "data_bytes": 128}, "has 0 dimensions"),
    "tensor-dimensions-many": ({"tensors": [("t", [1] * 5, F32, 0)], "data_bytes": 128}, "has 5 dimensions"),
    "tensor-dimension-huge": ({"tensors": [("t", [32, 1 << 62], F32, 0)], "data_bytes": 128}, "the file ends at"),
    "tensor-size-overflows": ({"tensors": [("t", [1 << 32, 1 << 32], F32, 0)], "data_bytes": 128}, "the file ends at"),
    "tensor-rows-ragged": ({"tensors": [("t", [33], Q4_0, 0)], "data_bytes": 128}, "blocks of 32"),
    "tensor-unaligned": ({"tensors": [("t", [8], F32, 8)], "data_bytes": 128}, "not a multiple of 32"),
    "tensor-offset-huge": ({"tensors": [("t", [8], F32, 1 << 60)], "data_bytes": 128}, "the file ends at"),
    "tensor-cut-off": ({"tensors": [("t", [64], F32, 0)], "data_bytes": 255}, "the file ends at"),
    "tensors-overlap": (
        {"tensors": [("a", [32], F32, 0), ("b", [32], F32, 64)], "data_bytes": 256},
        r"b starts at byte [\d,]+, inside a",
    ),
    "tensors-same-place": ({"tensors": [("a", [8], F32, 0), ("b", [8], F32, 0)], "data_bytes": 64}, "inside a"),
    "tensor-repeated": ({"tensors": [("a", [8], F32, 0), ("a", [8], F32, 32)], "data_bytes": 64}, "'a' is there twice"),
    "tensor-unnamed": ({"tensors": [("", [8], F32, 0)], "data_bytes": 64}, "has no name"),
    "key-unprintable": ({"metadata": [("a\x1b[31m", 1)]}, "key 0 has control characters"),
    "tensor-unprintable": ({"tensors": [("a\nb", [8], F32, 0)], "data_bytes": 64}, "tensor 0 has control characters"),
    "tensor-name-not-utf8": ({"tensors": [(b"\xc3(", [8], F32, 0)], "data_bytes": 64}, "not UTF-8"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_hostile_header_is_refused_with_the_reason_and_little_memory(case: str, raw_gguf: Raw) -> None:
    parts, message = REFUSED[case]
    path = raw_gguf(**parts)
    tracemalloc.start()
    try:
        with pytest.raises(UnsupportedFormat, match=message) as caught:
            read_gguf_header(path)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 1 << 20
    assert caught.value.hint


@pytest.mark.parametrize("size", [0, 3, 23])
def test_file_too_short_for_a_header_is_refused(size: int, tmp_path: Path) -> None:
    path = tmp_path / "short.gguf"
    path.write_bytes(b"GGUF"[:size] + bytes(max(0, size - 4)))
    with pytest.raises(UnsupportedFormat, match=f"has {size} bytes"):
        read_gguf_header(path)


def test_every_truncation_of_a_file_is_refused(gguf_file: Callable[..., Path]) -> None:
    path = gguf_file()
    whole = path.read_bytes()
    header_bytes = read_gguf_header(path).data_offset_bytes
    for size in [*range(0, header_bytes, 7), header_bytes, len(whole) - 1]:
        path.write_bytes(whole[:size])
        with pytest.raises(UnsupportedFormat):
            read_gguf_header(path)


def test_missing_file_and_folder_are_configuration_errors(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.gguf", tmp_path):
        with pytest.raises(ConfigError, match="cannot be read"):
            read_gguf_header(path)
        assert not is_gguf(path)
