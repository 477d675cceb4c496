"""QuantTensor: a weight matrix as it lies in the checkpoint, one row of block bytes an output feature."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.ggml_types import TYPE_BY_NAME
from engine.quant.gguf_blocks import dequantise_rows


@dataclass(frozen=True, slots=True, eq=False)
class QuantTensor:
    """Rows of blocks; usually a view of the mapped file, never copied until a kernel packs it.

    Shapes: data [N, row_bytes] uint8, any row order the loader chose; shape is (N, K) in elements
    """

    kind: str  # a name of engine.ggml_types
    data: Tensor
    shape: tuple[int, int]

    def __post_init__(self) -> None:
        stored = TYPE_BY_NAME[self.kind]
        rows, columns = self.shape
        assert self.data.dtype is torch.uint8, self.data.dtype
        assert columns % stored.block_elements == 0, (self.kind, self.shape)
        assert tuple(self.data.shape) == (rows, stored.row_bytes(columns)), (self.kind, self.shape, self.data.shape)

    @property
    def num_bytes(self) -> int:
        return self.data.numel()

    def dequantize(self, rows: slice | None = None) -> Tensor:
        """The numbers of some rows -> [n, K] float32 on the data's device. None: all; only for small ones."""
        return dequantise_rows(self.kind, self.data if rows is None else self.data[rows])

    def dequantize_at(self, rows: Tensor) -> Tensor:
        """The numbers of the rows listed in an index tensor [n] -> [n, K] float32."""
        return dequantise_rows(self.kind, self.data[rows])

    def to(self, device: torch.device | str) -> QuantTensor:
        return QuantTensor(self.kind, self.data.to(device), self.shape)


def stack_bytes(parts: list[Tensor]) -> Tensor:
    """Rows of bytes [n, row_bytes] under one another.

    On a device, parts that lie so already are left where they are: the result is the same memory. On the host numpy
    copies them, in this thread: torch would wake its pool for each few hundred kilobytes, which on a busy machine costs
    more than the copy.
    """
    if parts[0].device.type != "cpu":
        return stacked(parts)
    return torch.from_numpy(np.concatenate([part.numpy() for part in parts]))


def stacked(parts: list[Tensor]) -> Tensor:
    """Rows under one another; a view of the parts where they are neighbours in one storage, else a copy."""
    first = parts[0]
    storage, end = first.untyped_storage().data_ptr(), first.data_ptr()
    for part in parts:
        neighbour = part.data_ptr() == end and part.is_contiguous() and part.untyped_storage().data_ptr() == storage
        if not neighbour or part.dtype != first.dtype or part.shape[1:] != first.shape[1:]:
            return torch.cat(parts)
        end += part.nbytes
    return first.as_strided((sum(part.shape[0] for part in parts), *first.shape[1:]), first.stride())


def take_bytes(data: Tensor, rows: Tensor) -> Tensor:
    """The rows of bytes listed, in that order; a copy, made as in stack_bytes."""
    if data.device.type != "cpu":
        return data[rows]
    return torch.from_numpy(data.numpy()[rows.numpy()])


def concatenate_rows(parts: list[QuantTensor]) -> QuantTensor:
    """One matrix with the parts' rows in order; the parts must agree in kind and K. Copies the bytes."""
    kind, columns = parts[0].kind, parts[0].shape[1]
    assert all(p.kind == kind and p.shape[1] == columns for p in parts)
    return QuantTensor(kind, stack_bytes([p.data for p in parts]), (sum(p.shape[0] for p in parts), columns))
