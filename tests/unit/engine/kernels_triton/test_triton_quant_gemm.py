"""Quantised weights decoded once: in the interpreter on a CPU, compiled on a GPU."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed: `make test` installs it for these tests")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

from engine.kernels.triton.coded import coded  # noqa: E402
from engine.kernels.triton.quant_gemm import dequantised, large_linear  # noqa: E402
from engine.quant.encode import encode  # noqa: E402
from engine.quant.quant_tensor import QuantTensor  # noqa: E402

# The interpreter's bfloat16 dot is not usable; a GPU tests it too.
DTYPES = [torch.float32, torch.float16] + ([torch.bfloat16] if DEVICE == "cuda" else [])
TOLERANCE = {torch.float32: 2e-5, torch.float16: 1.5e-3, torch.bfloat16: 1e-2}
FORMS = [
    ("fp8", None, False),
    ("fp8", 128, False),
    ("int8", None, False),
    ("int8", 32, False),
    ("int4", 128, False),
    ("int4", 128, True),
    ("int4", 32, True),
    ("int4", 16, False),
    ("fp4_nv", None, False),
    ("fp4_mx", None, False),
]


def close(got: torch.Tensor, truth: torch.Tensor, dtype: torch.dtype) -> None:
    assert torch.isfinite(got).all()
    error = float((got.double() - truth.double()).norm() / truth.double().norm().clamp_min(1e-9))
    assert error < TOLERANCE[dtype], f"{error=}"


@pytest.mark.parametrize(("kind", "group", "zeros"), FORMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_weight_decoded_once_matches_float64(kind: str, group: int | None, zeros: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(5)
    weight = encode(torch.randn(37, 640, device=DEVICE) * 0.1 + 0.05 * zeros, kind, group, asymmetric=zeros)
    packed, numbers = coded(weight), weight.dequantize()
    x, bias = torch.randn(33, 640, device=DEVICE).to(dtype), torch.randn(37, device=DEVICE).to(dtype)
    truth = x.double() @ numbers.double().T
    close(large_linear(x, packed, bias), truth + bias.double(), dtype)


@pytest.mark.parametrize(("kind", "group", "zeros"), FORMS)
def test_decoding_on_the_device_is_exact(kind: str, group: int | None, zeros: bool) -> None:
    weight = encode(torch.randn(9, 640, device=DEVICE), kind, group, asymmetric=zeros)
    assert torch.equal(dequantised(coded(weight), torch.float32), weight.dequantize())
    part = dequantised(coded(weight), torch.float16, slice(2, 5))
    assert torch.equal(part, weight.dequantize()[2:5].half())


@pytest.mark.parametrize(("kind", "block_bytes"), [("Q8_0", 34), ("Q4_0", 18), ("Q4_1", 20), ("MXFP4", 17)])
def test_rows_of_ggufs_blocks_are_split_exactly(kind: str, block_bytes: int) -> None:
    torch.manual_seed(6)
    data = torch.randint(0, 250, (7, 3, block_bytes), dtype=torch.uint8)
    if kind != "MXFP4":
        scales = torch.rand(7, 3, block_bytes - (16 if kind != "Q8_0" else 32) >> 1).half() + 0.5
        data[:, :, : 2 * scales.shape[2]] = scales.contiguous().view(torch.uint8).view(7, 3, -1)
    else:
        data[:, :, 0] = torch.randint(100, 140, (7, 3))
    weight = QuantTensor(kind, data.view(7, -1).to(DEVICE), (7, 96))
    got, truth = dequantised(coded(weight), torch.float32), weight.dequantize()
    assert torch.allclose(got, truth, rtol=1e-6, atol=1e-5) if kind == "Q4_1" else torch.equal(got, truth)
