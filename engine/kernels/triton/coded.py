"""CodedWeight: a quantised weight with its codes and multipliers apart, in the order that the kernels here stream.

    code   codes                    a number is
    fp8    uint8 [N, K], E4M3       e4m3(code) * scale
    int8   int8 [N, K]              (code + 128 - zero) * scale, zero 128 where there are none
    int4   uint8 [N, K/2]           (code - zero) * scale, zero 8 where there are none
    fp4    uint8 [N, K/2], E2M1     e2m1(code) * scale

Half-byte codes stand in blocks of 32 numbers and 16 bytes: byte j has number j in its low half and j + 16 in its high
one, so that each half meets neighbouring inputs. E2M1 with multipliers of 16 numbers stands in blocks of 16 numbers and
8 bytes, likewise: a 64-bit word of codes then has one multiplier. Source: OFP8 rev 1.0; OCP Microscaling Formats 1.0
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.kernels.triton import gguf_codes
from engine.quant.coded_tensor import OUTLIER_SIZE, CodedTensor
from engine.quant.quant_tensor import QuantTensor

CODES = ("fp8", "int8", "int4", "fp4")
HALF_BYTES = ("int4", "fp4")
BLOCK = 32  # of half-byte codes
SQUARE = 128  # rows and columns of a block of E4M3


@dataclass(frozen=True, slots=True, eq=False)
class CodedWeight:
    """Shapes: scales [N, G], G groups a row; row_scales [N]; zeros [N, G]; outlier_weights [N, k]

    block_scales [N/128, K/128]
    """

    code: str
    shape: tuple[int, int]  # (N, K) in numbers
    codes: Tensor
    scales: Tensor  # a float type, or uint8 where scale_code says how to read a byte
    scale_code: str = "float"  # "float", "e4m3", "e8m0"
    zeros: Tensor | None = None  # uint8, or float32 where they are not whole
    row_scales: Tensor | None = None  # float32, times the group's scale
    pairs: Tensor | None = None  # int32 [N, G]: see paired
    outlier_columns: Tensor | None = None  # [k] int32: inputs whose codes are zero, kept in 16 bits beside
    outlier_weights: Tensor | None = None
    outlier_threshold: float = OUTLIER_SIZE
    apart: int = BLOCK // 2  # numbers between a byte's low one and its high one
    small: bool = False  # no multiplier of E8M0 is above 2
    block_scales: Tensor | None = None  # float32, of E4M3: the scales, where blocks of 128 x 128 share each

    def __post_init__(self) -> None:
        rows, columns = self.shape
        assert self.code in CODES, self.code
        assert tuple(self.codes.shape) == (rows, columns // self.numbers_a_byte), (self.shape, self.codes.shape)
        assert self.code not in HALF_BYTES or columns % BLOCK == 0, self.shape
        assert columns % self.scales.shape[1] == 0, (self.shape, self.scales.shape)

    @property
    def numbers_a_byte(self) -> int:
        return 2 if self.code in HALF_BYTES else 1

    @property
    def group(self) -> int:
        """Neighbouring numbers of a row that share a scale."""
        return self.shape[1] // int(self.scales.shape[1])

    @property
    def num_bytes(self) -> int:
        members = (self.codes, self.scales, self.zeros, self.row_scales, self.pairs, self.outlier_weights)
        return sum(member.numel() * member.element_size() for member in members if member is not None)


def coded(weight: CodedTensor | QuantTensor, *, blocks: bool = False) -> CodedWeight:
    """A weight in this form, on its device. Copies what needs another order; exact.

    blocks: of 32 for all half bytes. The inputs are put in the order of the weight's columns before
    (CodedTensor.columns). The kind is one of KINDS.
    """
    if isinstance(weight, QuantTensor):
        return _from_blocks(weight)
    codes = weight.codes.contiguous()
    apart = BLOCK // 4 if weight.kind == "fp4_nv" and weight.group == BLOCK // 2 and not blocks else BLOCK // 2
    if weight.kind in ("int4", "fp4_nv", "fp4_mx"):
        codes = _half_blocks(codes, apart)
    kept, columns, threshold = None, None, OUTLIER_SIZE
    if weight.outliers is not None:
        kept, columns = weight.outliers.weights.contiguous(), weight.outliers.columns
        threshold = weight.outliers.threshold
        codes = codes.index_fill(1, columns.to(torch.int64), 0)
    scales, zeros = weight.scales.contiguous(), weight.zeros
    code, scale_code = KINDS[weight.kind if kept is None else "int8_mixed"]
    if scale_code == "float" and scales.shape[1] == 1 and code != "int4":
        scales = scales.to(torch.float32)
    elif scale_code == "float":
        repeats = weight.group // _group(weight.group)
        scales = _narrow(scales).repeat_interleave(repeats, dim=1)
        zeros = None if zeros is None else zeros.repeat_interleave(repeats, dim=1)
    pairs = paired(scales, zeros)
    more = columns, kept, threshold, apart, _is_small(scales, scale_code), _of_blocks(weight)
    return CodedWeight(code, weight.shape, codes, scales, scale_code, zeros, weight.row_scales, pairs, *more)


def _of_blocks(weight: CodedTensor) -> Tensor | None:
    rows, groups = weight.scales.shape
    if weight.kind != "fp8" or weight.group != SQUARE or rows % SQUARE:
        return None
    blocks = weight.scales.view(rows // SQUARE, SQUARE, groups)
    return blocks[:, 0].to(torch.float32).contiguous() if bool((blocks == blocks[:, :1]).all()) else None


def _is_small(scales: Tensor, scale_code: str) -> bool:
    return scale_code == "e8m0" and int(scales.max()) <= 128


def paired(scales: Tensor, zeros: Tensor | None) -> Tensor | None:
    """A group's scale and zero point in one word, to be read at once: the float16 scale below 1 + zero / 256.

    None where there are no zero points below 16, or scales of another type
    """
    if zeros is None or zeros.dtype != torch.uint8 or scales.dtype != torch.float16:
        return None
    middles = 1.0 + zeros.to(torch.float16) / 256.0
    return torch.stack((scales, middles), dim=-1).view(torch.int32).squeeze(-1)


def _group(size: int) -> int:
    """The largest group that kernels take and that divides one of this size."""
    return next(group for group in (128, 64, 32, 16) if size % group == 0)


# Kinds of CodedTensor (lower case) and of QuantTensor: their code and how their scales are read.
KINDS = {
    "fp8": ("fp8", "float"),
    "int8": ("int8", "float"),
    "int8_mixed": ("int8", "float"),
    "int4": ("int4", "float"),
    "fp4_nv": ("fp4", "e4m3"),
    "fp4_mx": ("fp4", "e8m0"),
    "Q8_0": ("int8", "float"),
    "Q4_0": ("int4", "float"),
    "Q4_1": ("int4", "float"),
    "MXFP4": ("fp4", "e8m0"),
    **{kind: ("int4" if kind in gguf_codes.HALF_BYTE_KINDS else "int8", "float") for kind in gguf_codes.SPLIT},
}
_HEADER_BYTES = {"Q8_0": 2, "Q4_0": 2, "Q4_1": 4, "MXFP4": 1}
_BLOCK_BYTES = {"Q8_0": 34, "Q4_0": 18, "Q4_1": 20, "MXFP4": 17}


def _from_blocks(weight: QuantTensor) -> CodedWeight:
    """Half-byte codes of these kinds stand in blocks of 32 already."""
    kind, rows = weight.kind, weight.shape[0]
    code, scale_code = KINDS[kind]
    if kind in gguf_codes.SPLIT:
        codes, scales, zeros = gguf_codes.put_together(kind, weight.data)
        return CodedWeight(code, weight.shape, codes, _narrow(scales), scale_code, zeros)
    blocks = weight.data.view(rows, -1, _BLOCK_BYTES[kind])
    codes = blocks[:, :, _HEADER_BYTES[kind] :].clone().view(rows, -1)  # words of codes are read at once
    header = blocks[:, :, : _HEADER_BYTES[kind]].contiguous()
    zeros = None
    if kind == "MXFP4":
        scales = header.view(rows, -1)
    else:
        halves = header.view(torch.float16).view(rows, -1, _HEADER_BYTES[kind] // 2)
        scales = halves[:, :, 0].contiguous()
        if kind == "Q4_1":
            least = halves[:, :, 1]
            # A scale of nothing: all numbers are the least one, which is then the scale of no code less one.
            flat = (scales == 0) & (least != 0)
            if bool(flat.any()):
                codes = codes.view(rows, -1, BLOCK // 2).masked_fill(flat.unsqueeze(-1), 0).view(rows, -1)
                scales = torch.where(flat, least, scales)
            wide = scales.to(torch.float32)
            zeros = -least.to(torch.float32) / torch.where(wide == 0, 1.0, wide)
    codes = codes.view(torch.int8) if code == "int8" else codes
    small = _is_small(scales, scale_code)
    return CodedWeight(code, weight.shape, codes, scales, scale_code, zeros, small=small)


def _half_blocks(pairs: Tensor, apart: int) -> Tensor:
    """Bytes of neighbours to bytes of numbers some apart. Shapes: [N, K/2] -> [N, K/2]"""
    rows = pairs.shape[0]
    numbers = torch.stack((pairs & 15, pairs >> 4), dim=-1).view(rows, -1, 2, apart)
    return (numbers[:, :, 0] | (numbers[:, :, 1] << 4)).view(rows, -1)


def _narrow(scales: Tensor) -> Tensor:
    """In 16 bits where that is exact."""
    for dtype in (torch.float16, torch.bfloat16):
        narrow = scales.to(dtype)
        if torch.equal(narrow.to(torch.float32), scales.to(torch.float32)):
            return narrow
    return scales
