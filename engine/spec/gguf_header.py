"""The header of a GGUF file: its metadata and where each tensor lies, read without trusting a byte of it.

Every count, length and offset is compared with what the file can hold before anything of that size is made, so a
hostile file costs no more memory than a small multiple of its own header. Versions 2 and 3, little-endian.
Source: the GGUF specification.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

from engine.errors import ConfigError, UnsupportedFormat
from engine.ggml_types import TYPE_BY_ID
from engine.spec.model_spec import TensorInfo

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 16
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 17
MAX_NAME_BYTES = 1 << 8  # of a key or a tensor
MAX_STRING_BYTES = 1 << 24  # of one value; chat templates are the long ones
MAX_ARRAY_ITEMS = 1 << 22  # over all arrays; the largest vocabularies have 2^18 entries
MAX_ARRAY_DEPTH = 2
MAX_DIMENSIONS = 4
MIN_KEY_BYTES = 8 + 1 + 4 + 1  # name length, a name of one byte, type, the smallest value
MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8  # name length, name, dimension count, one dimension, type, offset

_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class GgufHeader:
    path: str
    version: int
    file_bytes: int
    alignment_bytes: int
    data_offset_bytes: int  # where tensor data starts
    metadata: dict[str, object]  # int, float, bool, str, or a list of one of them
    tensors: tuple[TensorInfo, ...]


def is_gguf(path: Path) -> bool:
    """Whether a file starts as GGUF does; False for what cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(4) == MAGIC
    except OSError:
        return False


def read_gguf_header(path: str | Path) -> GgufHeader:
    """Read and check the header of a GGUF file.

    Raises: UnsupportedFormat when it is damaged, hostile or of another version; ConfigError when it cannot be opened
    Blocks: for the header's pages only, tensor data is not touched
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            if size < 24:
                raise _refusal(path, f"the file has {size} bytes; a GGUF header takes at least 24")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _Reader(path, data).header()
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror or error}.", "Check the path and its owner."
        ) from error


def _refusal(path: Path, what: str, hint: str = "") -> UnsupportedFormat:
    return UnsupportedFormat(
        f"{path.name} is not a usable GGUF file: {what}.",
        hint or "The file is damaged or was changed: download or convert it again and compare its SHA-256.",
    )


class _Reader:
    """A cursor over the mapped file. Owner: read_gguf_header."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.data = data
        self.size = len(data)
        self.at = 0
        self.array_items = 0

    def refuse(self, what: str, hint: str = "") -> UnsupportedFormat:
        return _refusal(self.path, what, hint)

    def header(self) -> GgufHeader:
        version, tensor_count, key_count = self.preamble()
        metadata: dict[str, object] = {}
        for index in range(key_count):
            key = self.string(f"the name of key {index}", MAX_NAME_BYTES)
            if not key.isprintable():
                raise self.refuse(f"the name of key {index} has control characters")
            if key in metadata:
                raise self.refuse(f"the key {key!r} is there twice")
            metadata[key] = self.value(self.u32(f"the type of {key}"), key, depth=0)
        alignment = self.alignment(metadata)
        places = self.tensor_places(tensor_count)
        data_offset = -(-self.at // alignment) * alignment
        tensors = self.checked_tensors(places, data_offset, alignment)
        return GgufHeader(str(self.path), version, self.size, alignment, data_offset, metadata, tensors)

    def preamble(self) -> tuple[int, int, int]:
        """Magic, version and the two counts -> (version, tensors, keys)."""
        magic = self.take(4, "the magic number")
        if magic != MAGIC:
            raise self.refuse(f"it starts with {magic!r}, not {MAGIC!r}")
        version = self.u32("the version")
        if version not in VERSIONS:
            if version.to_bytes(4, "big") in [v.to_bytes(4, "little") for v in VERSIONS]:
                raise self.refuse("it is big-endian", "Convert the checkpoint on a little-endian machine.")
            raise self.refuse(
                f"its version is {version}; versions {VERSIONS[0]} and {VERSIONS[1]} are read",
                "Convert the checkpoint again with a current converter.",
            )
        tensors = self.u64("the tensor count")
        keys = self.u64("the key count")
        self.bound("tensors", tensors, MAX_TENSORS, MIN_TENSOR_BYTES)
        self.bound("keys", keys, MAX_KEYS, MIN_KEY_BYTES)
        return version, tensors, keys

    def bound(self, noun: str, count: int, limit: int, each_bytes: int) -> None:
        """Refuse a count that the rest of the file cannot hold, or that no model has."""
        left = self.size - self.at
        if count > limit:
            raise self.refuse(f"it claims {count:,} {noun}; the most that is accepted is {limit:,}")
        if count * each_bytes > left:
            raise self.refuse(f"it claims {count:,} {noun}, which take {count * each_bytes:,} bytes; {left:,} are left")

    def take(self, count: int, what: str) -> bytes:
        start, end = self.at, self.at + count
        if end > self.size:
            raise self.refuse(f"{what} takes {count:,} bytes at byte {start:,}; the file ends at {self.size:,}")
        self.at = end
        return self.data[start:end]

    def u32(self, what: str) -> int:
        number: int = _U32.unpack(self.take(4, what))[0]
        return number

    def u64(self, what: str) -> int:
        number: int = _U64.unpack(self.take(8, what))[0]
        return number

    def string(self, what: str, limit_bytes: int) -> str:
        length = self.u64(f"the length of {what}")
        if length > limit_bytes:
            raise self.refuse(f"{what} claims {length:,} bytes; the most that is accepted is {limit_bytes:,}")
        raw = self.take(length, what)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.refuse(f"{what} is not UTF-8 (byte {error.start} of {length})") from error

    def value(self, kind: int, key: str, depth: int) -> object:
        if kind == _STRING:
            return self.string(f"the value of {key}", MAX_STRING_BYTES)
        if kind == _ARRAY:
            return self.array(key, depth + 1)
        code = _SCALARS.get(kind)
        if code is None:
            raise self.refuse(f"{key} has the unknown value type {kind}")
        raw = self.take(struct.calcsize(code), key)
        if kind == _BOOL and raw[0] > 1:
            raise self.refuse(f"{key} is a truth value with the byte {raw[0]}; 0 and 1 are allowed")
        return struct.unpack("<" + code, raw)[0]

    def array(self, key: str, depth: int) -> list[object]:
        if depth > MAX_ARRAY_DEPTH:
            raise self.refuse(f"{key} nests arrays {depth} deep; the most that is accepted is {MAX_ARRAY_DEPTH}")
        kind = self.u32(f"the item type of {key}")
        count = self.u64(f"the item count of {key}")
        code = _SCALARS.get(kind)
        if code is None and kind not in (_STRING, _ARRAY):
            raise self.refuse(f"{key} is an array of the unknown value type {kind}")
        each = struct.calcsize(code) if code else (8 if kind == _STRING else 12)
        self.array_items += count
        self.bound(f"items in {key}", count, MAX_ARRAY_ITEMS, each)
        if self.array_items > MAX_ARRAY_ITEMS:
            raise self.refuse(f"its arrays have {self.array_items:,} items; at most {MAX_ARRAY_ITEMS:,} are accepted")
        if code is not None:
            raw = self.take(count * each, key)
            if kind == _BOOL and raw.strip(b"\0\1"):
                raise self.refuse(f"{key} is an array of truth values with bytes other than 0 and 1")
            return list(struct.unpack(f"<{count}{code}", raw))
        if kind == _STRING:
            return self.strings(key, count)
        return [self.array(key, depth + 1) for _ in range(count)]

    def strings(self, key: str, count: int) -> list[object]:
        """An array of strings. Vocabularies have half a million of them, so the loop is written flat."""
        data, size, at, length_of = self.data, self.size, self.at, _U64.unpack_from
        found: list[object] = []
        try:
            for _ in range(count):
                (length,) = length_of(data, at)
                start = at + 8
                at = start + length
                if at > size:
                    raise self.refuse(
                        f"item {len(found)} of {key} takes {length:,} bytes from {start:,}; the file ends at {size:,}"
                    )
                found.append(data[start:at].decode("utf-8"))
        except struct.error as error:
            raise self.refuse(f"item {len(found)} of {key} starts at byte {at:,}; the file ends at {size:,}") from error
        except UnicodeDecodeError as error:
            raise self.refuse(f"item {len(found)} of {key} is not UTF-8") from error
        self.at = at
        return found

    def alignment(self, metadata: dict[str, object]) -> int:
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if isinstance(alignment, bool) or not isinstance(alignment, int):
            raise self.refuse(f"general.alignment is {alignment!r}, not a number of bytes")
        if not 8 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
            raise self.refuse(f"general.alignment is {alignment}; powers of two from 8 to {MAX_ALIGNMENT} are accepted")
        return alignment

    def tensor_places(self, count: int) -> list[tuple[str, int, tuple[int, ...], int]]:
        """The tensor table as written -> (name, type id, dimensions, offset from the data's start)."""
        places: list[tuple[str, int, tuple[int, ...], int]] = []
        seen: set[str] = set()
        for index in range(count):
            name = self.string(f"the name of tensor {index}", MAX_NAME_BYTES)
            if not name:
                raise self.refuse(f"tensor {index} has no name")
            if not name.isprintable():
                raise self.refuse(f"the name of tensor {index} has control characters")
            if name in seen:
                raise self.refuse(f"the tensor {name!r} is there twice")
            seen.add(name)
            dimensions = self.u32(f"the dimension count of {name}")
            if not 1 <= dimensions <= MAX_DIMENSIONS:
                raise self.refuse(f"{name} has {dimensions} dimensions; 1 to {MAX_DIMENSIONS} are accepted")
            shape = tuple(self.u64(f"dimension {d} of {name}") for d in range(dimensions))
            places.append((name, self.u32(f"the type of {name}"), shape, self.u64(f"the offset of {name}")))
        return places

    def checked_tensors(
        self, places: list[tuple[str, int, tuple[int, ...], int]], data_offset: int, alignment: int
    ) -> tuple[TensorInfo, ...]:
        tensors = tuple(self.checked_tensor(*place, data_offset, alignment) for place in places)
        end, previous = data_offset, "the header"
        for info in sorted(tensors, key=lambda t: t.offset_bytes):
            if info.offset_bytes < end:
                raise self.refuse(f"{info.name} starts at byte {info.offset_bytes:,}, inside {previous} (to {end:,})")
            end, previous = info.offset_bytes + info.size_bytes, info.name
        return tensors

    def checked_tensor(
        self, name: str, kind: int, dimensions: tuple[int, ...], offset: int, data_offset: int, alignment: int
    ) -> TensorInfo:
        stored = TYPE_BY_ID.get(kind)
        if stored is None:
            raise self.refuse(
                f"{name} has the unknown storage type {kind}", "Convert it to a type such as Q4_K or Q8_0."
            )
        if min(dimensions) == 0:
            raise self.refuse(f"{name} has a dimension of 0: {list(dimensions)}")
        if dimensions[0] % stored.block_elements:
            raise self.refuse(
                f"{name} has rows of {dimensions[0]} elements; {stored.name} stores blocks of {stored.block_elements}"
            )
        size = stored.row_bytes(dimensions[0])
        for extent in dimensions[1:]:
            size *= extent
        if offset % alignment:
            raise self.refuse(f"{name} starts at offset {offset:,}, which is not a multiple of {alignment}")
        if data_offset + offset + size > self.size:
            raise self.refuse(
                f"{name} needs bytes {data_offset + offset:,} to {data_offset + offset + size:,}; "
                f"the file ends at {self.size:,}",
                "The file is incomplete: download it again and compare its SHA-256.",
            )
        return TensorInfo(name, stored.name, dimensions[::-1], str(self.path), data_offset + offset, size)
