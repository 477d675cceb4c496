"""PackedWeight: a matrix in the form the kernels read, and the row form that embeddings stay in."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.errors import UnsupportedFormat
from engine.kernels.cpu import abi
from engine.kernels.cpu.library import check, load
from engine.kernels.cpu.memory import huge_memory
from engine.quant.quant_tensor import QuantTensor

_KIND_OF_DTYPE = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


def kind_of(weight: QuantTensor | Tensor) -> str:
    """The weight's kind by its name in the library. Raises: UnsupportedFormat."""
    kind = weight.kind if isinstance(weight, QuantTensor) else _KIND_OF_DTYPE.get(weight.dtype, str(weight.dtype))
    if kind not in abi.KINDS:
        raise UnsupportedFormat(f"CPU kernels cannot read {kind}; they read {', '.join(abi.KINDS)}.")
    return kind


@dataclass(frozen=True, slots=True, eq=False)
class PackedWeight:
    """Shapes: data [bytes] uint8, tiles of 16 rows; shape is (N, K) in elements. Owns its bytes."""

    kind: str
    shape: tuple[int, int]
    data: Tensor
    struct: abi.Weight

    @property
    def num_bytes(self) -> int:
        return self.data.numel()

    @classmethod
    def over(cls, kind: str, shape: tuple[int, int], data: Tensor) -> PackedWeight:
        """Bytes that are packed already. Raises: UnsupportedFormat if they are not as many as such a matrix has."""
        if data.numel() != packed_bytes(kind, *shape):
            raise UnsupportedFormat(
                f"{data.numel():,} bytes are no packed {kind} matrix of {shape[0]} x {shape[1]}; "
                f"that has {packed_bytes(kind, *shape):,}."
            )
        struct = abi.Weight(packed=data.data_ptr(), n=shape[0], k=shape[1], kind=abi.KINDS.index(kind))
        return cls(kind, shape, data, struct)


@dataclass(frozen=True, slots=True, eq=False)
class RowTable:
    """An embedding table as the file has it: a few rows are read a step, so a packed copy would only cost memory."""

    kind: str
    shape: tuple[int, int]
    data: Tensor  # rows, kept alive
    row_bytes: int

    @property
    def num_bytes(self) -> int:
        return self.shape[0] * self.row_bytes


def source_rows(weight: QuantTensor | Tensor) -> tuple[Tensor, int]:
    """The rows' tensor, inner dimension contiguous, and the bytes from a row to the next."""
    data = weight.data if isinstance(weight, QuantTensor) else weight.detach()
    if data.stride(-1) != 1:
        data = data.contiguous()
    return data, data.stride(0) * data.element_size()


def packed_bytes(kind: str, rows: int, columns: int) -> int:
    """Bytes of a packed matrix. Raises: UnsupportedFormat."""
    size = int(load().bayard_packed_bytes(abi.KINDS.index(kind), rows, columns))
    if size < 0:
        raise UnsupportedFormat(f"A {kind} matrix of {rows} x {columns} does not divide into whole blocks.")
    return size


def pack(weight: QuantTensor | Tensor) -> PackedWeight:
    """Repack a matrix [N, K]; the source may be dropped afterwards. Raises: UnsupportedFormat."""
    kind = kind_of(weight)
    rows, columns = int(weight.shape[0]), int(weight.shape[1])
    data, stride_bytes = source_rows(weight)
    number = abi.KINDS.index(kind)
    packed = huge_memory(packed_bytes(kind, rows, columns))
    code = load().bayard_pack(number, data.data_ptr(), stride_bytes, rows, columns, packed.data_ptr())
    check(code, f"packing {kind} {rows} x {columns}")
    return PackedWeight.over(kind, (rows, columns), packed)


def keep_rows(weight: QuantTensor | Tensor) -> RowTable:
    """An embedding table, not copied. Raises: UnsupportedFormat."""
    kind = kind_of(weight)
    data, stride_bytes = source_rows(weight)
    return RowTable(kind, (int(weight.shape[0]), int(weight.shape[1])), data, stride_bytes)


def linear_struct(
    weight: PackedWeight,
    bias: Tensor | None,
    mode: int,
    prepare: int = abi.PLAIN,
    norm_weight: Tensor | None = None,
    eps: float = 0.0,
) -> abi.Linear:
    """The C form of a linear op; it points at weight, bias and norm_weight, which must outlive it."""
    return abi.Linear(
        weight=ctypes.pointer(weight.struct),
        bias=None if bias is None else bias.data_ptr(),
        norm_weight=None if norm_weight is None else norm_weight.data_ptr(),
        eps=eps,
        mode=mode,
        prepare=prepare,
    )
