"""The header of a safetensors file: where each tensor lies, checked against the file before it is believed.

Source: the safetensors format: eight bytes of header length, a JSON object, then the tensors' bytes.
"""

from __future__ import annotations

import json
import struct
from math import prod
from pathlib import Path

from engine.errors import ConfigError, UnsupportedFormat
from engine.spec.model_spec import TensorInfo

MAX_HEADER_BYTES = 1 << 25  # the largest shards of real models have under a megabyte
MAX_DIMENSIONS = 8
MAX_NAME_CHARACTERS = 256
ITEM_BYTES = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U64": 8,
    "U32": 4,
    "U16": 2,
    "U8": 1,
    "BOOL": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
}


def read_safetensors_header(path: Path) -> tuple[TensorInfo, ...]:
    """Read and check the tensor table of one file.

    Raises: UnsupportedFormat when it is damaged or hostile; ConfigError when it cannot be opened
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            raw_length = file.read(8)
            length = struct.unpack("<Q", raw_length)[0] if len(raw_length) == 8 else 0
            if length < 2 or length > size - 8:
                raise _refusal(path, f"its header claims {length:,} bytes; {max(size - 8, 0):,} follow")
            if length > MAX_HEADER_BYTES:
                raise _refusal(path, f"its header has {length:,} bytes; at most {MAX_HEADER_BYTES:,} are accepted")
            raw = file.read(length)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror or error}.", "Check the path and its owner."
        ) from error
    return _tensors(path, _parsed(path, raw), 8 + length, size)


def _refusal(path: Path, what: str) -> UnsupportedFormat:
    return UnsupportedFormat(
        f"{path.name} is not a usable safetensors file: {what}.",
        "The file is damaged or incomplete: download it again and compare its SHA-256.",
    )


def _parsed(path: Path, raw: bytes) -> dict[str, object]:
    def without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("a name is there twice")
        return found

    try:
        header = json.loads(raw, object_pairs_hook=without_repeats)
    except (ValueError, RecursionError) as error:
        raise _refusal(path, f"its header is not the expected JSON ({error})") from error
    if not isinstance(header, dict):
        raise _refusal(path, "its header is not a JSON object")
    return header


def _tensors(path: Path, header: dict[str, object], data_offset: int, size: int) -> tuple[TensorInfo, ...]:
    found = [_tensor(path, name, entry, data_offset) for name, entry in header.items() if name != "__metadata__"]
    end, previous = data_offset, "the header"
    for info in sorted(found, key=lambda t: (t.offset_bytes, t.size_bytes)):
        if info.offset_bytes < end:
            raise _refusal(path, f"{info.name} starts at byte {info.offset_bytes:,}, inside {previous} (to {end:,})")
        end, previous = info.offset_bytes + info.size_bytes, info.name
    if end > size:
        raise _refusal(path, f"{previous} ends at byte {end:,}; the file ends at {size:,}")
    return tuple(found)


def _tensor(path: Path, name: str, entry: object, data_offset: int) -> TensorInfo:
    if not name.isprintable() or len(name) > MAX_NAME_CHARACTERS:
        raise _refusal(path, f"a tensor has a name of {len(name):,} characters, or one with control characters")
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise _refusal(path, f"the entry of {name} has not exactly dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    item_bytes = ITEM_BYTES.get(dtype) if isinstance(dtype, str) else None
    if item_bytes is None:
        raise _refusal(path, f"{name} has the unknown type {str(dtype)[:40]!r}")
    if not _whole_numbers(shape) or len(shape) > MAX_DIMENSIONS or 0 in shape:
        raise _refusal(path, f"{name} has no usable shape: {str(shape)[:80]}")
    if not _whole_numbers(offsets) or len(offsets) != 2:
        raise _refusal(path, f"{name} has no usable data_offsets: {str(offsets)[:80]}")
    start, end = offsets
    if end - start != prod(shape) * item_bytes:
        raise _refusal(path, f"{name} has {end - start:,} bytes; its shape needs {prod(shape) * item_bytes:,}")
    return TensorInfo(name, dtype, tuple(shape), str(path), data_offset + start, end - start)


def _whole_numbers(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(i, int) and not isinstance(i, bool) and 0 <= i < 1 << 62 for i in value
    )
