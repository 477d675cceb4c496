"""CodedTensor: a weight as codes and their multipliers in tensors of their own, which device kernels stream.

Every member has a row an output feature, so that rows can be taken, put in order and stacked.

    kind     codes                        scales                                      a number is
    fp8      uint8 [N, K], E4M3           float [N, G]                                e4m3(code) * scale
    int8     int8 [N, K]                  float [N, G]                                code * scale
    int4     uint8 [N, K/2]               float [N, G]                                (code - zero) * scale, zero 8
    fp4_nv   uint8 [N, K/2], E2M1         uint8 [N, K/16], E4M3; row_scales [N]       e2m1(code) * (e4m3 * row scale)
    fp4_mx   uint8 [N, K/2], E2M1         uint8 [N, K/32], E8M0                       e2m1(code) * 2 ** (byte - 127)

Half-byte codes: byte j has number 2j in its low half and 2j + 1 in its high one. G groups of K / G neighbours share a
scale: G is 1 for a scale a row (a scale a tensor is given to each row). float is float32, float16 or bfloat16.
Source: OFP8 rev 1.0; OCP Microscaling Formats 1.0
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engine.errors import UnsupportedFormat
from engine.quant.low_bits import E2M1_DOUBLED, looked_up
from engine.quant.quant_tensor import stacked

CODED_KINDS = ("fp8", "int8", "int4", "fp4_nv", "fp4_mx")
HALF_BYTE_KINDS = ("int4", "fp4_nv", "fp4_mx")
FIXED_GROUPS = {"fp4_nv": 16, "fp4_mx": 32}
NAN_CODE = 0x7F  # of E4M3, with either sign
LARGEST_SCALE = 2.0**112  # under which the largest codes of every kind are finite in float32
LARGEST_EXPONENT = 127 + 112  # the same of E8M0; 255 is no number
OUTLIER_SIZE = 6.0  # from where an input is an outlier, if nothing was learnt of its usual size


@dataclass(frozen=True, slots=True, eq=False)
class Outliers:
    """Input columns that are multiplied in half precision; the codes of these columns count for nothing.

    Shapes: columns [k] int32, ascending; weights [N, k] of a 16-bit float
    """

    columns: Tensor
    weights: Tensor
    threshold: float = OUTLIER_SIZE  # an input beyond it in another column is one that was missed


@dataclass(frozen=True, slots=True, eq=False)
class CodedTensor:
    kind: str  # of CODED_KINDS
    shape: tuple[int, int]  # (N, K) in numbers
    codes: Tensor
    scales: Tensor
    zeros: Tensor | None = None  # int4: uint8 [N, G], where it is not 8
    row_scales: Tensor | None = None  # fp4_nv: float32 [N]
    columns: Tensor | None = None  # int32 [K]: the input column each column of codes multiplies, if not its own
    outliers: Outliers | None = None  # int8

    def __post_init__(self) -> None:
        rows, columns = self.shape
        halves = 2 if self.kind in HALF_BYTE_KINDS else 1
        assert self.kind in CODED_KINDS, self.kind
        assert columns % halves == 0, self.shape
        assert tuple(self.codes.shape) == (rows, columns // halves), (self.kind, self.shape, self.codes.shape)
        assert self.codes.dtype is (torch.int8 if self.kind == "int8" else torch.uint8), self.codes.dtype
        assert self.scales.dim() == 2, self.scales.shape
        assert self.scales.shape[0] == rows, self.scales.shape
        assert columns % self.scales.shape[1] == 0, (self.shape, self.scales.shape)
        assert self.kind not in FIXED_GROUPS or self.group == FIXED_GROUPS[self.kind], (self.kind, self.group)
        assert (self.row_scales is not None) == (self.kind == "fp4_nv"), self.kind
        assert self.zeros is None or (self.kind == "int4" and self.zeros.shape == self.scales.shape), self.kind
        assert self.outliers is None or self.kind == "int8", self.kind

    @property
    def group(self) -> int:
        """Neighbouring numbers of a row that share a scale."""
        return self.shape[1] // int(self.scales.shape[1])

    @property
    def num_bytes(self) -> int:
        members = [self.codes, self.scales, self.zeros, self.row_scales, self.columns]
        if self.outliers is not None:
            members += [self.outliers.columns, self.outliers.weights]
        return sum(member.numel() * member.element_size() for member in members if member is not None)

    def take(self, rows: slice | Tensor) -> CodedTensor:
        """Some rows in the order given: a view for a slice, a copy for an index tensor [n]."""

        def of(member: Tensor | None) -> Tensor | None:
            return None if member is None else member[rows]

        codes, scales = self.codes[rows], self.scales[rows]
        outliers = None if self.outliers is None else replace(self.outliers, weights=self.outliers.weights[rows])
        return replace(
            self,
            shape=(codes.shape[0], self.shape[1]),
            codes=codes,
            scales=scales,
            zeros=of(self.zeros),
            row_scales=of(self.row_scales),
            outliers=outliers,
        )

    def to(self, device: torch.device | str) -> CodedTensor:
        def there(member: Tensor | None) -> Tensor | None:
            return None if member is None else member.to(device)

        moved = None
        if self.outliers is not None:
            there_too = self.outliers.columns.to(device), self.outliers.weights.to(device)
            moved = Outliers(*there_too, self.outliers.threshold)
        return replace(
            self,
            codes=self.codes.to(device),
            scales=self.scales.to(device),
            zeros=there(self.zeros),
            row_scales=there(self.row_scales),
            columns=there(self.columns),
            outliers=moved,
        )

    def dequantize(self, rows: slice | Tensor | None = None) -> Tensor:
        """The numbers of some rows -> [n, K] float32, columns in the input's order. None: all; only for small ones."""
        part = self if rows is None else self.take(rows)
        count, width = part.shape
        groups = part.scales.shape[1]
        wide = _codes(part).view(count, groups, -1)
        if part.zeros is not None:
            wide = wide - part.zeros.to(torch.float32).unsqueeze(-1)
        elif part.kind == "int4":
            wide = wide - 8.0
        numbers = (wide * _scales(part).unsqueeze(-1)).view(count, width)
        if part.outliers is not None:
            numbers[:, part.outliers.columns.to(torch.int64)] = part.outliers.weights.to(torch.float32)
        if part.columns is not None:
            numbers = torch.empty_like(numbers).index_copy_(1, part.columns.to(torch.int64), numbers)
        return numbers

    def dequantize_at(self, rows: Tensor) -> Tensor:
        """The numbers of the rows listed in an index tensor [n] -> [n, K] float32."""
        return self.dequantize(rows.to(torch.int64))


def check_exponents(scales: Tensor, name: str, kind: str) -> Tensor:
    """The same E8M0 bytes. Raises: UnsupportedFormat where one is not a number, or numbers under it may be none"""
    bad = int((scales > LARGEST_EXPONENT).sum())
    if bad:
        raise _no_numbers(name, bad, kind)
    return scales


def check_codes(weight: CodedTensor, name: str) -> CodedTensor:
    """The same, after looking at each code: kernels decode codes that are no numbers to wrong ones.

    Raises: UnsupportedFormat when a code or a scale is not a number, or numbers under a scale may be none
    """
    found = []
    if weight.kind == "fp8":
        found.append((weight.codes & NAN_CODE) == NAN_CODE)
    if weight.kind == "fp4_nv":
        found.append((weight.scales & NAN_CODE) == NAN_CODE)
    elif weight.kind == "fp4_mx":
        found.append(weight.scales > LARGEST_EXPONENT)
    else:
        found.append(~(weight.scales.to(torch.float32).abs() <= LARGEST_SCALE))  # in float16 the bound is infinite
    if weight.row_scales is not None:
        found.append(~(weight.row_scales.abs() <= LARGEST_SCALE))
    bad = int(torch.stack([member.sum() for member in found]).sum())
    if bad:
        raise _no_numbers(name, bad, weight.kind)
    return weight


def _no_numbers(name: str, count: int, kind: str) -> UnsupportedFormat:
    return UnsupportedFormat(
        f"{name} holds {count:,} {kind} codes that are not numbers, or multipliers beyond them.",
        "Download the checkpoint again.",
    )


def stack_coded(parts: list[CodedTensor]) -> CodedTensor:
    """One matrix with the parts' rows in order. They must be alike: see stackable. Copies, but codes that are
    neighbours already."""
    first = parts[0]
    assert all(stackable(first, part) for part in parts)

    def joined(members: list[Tensor | None]) -> Tensor | None:
        present = [member for member in members if member is not None]
        return torch.cat(present) if present else None

    zeros = [part.zeros for part in parts]
    if any(member is not None for member in zeros):
        zeros = [_eights(part) if part.zeros is None else part.zeros for part in parts]
    outliers = first.outliers
    if outliers is not None:
        outliers = replace(outliers, weights=torch.cat([p.outliers.weights for p in parts if p.outliers is not None]))
    return replace(
        first,
        shape=(sum(part.shape[0] for part in parts), first.shape[1]),
        codes=stacked([part.codes for part in parts]),
        scales=torch.cat([part.scales for part in parts]),
        zeros=joined(zeros),
        row_scales=joined([part.row_scales for part in parts]),
        outliers=outliers,
    )


def stackable(first: CodedTensor, second: CodedTensor) -> bool:
    """Whether two weights can stand above one another: same kind, width, groups, column order and outlier columns."""
    alike = first.kind == second.kind and first.shape[1] == second.shape[1] and first.group == second.group
    if not alike or first.scales.dtype != second.scales.dtype:
        return False
    if (first.columns is None) != (second.columns is None) or (first.outliers is None) != (second.outliers is None):
        return False
    if first.columns is not None and second.columns is not None and not torch.equal(first.columns, second.columns):
        return False
    if first.outliers is None or second.outliers is None:
        return True
    same = torch.equal(first.outliers.columns, second.outliers.columns)
    return same and first.outliers.weights.dtype == second.outliers.weights.dtype


def _eights(part: CodedTensor) -> Tensor:
    return torch.full(part.scales.shape, 8, dtype=torch.uint8, device=part.codes.device)


def _codes(part: CodedTensor) -> Tensor:
    """-> [N, K] float32, before zeros and scales"""
    if part.kind == "fp8":
        return part.codes.view(torch.float8_e4m3fn).to(torch.float32)
    if part.kind == "int8":
        return part.codes.to(torch.float32)
    nibbles = torch.stack((part.codes & 15, part.codes >> 4), dim=-1).view(part.shape)
    if part.kind == "int4":
        return nibbles.to(torch.float32)
    return looked_up(nibbles, E2M1_DOUBLED) * 0.5


def _scales(part: CodedTensor) -> Tensor:
    """-> [N, G] float32"""
    if part.kind == "fp4_nv":
        assert part.row_scales is not None
        return part.scales.view(torch.float8_e4m3fn).to(torch.float32) * part.row_scales.unsqueeze(-1)
    if part.kind == "fp4_mx":
        exponents = part.scales.to(torch.int32)
        return torch.where(exponents == 0, 0x00400000, exponents << 23).view(torch.float32)
    return part.scales.to(torch.float32)
