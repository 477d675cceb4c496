"""MappedCheckpoint: a checkpoint's files in memory maps, its tensors as views of them."""

from __future__ import annotations

import mmap
import os
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from engine.devices.host_heap import trim_heap
from engine.devices.upload import upload, upload_group
from engine.devices.uploader import Stored
from engine.errors import ConfigError, UnsupportedFormat
from engine.layers.weight import Weight
from engine.models.coded_parts import coded
from engine.models.rounding import Rounding
from engine.quant.block_check import has_bad_multiplier, refuse_bad_multiplier
from engine.quant.quant_tensor import QuantTensor
from engine.spec.kv_scales import ROLES as KV_ROLES
from engine.spec.model_spec import ModelSpec, TensorInfo
from engine.spec.quantised_tensors import PART
from engine.spec.tensor_table import Role, expected_tensors, tensor_table

if TYPE_CHECKING:
    from engine.models.adapters import AdapterBank
    from engine.models.packed_store import PackedStore

PLAIN_DTYPES = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I32": torch.int32,
    "I64": torch.int64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.uint8,
}
ALIGNED = 256  # bytes: addresses of matrices that are sent together
Progress = Callable[[int, int], None]  # done bytes, total bytes


class MappedCheckpoint:
    """Tensors by role, without copying: pages come in as they are read and can be let go with release().

    Owner: the loader. Tensors handed out keep their map alive for as long as they live.
    """

    rounding: Rounding | None = None  # what Parts makes of the matrices it takes
    calibrated_kv = False  # whether the checkpoint's own multipliers are those of a cache of bytes
    device = torch.device("cpu")  # where the parts of quantised matrices are put together

    packed: PackedStore | None = None  # matrices that were packed at an earlier start
    adapters: AdapterBank | None = None  # what is added to projections as they are made
    _doubts: tuple[tuple[str, Tensor], ...] = ()  # matrices on a device, and whether their multipliers are no numbers
    _sizes: dict[Role, int] | None = None  # bytes of a role with its experts and parts, once asked for

    def __init__(self, spec: ModelSpec, progress: Progress) -> None:
        self.table = tensor_table(spec)
        self.total_bytes = sum(info.size_bytes for info in {info.name: info for info in self.table.values()}.values())
        self.done_bytes = 0
        self._progress = progress
        self._maps = {file: _map(file) for file in sorted({info.file for info in self.table.values()})}
        weakref.finalize(self, _close, [descriptor for *_, descriptor in self._maps.values()])
        self._used: list[TensorInfo] = []
        self._quantisation = spec.quantisation
        self._tied, self._generates = spec.tie_embeddings, spec.generates
        self._parts: dict[Role, dict[str, TensorInfo]] = {}
        for (role, layer), info in self.table.items():
            name, mark, suffix = role.partition(PART)
            if mark:
                self._parts.setdefault((name, layer), {})[suffix] = info
        self._shapes = {e.role: e.shape for e in expected_tensors(spec)} if self._parts else {}

    def __contains__(self, role: Role) -> bool:
        return role in self.table

    def matrix(self, name: str, layer: int | None = None) -> Weight:
        """A weight as it is stored, a view of the file, a stack as one matrix; or codes beside their scales."""
        info = self.table[name, layer]
        parts = self._parts.get((name, layer))
        if parts is not None:
            return self._coded(parts, info.name.rpartition(".")[0], self._shapes[name, layer])
        dtype = PLAIN_DTYPES.get(info.dtype)
        if dtype is None:
            raw = self._bytes(info)
            rows = prod(info.shape[:-1])
            return QuantTensor(info.dtype, raw.view(rows, -1), (rows, info.shape[-1]))
        found = self._tensor(info, dtype)
        return found.view(-1, info.shape[-1]) if len(info.shape) > 2 else found

    def doubt(self, weight: Weight, role: str, layer: int | None) -> None:
        """Look at what multiplies inside blocks, where they are: on a device that is told at the end of the load.

        Raises: UnsupportedFormat, on a host, where something there is no number
        """
        if not isinstance(weight, QuantTensor):
            return
        name, bad = self.table[role, layer].name, has_bad_multiplier(weight)
        if bad.device.type != "cpu":
            self._doubts = (*self._doubts, (name, bad))
        elif bool(bad):
            raise refuse_bad_multiplier(name)

    def settle(self) -> None:
        """All is loaded. Raises: UnsupportedFormat for a matrix that was doubted rightly. Blocks: until it is there"""
        found = torch.stack([bad for _, bad in self._doubts]).tolist() if self._doubts else []
        for (name, _), bad in zip(self._doubts, found, strict=True):
            if bad:
                raise refuse_bad_multiplier(name)
        self._doubts = ()

    def together(self, roles: Sequence[str], layer: int) -> Tensor | None:
        """Plain matrices under one another on the device, if they were read ahead so. None: each is to be asked for."""
        infos = [info for info in (self.table.get((role, layer)) for role in roles) if info is not None]
        dtype = PLAIN_DTYPES.get(infos[0].dtype) if len(infos) == len(roles) else None
        if dtype is None or (roles[0], layer) in self._parts:
            return None
        keys = [(self._maps[info.file][2] + info.offset_bytes, info.size_bytes) for info in infos]
        found = upload_group(keys, self.device)
        if found is None:
            return None
        self._used += infos
        return found.view(dtype).view(-1, infos[0].shape[-1])

    def _coded(self, parts: dict[str, TensorInfo], module: str, shape: tuple[int, ...]) -> Weight:
        scheme = None if self._quantisation is None else self._quantisation.scheme_of(module)
        assert scheme is not None, module
        there = {suffix: upload(self._tensor(i, PLAIN_DTYPES[i.dtype]), self.device) for suffix, i in parts.items()}
        return coded(scheme, there, module, (shape[0], shape[1]))

    def _tensor(self, info: TensorInfo, dtype: torch.dtype) -> Tensor:
        raw = self._bytes(info)
        if _is_moved(info):
            raw = raw.clone()  # safetensors does not promise alignment, views need it
        return raw.view(dtype).view(info.shape)

    def vector(self, name: str, layer: int | None, device: torch.device, dtype: torch.dtype) -> Tensor:
        """A norm or bias, copied to its device and type."""
        stored = self.matrix(name, layer)
        assert isinstance(stored, Tensor)
        return stored.to(device=device, dtype=dtype, copy=True)

    def coming(self) -> Iterator[list[Stored]]:
        """The bytes of matrices that a model will ask for, where they lie and in about that order.

        Those that a model puts under one another come together, so that they can be sent to where they will be.
        """
        groups: dict[object, list[tuple[tuple[int, int], Stored]]] = {}
        before: int | None = None
        for layer, group, place, stored in self._coming():
            if layer != before:
                yield from map(_in_order, groups.values())
                groups, before = {}, layer
            groups.setdefault(group, []).append((place, stored))
        yield from map(_in_order, groups.values())

    def _coming(self) -> Iterator[tuple[int | None, object, tuple[int, int], Stored]]:
        """The layer, the group, the place in it, and the bytes."""
        seen: set[tuple[str, int]] = set()
        for (role, layer), info in sorted(
            self.table.items(), key=lambda item: -1 if item[0][1] is None else item[0][1]
        ):
            unasked = role == "lm_head" and (self._tied or not self._generates)
            unasked = unasked or role.endswith("_bias") or role in KV_ROLES  # a vector of each expert, or of heads
            if len(info.shape) < 2 or (info.file, info.offset_bytes) in seen or unasked or _is_moved(info):
                continue
            seen.add((info.file, info.offset_bytes))
            found = self._asked_of(role, layer, info)
            if found is not None:
                _, whole, address, descriptor = self._maps[info.file]
                stored = Stored(whole, found.start, len(found), address + found.start, descriptor)
                group, place = side_by_side(role)
                # What is rounded becomes something else first; kernels want a matrix to begin at a round address.
                if self.rounding is not None or stored.num_bytes % ALIGNED:
                    group, place = role, (0, 0)
                yield layer, (group, info.dtype), place, stored

    def _asked_of(self, role: str, layer: int | None, info: TensorInfo) -> range | None:
        """What of a stored matrix goes to a device as it lies in the file: bytes of the file."""
        return range(info.offset_bytes, info.offset_bytes + info.size_bytes)

    def passed(self, names: list[str], layer: int | None) -> None:
        """Weights that need not be read count as done: those of the roles, of their experts and of their parts."""
        if self._sizes is None:
            self._sizes = {}
            for (role, where), info in self.table.items():
                key = role.partition(PART)[0].partition(".")[0], where
                self._sizes[key] = self._sizes.get(key, 0) + info.size_bytes
        self.done_bytes += sum(self._sizes.get((name, layer), 0) for name in names)

    def release(self) -> None:
        """Let go of the pages read since the last call and report progress; views stay valid and read them again."""
        for info in self._used:
            start = -(-info.offset_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
            length = (info.offset_bytes + info.size_bytes - start) // mmap.PAGESIZE * mmap.PAGESIZE
            if length > 0:
                self._maps[info.file][0].madvise(mmap.MADV_DONTNEED, start, length)
            self.done_bytes += info.size_bytes
        self._used.clear()
        if self.rounding is not None and self.device.type == "cpu":
            trim_heap()  # of numbers on their way from one form to the other
        self._progress(self.done_bytes, self.total_bytes)

    def _bytes(self, info: TensorInfo) -> Tensor:
        self._used.append(info)
        return self._maps[info.file][1][info.offset_bytes : info.offset_bytes + info.size_bytes]


# Roles whose matrices a model puts under one another, in that order.
SIDE_BY_SIDE = {
    role: (roles, place)
    for roles in (("attn_q", "attn_k", "attn_v"), ("mlp_gate", "mlp_up"), ("shared_gate", "shared_up"))
    for place, role in enumerate(roles)
}
SIDE_BY_SIDE_OF_EXPERTS = {"experts_gate": ("gate_up", 0), "experts_up": ("gate_up", 1), "experts_down": ("down", 0)}


@cache
def side_by_side(role: str) -> tuple[object, tuple[int, int]]:
    """What of a layer lies under one another on a device: the group that a role is in, and its place there."""
    name, _, suffix = role.partition(PART)
    if name in SIDE_BY_SIDE:
        roles, place = SIDE_BY_SIDE[name]
        return (roles, suffix), (0, place)
    stack, _, expert = name.partition(".")
    if expert.isdigit() and stack in SIDE_BY_SIDE_OF_EXPERTS:
        group, place = SIDE_BY_SIDE_OF_EXPERTS[stack]
        return (group, suffix), (int(expert), place)
    return role, (0, 0)


def _in_order(group: list[tuple[tuple[int, int], Stored]]) -> list[Stored]:
    return [stored for _, stored in sorted(group, key=lambda member: member[0])]


def _is_moved(info: TensorInfo) -> bool:
    return bool(info.offset_bytes % PLAIN_DTYPES.get(info.dtype, torch.uint8).itemsize)


def _map(file: str) -> tuple[mmap.mmap, Tensor, int, int]:
    """The file as a read-only map, as one uint8 tensor over it, that one's address, and open for those who read it."""
    descriptor = -1
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        mapped = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        _close([descriptor] if descriptor >= 0 else [])
        raise ConfigError(f"{file} cannot be read: {error}.", "Check the path and its owner.") from error
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given buffer is not writable")  # nobody writes to weights
        whole = torch.frombuffer(mapped, dtype=torch.uint8)
    return mapped, whole, whole.data_ptr(), descriptor


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def check_size(spec: ModelSpec) -> None:
    """Refuse a file that has become shorter than its header says since it was read."""
    try:
        sizes = {file: Path(file).stat().st_size for file in spec.files}
    except OSError as error:
        raise ConfigError(f"{error.filename} cannot be read: {error.strerror}.", "Check the path.") from error
    for info in spec.tensors:
        size = sizes[info.file]
        if info.offset_bytes + info.size_bytes > size:
            raise UnsupportedFormat(
                f"{info.file} has {size:,} bytes; {info.name} ends at {info.offset_bytes + info.size_bytes:,}.",
                "The file changed after it was imported: import it again.",
            )
