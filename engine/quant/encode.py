"""From plain weights to codes, each number to its nearest. Rows are independent: a stack equals its parts."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from engine.quant.coded_tensor import FIXED_GROUPS, OUTLIER_SIZE, CodedTensor, Outliers

E4M3_MAX = 448.0
FP8_TOPS = (448.0, 416.0, 384.0, 352.0, 320.0, 288.0, 256.0, 240.0)  # an octave of codes
FP8_SAMPLE = 1024  # numbers of a group by which its multiplier is chosen
E2M1_MAX = 6.0
DEFAULT_GROUPS = {"int4": 128, **FIXED_GROUPS}  # of the other kinds: a row
SMALLEST_SCALE = 1e-12  # of a group of zeros


def encode(
    weight: Tensor,
    kind: str,
    group: int | None = None,
    *,
    asymmetric: bool = False,
    scales: torch.dtype = torch.float16,
) -> CodedTensor:
    """Round to nearest with the largest of each group at the end of the range.

    group: neighbours that share a scale; None: what is usual. asymmetric: int4 between the least and the largest,
        whose multipliers are kept in scales
    Shapes: weight [N, K], K a multiple of group, of any float type
    """
    columns = weight.shape[1]
    size = group or DEFAULT_GROUPS.get(kind, columns)
    assert columns % size == 0, (columns, size)
    assert kind not in FIXED_GROUPS or size == FIXED_GROUPS[kind], (kind, size)
    wide = weight.to(torch.float32).view(weight.shape[0], -1, size)
    if kind == "int4" and asymmetric:
        return _int4_asymmetric(wide, scales)
    return {"fp8": _fp8, "int8": _int8, "int4": _int4, "fp4_nv": _fp4_nv, "fp4_mx": _fp4_mx}[kind](wide)


def encode_mixed(
    weight: Tensor, columns: Tensor, dtype: torch.dtype = torch.float16, threshold: float = OUTLIER_SIZE
) -> CodedTensor:
    """int8 with a scale a row, but for some input columns, which are kept. threshold: see Outliers

    Shapes: weight [N, K]; columns [k] int, ascending
    """
    at = columns.to(torch.int64)
    kept = weight[:, at].to(dtype)
    rest = weight.to(torch.float32).index_fill(1, at, 0.0)
    coded = _int8(rest.unsqueeze(1))
    outliers = Outliers(columns.to(torch.int32), kept.contiguous(), threshold)
    return CodedTensor("int8", coded.shape, coded.codes, coded.scales, outliers=outliers)


def _shape(wide: Tensor) -> tuple[int, int]:
    return wide.shape[0], wide.shape[1] * wide.shape[2]


def _largest(wide: Tensor) -> Tensor:
    return wide.abs().amax(dim=-1).clamp_min(SMALLEST_SCALE)


def encode_fp8(weight: Tensor, group: int, importance: Tensor | None = None) -> CodedTensor:
    """E4M3 with a multiplier for each group of a row, the errors of whose columns count as much as they matter.

    Shapes: weight [N, K], K a multiple of group; importance [K], of squared errors of each column, None: all alike
    """
    return _fp8(weight.to(torch.float32).view(weight.shape[0], -1, group), importance)


def _fp8(wide: Tensor, importance: Tensor | None = None) -> CodedTensor:
    """The largest of a group becomes that one of the highest codes with which the group's squared error is least.

    Multipliers of groups are kept in 16 bits, those of rows in 32. Steps of E4M3 double at powers of two: where a
    group's many numbers lie between them decides how far they are rounded.
    """
    size = wide.shape[-1]
    step = max(1, size // FP8_SAMPLE)  # enough to judge by
    sample = wide[..., ::step]
    weights = None if importance is None else importance.to(wide.device).view(-1, size)[:, ::step]
    largest, kept = _largest(wide), torch.float32 if wide.shape[1] == 1 else torch.bfloat16
    scales, least = largest, None
    for code in FP8_TOPS:
        tried = (largest / code).to(kept).to(torch.float32)
        error = (sample - _e4m3(sample, tried).to(torch.float32) * tried.unsqueeze(-1)).square_()
        cost = (error if weights is None else error * weights).sum(dim=-1)
        if least is None:
            scales, least = tried, cost
            continue
        scales = torch.where(cost < least, tried, scales)
        least = torch.minimum(cost, least)
    numbers = _e4m3(wide, scales)
    return CodedTensor("fp8", _shape(wide), numbers.view(torch.uint8).view(_shape(wide)), scales.to(kept))


def _e4m3(wide: Tensor, scales: Tensor) -> Tensor:
    return (wide / scales.unsqueeze(-1)).clamp_(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)


def _int8(wide: Tensor) -> CodedTensor:
    scales = _largest(wide) / 127.0
    codes = (wide / scales.unsqueeze(-1)).round_().clamp_(-127, 127).to(torch.int8)
    return CodedTensor("int8", _shape(wide), codes.view(_shape(wide)), scales)


def _int4(wide: Tensor) -> CodedTensor:
    scales = (_largest(wide) / 7.0).to(torch.float16).clamp_min(2.0**-24)
    codes = (wide / scales.to(torch.float32).unsqueeze(-1)).round_().clamp_(-8, 7) + 8.0
    return CodedTensor("int4", _shape(wide), _pairs(codes.to(torch.uint8).view(_shape(wide))), scales)


def _int4_asymmetric(wide: Tensor, kept: torch.dtype) -> CodedTensor:
    least, most = wide.amin(dim=-1).clamp_max(0.0), wide.amax(dim=-1).clamp_min(0.0)
    scales = ((most - least).clamp_min(SMALLEST_SCALE) / 15.0).to(kept)
    if kept is torch.float16:
        scales = scales.clamp_min(2.0**-24)
    steps = scales.to(torch.float32)
    zeros = (-least / steps).round_().clamp_(0, 15)
    codes = ((wide / steps.unsqueeze(-1)).round_() + zeros.unsqueeze(-1)).clamp_(0, 15)
    packed = _pairs(codes.to(torch.uint8).view(_shape(wide)))
    return CodedTensor("int4", _shape(wide), packed, scales, zeros=zeros.to(torch.uint8))


def _fp4_nv(wide: Tensor) -> CodedTensor:
    """The tensor's multiplier is taken from each row, which is finer and lets rows be stacked."""
    largest = _largest(wide)
    row_scales = largest.amax(dim=-1) / (E2M1_MAX * E4M3_MAX)
    scales = (largest / E2M1_MAX / row_scales.unsqueeze(-1)).clamp(2.0**-9, E4M3_MAX).to(torch.float8_e4m3fn)
    steps = scales.to(torch.float32) * row_scales.unsqueeze(-1)
    codes = _nearest_e2m1(wide / steps.unsqueeze(-1)).view(_shape(wide))
    return CodedTensor("fp4_nv", _shape(wide), _pairs(codes), scales.view(torch.uint8), row_scales=row_scales)


def _fp4_mx(wide: Tensor) -> CodedTensor:
    """The least power of two with which the largest of a block is at most 6: nothing is cut off."""
    exponents = torch.ceil(torch.log2(_largest(wide) / E2M1_MAX)).clamp(-127, 127)
    codes = _nearest_e2m1(torch.ldexp(wide, -exponents.unsqueeze(-1).to(torch.int32))).view(_shape(wide))
    return CodedTensor("fp4_mx", _shape(wide), _pairs(codes), (exponents + 127).to(torch.uint8))


@cache
def _e2m1_borders(device: torch.device) -> Tensor:
    return torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], device=device)


def _nearest_e2m1(numbers: Tensor) -> Tensor:
    """-> codes, uint8; halfway ones to the even code, as conversions of hardware do."""
    size = numbers.abs().contiguous()
    borders = _e2m1_borders(numbers.device)
    below, above = torch.bucketize(size, borders, right=False), torch.bucketize(size, borders, right=True)
    codes = torch.where(below % 2 == 0, below, above)
    return (codes + 8 * (numbers < 0)).to(torch.uint8)


def _pairs(codes: Tensor) -> Tensor:
    """[N, K] codes below 16 -> [N, K/2] bytes"""
    return codes[:, 0::2] | (codes[:, 1::2] << 4)
