"""Safetensors headers: what is read and what is refused."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from engine.errors import ConfigError, UnsupportedFormat
from engine.spec.safetensors_header import read_safetensors_header


def written(path: Path, header: Any, data_bytes: int = 64, length: int | None = None) -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw) if length is None else length) + raw + bytes(data_bytes))
    return path


def entry(start: int, end: int, shape: list[Any], dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def test_file_written_by_the_library_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    values = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(5, dtype=torch.bfloat16)}
    save_file(values, path, metadata={"format": "pt"})
    infos = {info.name: info for info in read_safetensors_header(path)}
    assert {name: (i.dtype, i.shape) for name, i in infos.items()} == {"a": ("F32", (2, 3)), "b": ("BF16", (5,))}
    raw = path.read_bytes()
    for name, info in infos.items():
        stored = raw[info.offset_bytes : info.offset_bytes + info.size_bytes]
        assert stored == values[name].view(torch.uint8).numpy().tobytes()


REFUSED: dict[str, tuple[Any, str]] = {
    "not-json": (b"{]", "not the expected JSON"),
    "not-object": ([1], "not a JSON object"),
    "nested-deep": (b'{"a":' + b"[" * 200_000, "not the expected JSON"),
    "repeated": (b'{"a": 1, "a": 2}', "twice"),
    "key-unknown": ({"a": entry(0, 4, [1]) | {"x": 1}}, "not exactly"),
    "dtype-unknown": ({"a": entry(0, 4, [1], "F7")}, "unknown type 'F7'"),
    "dtype-list": ({"a": entry(0, 4, [1]) | {"dtype": []}}, "unknown type"),
    "shape-negative": ({"a": entry(0, 4, [-1])}, "no usable shape"),
    "shape-zero": ({"a": entry(0, 0, [0])}, "no usable shape"),
    "shape-bool": ({"a": entry(0, 4, [True])}, "no usable shape"),
    "shape-long": ({"a": entry(0, 4, [1] * 9)}, "no usable shape"),
    "offsets-swapped": ({"a": entry(8, 4, [1])}, "its shape needs 4"),
    "offsets-one": ({"a": entry(0, 4, [1]) | {"data_offsets": [0]}}, "data_offsets"),
    "size-wrong": ({"a": entry(0, 8, [1])}, "has 8 bytes; its shape needs 4"),
    "size-huge": ({"a": entry(0, 4, [1 << 61, 1 << 61])}, "its shape needs"),
    "beyond-file": ({"a": entry(64, 68, [1])}, "the file ends at"),
    "name-unprintable": ({"a\x1b": entry(0, 4, [1])}, "control characters"),
    "name-long": ({"a" * 300: entry(0, 4, [1])}, "name of 300 characters"),
    "overlap": ({"a": entry(0, 8, [2]), "b": entry(4, 8, [1])}, "inside a"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_damaged_header_is_refused_with_the_reason(case: str, tmp_path: Path) -> None:
    header, message = REFUSED[case]
    with pytest.raises(UnsupportedFormat, match=message):
        read_safetensors_header(written(tmp_path / "m.safetensors", header))


@pytest.mark.parametrize("length", [0, 1, 1 << 20, (1 << 64) - 1])
def test_header_length_that_the_file_cannot_hold_is_refused(length: int, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedFormat, match="its header claims"):
        read_safetensors_header(written(tmp_path / "m.safetensors", {}, length=length))


def test_header_larger_than_any_model_needs_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", 1 << 26))
        file.truncate((1 << 26) + 8)
    with pytest.raises(UnsupportedFormat, match="at most 33,554,432"):
        read_safetensors_header(path)


def test_empty_and_missing_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(b"123")
    with pytest.raises(UnsupportedFormat):
        read_safetensors_header(path)
    with pytest.raises(ConfigError):
        read_safetensors_header(tmp_path / "absent.safetensors")
