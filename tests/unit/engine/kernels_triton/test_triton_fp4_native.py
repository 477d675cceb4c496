"""Four-bit floats made E4M3 for eight-bit matrix units: in the interpreter on a CPU, compiled on a GPU."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed: `make test` installs it for these tests")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

from engine.kernels.triton import quant_linear  # noqa: E402
from engine.kernels.triton.coded import coded  # noqa: E402
from engine.kernels.triton.coded_rows import linear_fp4  # noqa: E402
from engine.kernels.triton.fp4_native import NATIVE_ROWS, takes, to_e4m3  # noqa: E402
from engine.quant.coded_tensor import CodedTensor  # noqa: E402
from engine.quant.encode import encode  # noqa: E402

DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float16
ALL_CODES = torch.tensor([low | (low + 1) << 4 for low in range(0, 16, 2)], dtype=torch.uint8)  # of two halves of 16


def numbers_of(weight: CodedTensor) -> torch.Tensor:
    codes, scales = to_e4m3(coded(weight.to(DEVICE)))
    return (codes.to(torch.float32) * scales).cpu()


def test_every_code_with_every_power_of_two_is_exact() -> None:
    scales = torch.arange(1, 248, 6, dtype=torch.uint8)  # 6 times the last power is a float
    codes = ALL_CODES.repeat(len(scales), 2)
    weight = CodedTensor("fp4_mx", (len(scales), 32), codes, scales.unsqueeze(1))
    got, truth = numbers_of(weight), weight.dequantize()
    assert torch.equal(got[2:], truth[2:])
    assert torch.allclose(got, truth, rtol=0, atol=2.0**-126)  # multipliers that are no normal floats


def test_blocks_of_a_row_keep_their_distance_to_the_largest() -> None:
    scales = torch.tensor([[127 - step for step in range(24)]], dtype=torch.uint8)
    weight = CodedTensor("fp4_mx", (1, 24 * 32), ALL_CODES.repeat(1, 48), scales)
    got, truth = numbers_of(weight).view(24, 32), weight.dequantize().view(24, 32)
    assert torch.equal(got[:15], truth[:15])
    # A number of E4M3 is no nearer to the next than 2 ** -9; the row's multiplier is 2 ** -6.
    assert float((got - truth).abs().max()) <= 2.0**-16


def test_products_match_float64_and_rows_do_not_touch_each_other() -> None:
    torch.manual_seed(3)
    weight = encode(torch.randn(40, 192, device=DEVICE) * 0.1, "fp4_mx")
    packed, bias = quant_linear.pack(weight), torch.randn(40, device=DEVICE).to(DTYPE)
    x = torch.randn(NATIVE_ROWS + 3, 192, device=DEVICE).to(DTYPE)
    got = linear_fp4(x, packed, bias)
    truth = x.double() @ weight.dequantize().double().T + bias.double()
    assert float((got.double() - truth).norm() / truth.norm()) < 5e-2
    other = torch.randn_like(x) * 20
    other[5] = x[5]
    assert torch.equal(linear_fp4(other, packed, bias)[5], got[5])


def test_weights_that_would_be_rounded_for_many_rows_alone_have_exact_activations() -> None:
    packed = quant_linear.pack(encode(torch.randn(8, 64, device=DEVICE), "fp4_nv"))
    assert not takes(packed.weight)
    x = torch.randn(3, 64, device=DEVICE).to(DTYPE)
    assert torch.equal(linear_fp4(x, packed), quant_linear.linear(x, packed))
