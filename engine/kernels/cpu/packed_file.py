"""A file of packed weights, so that a second start maps them in place of packing them again.

    magic, zeros to 4096 | packed matrices, each from a multiple of 4096 | contents, JSON | SHA-256 of the contents,
    their place and length as 8 bytes each, magic

The contents name each matrix's key, kind, shape, place, length and CRC-32. They come last, so that a file cut short has
none. Written under another name, flushed and renamed: a file of the right name is whole. Any instruction set reads it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import mmap
import os
import struct
import warnings
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from engine.kernels.cpu.library import memory_nodes
from engine.kernels.cpu.memory import ask_for_huge_pages, huge_memory, huge_pages_are_to_be_had, in_huge_pages

MAGIC = b"BYPACK\x00\x01"  # the last byte is the version of this file's form
LAYOUT_VERSION = 1  # of packed matrices: raise it with every change of what a packed matrix looks like
PARTIAL = ".partial"  # what is being written ends so
_ALIGN = 4096
_STAGE_BYTES = 4 << 20
_TAIL = struct.Struct("<32sQQ8s")
_numbers = itertools.count()


class PackedFileUnusable(Exception):
    """Says why in one clause: the file is there, and is not what it should be."""


@dataclass(frozen=True, slots=True)
class PackedEntry:
    """One matrix, or as many as there are experts, in the file."""

    kind: str
    rows: int
    columns: int
    experts: int  # 0: a matrix of its own
    start: int
    num_bytes: int
    crc32: int


@dataclass(frozen=True, slots=True)
class PackedGroup:
    """What is kept under a key."""

    entries: tuple[PackedEntry, ...]
    widths: tuple[int, ...]  # rows of each role in it


class PackedFileWriter:
    """Raises: OSError from any method when the disk does not take it; abandon() then."""

    def __init__(self, path: Path, identity: dict[str, object]) -> None:
        self.path = path
        self.num_bytes = _ALIGN
        self._partial = path.with_name(f"{path.name}.{os.getpid()}.{next(_numbers)}{PARTIAL}")
        self._file = open(self._partial, "wb", 0, opener=lambda name, flags: os.open(name, flags, 0o600))  # noqa: SIM115
        self._stage = bytearray(_STAGE_BYTES)
        self._staged = 0
        self._write(MAGIC.ljust(_ALIGN, b"\0"))
        self._identity = identity
        self._groups: dict[str, PackedGroup] = {}

    def put(self, key: str, parts: Sequence[tuple[PackedEntry, Tensor]], widths: Sequence[int]) -> None:
        """Append packed matrices; place and check sum of the entries given are filled in here."""
        entries = []
        for entry, data in parts:
            raw = memoryview(data.numpy().data).cast("B")
            self._write(raw)
            self._write(bytes(-len(raw) % _ALIGN))
            made = {**asdict(entry), "start": self.num_bytes, "num_bytes": len(raw), "crc32": zlib.crc32(raw)}
            entries.append(PackedEntry(**made))
            self.num_bytes += -(-len(raw) // _ALIGN) * _ALIGN
        self._groups[key] = PackedGroup(tuple(entries), tuple(widths))

    def finish(self, notes: dict[str, str]) -> None:
        """Blocks: until the disk has it all."""
        groups = {key: asdict(group) for key, group in self._groups.items()}
        contents = json.dumps({"identity": self._identity, "notes": notes, "groups": groups}).encode()
        self._write(contents)
        self._write(_TAIL.pack(hashlib.sha256(contents).digest(), self.num_bytes, len(contents), MAGIC))
        with memoryview(self._stage) as stage:
            self._file.write(stage[: self._staged])
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self._partial, self.path)

    def _write(self, data: bytes | memoryview) -> None:
        """Through a stage of whole huge pages: a file system keeps what comes so in huge pages, if it can."""
        at = 0
        while at < len(data):
            count = min(len(data) - at, _STAGE_BYTES - self._staged)
            self._stage[self._staged : self._staged + count] = data[at : at + count]
            at, self._staged = at + count, self._staged + count
            if self._staged == _STAGE_BYTES:
                self._file.write(self._stage)
                self._staged = 0

    def abandon(self) -> None:
        self._file.close()
        self._partial.unlink(missing_ok=True)


class PackedFile:
    """A finished file, mapped read-only; tensors of it keep the map alive.

    Copied where the file system does not keep it in huge pages and memory can, or memory has several nodes.
    Raises: PackedFileUnusable, FileNotFoundError. Blocks: while it is read through once, by some threads
    """

    def __init__(self, path: Path, identity: dict[str, object]) -> None:
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            raise
        except (OSError, ValueError) as error:
            raise PackedFileUnusable(f"it cannot be read: {error}") from error
        ask_for_huge_pages(self._map)
        contents = _contents(self._map)
        if contents["identity"] != identity:
            raise PackedFileUnusable("it is of another model file or another Bayard")
        self.notes: dict[str, str] = contents["notes"]
        self.groups = {
            key: PackedGroup(tuple(PackedEntry(**entry) for entry in group["entries"]), tuple(group["widths"]))
            for key, group in contents["groups"].items()
        }
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given buffer is not writable")  # nobody writes to weights
            self._bytes = torch.frombuffer(self._map, dtype=torch.uint8)
        self.num_bytes = len(self._map)
        self._check_all()
        as_good = in_huge_pages(self._bytes.data_ptr()) or not huge_pages_are_to_be_had()
        self.is_mapped = as_good and memory_nodes() == 1
        if not self.is_mapped:  # a step would take longer with it: copied once, at the speed of memory
            self._bytes = huge_memory(self.num_bytes).copy_(self._bytes)
            del self._map

    def data(self, entry: PackedEntry) -> Tensor:
        """Shapes: -> [bytes] uint8, not to be written to"""
        return self._bytes[entry.start : entry.start + entry.num_bytes]

    def _check_all(self) -> None:
        """Every byte against its check sum: a step reads them all anyway, and now they are in memory."""
        entries = [entry for group in self.groups.values() for entry in group.entries]
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
            whole = list(threads.map(self._is_whole, entries))
        if not all(whole):
            raise PackedFileUnusable(f"{whole.count(False)} of its {len(whole)} matrices are not what was written")

    def _is_whole(self, entry: PackedEntry) -> bool:
        if entry.start < 0 or entry.num_bytes < 0 or entry.start + entry.num_bytes > len(self._map):
            return False
        with memoryview(self._map) as view:
            return zlib.crc32(view[entry.start : entry.start + entry.num_bytes]) == entry.crc32


def read_identity(path: Path) -> dict[str, object]:
    """What a file is of. Raises: PackedFileUnusable, OSError"""
    with path.open("rb") as file:
        try:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError as error:
            raise PackedFileUnusable("it is empty") from error
    with mapped:
        identity: dict[str, object] = _contents(mapped)["identity"]
    return identity


def _contents(mapped: mmap.mmap) -> dict[str, dict]:  # type: ignore[type-arg]  # JSON
    if len(mapped) < _ALIGN + _TAIL.size or mapped[: len(MAGIC)] != MAGIC:
        raise PackedFileUnusable("it does not begin as such a file does")
    digest, start, length, magic = _TAIL.unpack(mapped[len(mapped) - _TAIL.size :])
    if magic != MAGIC or start + length + _TAIL.size != len(mapped):
        raise PackedFileUnusable("it is cut short")
    contents = mapped[start : start + length]
    if hashlib.sha256(contents).digest() != digest:
        raise PackedFileUnusable("its contents are not what was written")
    found: dict[str, dict] = json.loads(contents)  # type: ignore[type-arg]
    return found
