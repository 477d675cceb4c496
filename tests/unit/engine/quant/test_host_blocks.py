"""Codes beside scales as the rows of blocks that the CPU's kernels read."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engine.quant.coded_tensor import CodedTensor
from engine.quant.encode import encode
from engine.quant.host_blocks import as_blocks
from engine.quant.quant_tensor import QuantTensor


def held(weight: CodedTensor) -> QuantTensor:
    made = as_blocks(weight)
    assert isinstance(made, QuantTensor)
    return made


def test_int8_of_a_scale_a_row_is_held_exactly() -> None:
    weight = encode(torch.randn(5, 70), "int8")
    rows = held(weight)
    assert rows.kind == "I8_ROW"
    assert rows.data.shape == (5, 74)
    assert rows.dequantize().equal(weight.dequantize())
    assert rows.dequantize_at(torch.tensor([3, 0])).equal(weight.dequantize()[[3, 0]])


def test_int8_of_groups_keeps_its_codes_as_q8_0() -> None:
    weight = encode(torch.randn(4, 128), "int8", 64)
    rows = held(weight)
    assert rows.kind == "Q8_0"
    torch.testing.assert_close(rows.dequantize(), weight.dequantize(), rtol=2**-11, atol=0)


def test_int8_wider_than_its_sums_hold_becomes_blocks() -> None:
    weight = encode(torch.randn(1, (1 << 16) + 32), "int8")
    assert held(weight).kind == "Q8_0"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("group", [128, 256])
@pytest.mark.parametrize("zeros", [False, True])
def test_int4_of_wide_groups_is_held_exactly(zeros: bool, group: int, dtype: torch.dtype) -> None:
    random = torch.Generator().manual_seed(5)
    codes = torch.randint(0, 256, (6, 384 if group == 128 else 512), dtype=torch.uint8, generator=random)
    rows, columns = codes.shape[0], 2 * codes.shape[1]
    scales = (torch.randn(rows, columns // group, generator=random) * 1e-6).to(dtype)  # too small for float16's best
    points = torch.randint(0, 16, scales.shape, dtype=torch.uint8, generator=random) if zeros else None
    weight = CodedTensor("int4", (rows, columns), codes, scales, zeros=points)
    made = held(weight)
    assert made.kind == ("I4Z_G128" if zeros else "I4_G128")
    truth = weight.dequantize()
    if dtype is torch.float32 and zeros:  # scale * zero is rounded there
        torch.testing.assert_close(made.dequantize(), truth, rtol=1e-6, atol=1e-11)
    else:
        assert made.dequantize().equal(truth)


@pytest.mark.parametrize(("zeros", "kind"), [(False, "Q4_0"), (True, "Q4_1")])
def test_int4_of_narrow_groups_keeps_its_codes(zeros: bool, kind: str) -> None:
    codes = torch.randint(0, 256, (3, 96), dtype=torch.uint8)
    scales = torch.rand(3, 3) * 0.1 + 0.01
    points = torch.randint(0, 16, (3, 3), dtype=torch.uint8) if zeros else None
    weight = CodedTensor("int4", (3, 192), codes, scales, zeros=points)
    made = held(weight)
    assert made.kind == kind
    torch.testing.assert_close(made.dequantize(), weight.dequantize(), rtol=2**-10, atol=2e-3)


KINDS = [("fp8", None), ("fp8", 32), ("fp4_nv", None), ("int8", 32), ("int4", 32)]


def scaled(kind: str, group: int | None, factor: float, *, zeros: bool = False) -> CodedTensor:
    """Codes of usual numbers under multipliers that are as many times what they were."""
    torch.manual_seed(6)
    weight = encode(torch.randn(7, 256) * 0.02, kind, group, asymmetric=zeros)
    if weight.row_scales is not None:
        return replace(weight, row_scales=weight.row_scales * factor)
    return replace(weight, scales=weight.scales.to(torch.float32) * factor)


def decoded(made: QuantTensor | torch.Tensor) -> torch.Tensor:
    return made.to(torch.float32) if isinstance(made, torch.Tensor) else made.dequantize()


@pytest.mark.parametrize("factor", [1e-12, 1e-8, 1e-6, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 1e3, 1e6, 1e9])
@pytest.mark.parametrize(("kind", "group"), KINDS)
@pytest.mark.parametrize("zeros", [False, True])
def test_no_multiplier_is_too_small_or_too_large_to_be_held(
    kind: str, group: int | None, zeros: bool, factor: float
) -> None:
    if zeros and kind != "int4":
        return
    weight = scaled(kind, group, factor, zeros=zeros)
    truth = weight.dequantize()
    error = (decoded(as_blocks(weight)) - truth).abs().amax(dim=1)
    # Of a grouped scale and of an offset that are rounded, both with codes beyond their middle.
    assert bool((error <= truth.abs().amax(dim=1) * 2.0**-9).all()), float(error.max())


@pytest.mark.parametrize(
    ("kind", "group", "zeros"), [*((*kind, False) for kind in KINDS), ("int4", 32, True), ("int4", 64, True)]
)
def test_usual_weights_are_held_as_they_were(kind: str, group: int | None, zeros: bool) -> None:
    """In half the bytes of float32 or fewer, also where rows are zeros and where multipliers are of 16 bits."""
    weight = scaled(kind, group, 1.0, zeros=zeros)
    if weight.zeros is None:
        weight.codes[2] = 8 * 17 if kind == "int4" else 0
    else:  # of each size under scales of each fraction
        weight.zeros.copy_(torch.arange(weight.zeros.numel()).view(weight.zeros.shape) % 16)
    weight.scales[3, :1] = 0
    made = as_blocks(weight)
    blocks = {"int8": "Q8_0", "int4": "Q4_1" if zeros else "Q4_0"}
    assert (made.dtype if isinstance(made, torch.Tensor) else made.kind) == blocks.get(kind, torch.float16)
    if weight.scales.is_floating_point():
        halves = replace(weight, scales=(weight.scales * 1e-2).to(torch.float16))
        held_halves = as_blocks(halves)
        if isinstance(held_halves, QuantTensor) and not zeros:  # exactly, however small
            assert decoded(held_halves).equal(halves.dequantize())


def test_one_small_row_is_kept_beside_large_ones() -> None:
    weight = scaled("fp8", None, 1.0)
    weight.scales[4] = 1e-9
    made = as_blocks(weight)
    assert isinstance(made, torch.Tensor)
    assert made.dtype is torch.float32
    assert made.equal(weight.dequantize())


def test_small_groups_of_eight_bits_are_held_by_the_number_where_that_is_enough() -> None:
    weight = scaled("int8", 64, 0.01)
    made = as_blocks(weight)
    assert isinstance(made, torch.Tensor)
    assert made.dtype is torch.float16


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_zero_points_of_all_sizes_keep_four_bits(dtype: torch.dtype) -> None:
    """An offset is up to 15 multipliers, and rounded by its own size."""
    random = torch.Generator().manual_seed(7)
    scales = torch.rand(4096, 2, generator=random).add(1.0).mul(1e-3).to(dtype)
    zeros = torch.randint(0, 16, (4096, 2), dtype=torch.uint8, generator=random)
    weight = CodedTensor("int4", (4096, 64), torch.zeros(4096, 32, dtype=torch.uint8), scales, zeros=zeros)
    assert held(weight).kind == "Q4_1"
