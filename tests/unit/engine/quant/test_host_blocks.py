"""Codes beside scales as the rows of blocks that the CPU's kernels read."""

from __future__ import annotations

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
