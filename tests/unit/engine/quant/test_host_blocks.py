"""Codes beside scales as the rows of blocks that the CPU's kernels read."""

from __future__ import annotations

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
