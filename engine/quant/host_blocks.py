"""Codes beside scales as rows of blocks that the CPU's kernels read, so that such checkpoints run at their speed.

coded                                 becomes    which is
int8, a scale a row                   I8_ROW     exact
int8, other groups that divide by 32  Q8_0       the same codes, scales to float16
int4 of groups that divide by 128     I4_G128    exact; I4Z_G128 where it has zeros
int4 of others that divide by 32      Q4_0       the same codes, scales to float16
... with zeros                        Q4_1       the same codes, scales and scale * zero to float16
fp4_mx                                MXFP4      exact
others, and codes in another order    F16        each number to float16, twice the memory or more
what float16 cannot hold so           F32        exact, four bytes a number

Float16 holds a row if nothing in it is off by more than float16's rounding of the row's largest number. What is too
small for that, or too large for float16, is held in the next form of the table that can hold it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.quant.coded_tensor import CodedTensor
from engine.quant.quant_tensor import QuantTensor

BLOCK = 32
WIDE_BLOCK = 128
ROWS_AT_ONCE = 1024
MOST_ROW_COLUMNS = 1 << 16  # the kernels add a row's products in 32 bits
LARGEST_ZERO = 15.0  # of int4: an offset is that many scales at most
# Of float16: how far off a normal number is at most; bits of its size; the least normal number, and infinity, as bits.
HALF_ROUNDING = 2.0**-11
HALF_SIZE, HALF_NORMAL, HALF_INFINITE = 0x7FFF, 0x0400, 0x7C00
FORMS_VERSION = 3  # raise it with every change of which kind a weight becomes: packed ones are kept for later starts


def as_blocks(weight: CodedTensor) -> QuantTensor | Tensor:
    """The same numbers, or the nearest the kind has. Shapes: (N, K)"""
    rows, columns = weight.shape
    plain = weight.outliers is None and weight.columns is None
    whole = plain and weight.group % BLOCK == 0 and columns % BLOCK == 0
    if weight.kind == "fp4_mx" and whole:
        return _rows("MXFP4", weight, weight.scales.unsqueeze(-1), _halves(weight))
    if weight.kind == "int8" and plain and weight.scales.shape[1] == 1 and columns <= MOST_ROW_COLUMNS:
        # A column of a transposed matrix counts as contiguous whatever its stride: flatten it first.
        scale = weight.scales.to(torch.float32).flatten().contiguous().view(torch.uint8).view(rows, 4)
        return QuantTensor("I8_ROW", torch.cat((scale, weight.codes.view(torch.uint8)), dim=1), weight.shape)
    if weight.kind == "int4" and whole and weight.group % WIDE_BLOCK == 0:
        return _wide(weight)
    if weight.kind in ("int4", "int8") and whole:
        held = _narrow(weight)
        if held is not None:
            return held
    return _numbers(weight)


def _narrow(weight: CodedTensor) -> QuantTensor | None:
    """Blocks of 32 under float16 scales. None: these would not be near enough."""
    exact = weight.scales.to(torch.float32)
    scales, largest = _half(exact), exact.abs().amax(dim=1, keepdim=True)
    if not _is_near(scales, exact, largest):
        return None
    spread = _spread(scales, weight)
    if weight.kind == "int8":
        return _rows("Q8_0", weight, spread, weight.codes.view(torch.uint8).reshape(weight.shape[0], -1, BLOCK))
    if weight.zeros is None:
        return _rows("Q4_0", weight, spread, _halves(weight))
    offsets = -exact * weight.zeros.to(torch.float32)
    least = _half(offsets)
    if not _is_near(least, offsets, largest * LARGEST_ZERO):
        return None
    return _rows("Q4_1", weight, spread, _spread(least, weight), _halves(weight))


def _numbers(weight: CodedTensor) -> Tensor:
    """Each number in float16, or in float32 where that is needed."""
    rows, columns = weight.shape
    out = torch.empty(rows, columns, dtype=torch.float16)
    for start in range(0, rows, ROWS_AT_ONCE):
        wide = weight.dequantize(slice(start, start + ROWS_AT_ONCE))
        tile = out[start : start + ROWS_AT_ONCE]
        tile.copy_(wide)
        # A row whose largest number is a normal one is near: its other numbers are as near as that one.
        largest = (tile.view(torch.int16) & HALF_SIZE).amax(dim=1)
        odd = (largest < HALF_NORMAL) | (largest >= HALF_INFINITE)
        if bool(odd.any()) and not _is_near(tile[odd], wide[odd], wide[odd].abs().amax(dim=1, keepdim=True)):
            return _wide_numbers(weight)
    return out


def _wide_numbers(weight: CodedTensor) -> Tensor:
    out = torch.empty(weight.shape, dtype=torch.float32)
    for start in range(0, weight.shape[0], ROWS_AT_ONCE):
        out[start : start + ROWS_AT_ONCE] = weight.dequantize(slice(start, start + ROWS_AT_ONCE))
    return out


def _is_near(held: Tensor, exact: Tensor, largest: Tensor) -> bool:
    """Whether nothing is off by more than rounding is of the largest beside it. Infinite ones are not."""
    return bool(((held.to(torch.float32) - exact).abs() <= largest * HALF_ROUNDING).all())


def _wide(weight: CodedTensor) -> QuantTensor:
    """Four-bit codes under float32 scales, and offsets where there are zeros."""
    scales = weight.scales.to(torch.float32)
    fields = [scales] if weight.zeros is None else [scales, -scales * weight.zeros.to(torch.float32)]
    spread = [field.repeat_interleave(weight.group // WIDE_BLOCK, dim=1).contiguous() for field in fields]
    heads = torch.stack(spread, dim=-1).view(torch.uint8)  # [N, K / 128, 4 or 8]
    codes = _halves(weight).reshape(weight.shape[0], -1, WIDE_BLOCK // 2)
    return _rows("I4_G128" if weight.zeros is None else "I4Z_G128", weight, heads, codes)


def _half(numbers: Tensor) -> Tensor:
    return numbers.to(torch.float16)


def _spread(scales: Tensor, weight: CodedTensor) -> Tensor:
    """[N, G] float16 -> [N, K / 32, 2] bytes"""
    per_block = scales.repeat_interleave(weight.group // BLOCK, dim=1).contiguous()
    return per_block.unsqueeze(-1).view(torch.uint8)


def _halves(weight: CodedTensor) -> Tensor:
    """Nibbles of neighbours made those of elements i and i + 16 of a block -> [N, K / 32, 16] bytes"""
    pairs = weight.codes.reshape(weight.shape[0], -1, BLOCK // 2)
    codes = torch.stack((pairs & 15, pairs >> 4), dim=-1).flatten(-2)
    return codes[..., : BLOCK // 2] | (codes[..., BLOCK // 2 :] << 4)


def _rows(kind: str, weight: CodedTensor, *fields: Tensor) -> QuantTensor:
    return QuantTensor(kind, torch.cat(fields, dim=-1).reshape(weight.shape[0], -1), weight.shape)
