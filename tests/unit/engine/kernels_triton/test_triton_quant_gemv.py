"""Quantised weights times a few rows: in the interpreter on a CPU, compiled on a GPU."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed: `make test` installs it for these tests")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

from engine.kernels.triton.coded import coded  # noqa: E402
from engine.kernels.triton.quant_gemv import GemvTiles, quant_gemv  # noqa: E402
from engine.quant.coded_tensor import CodedTensor  # noqa: E402
from engine.quant.encode import encode  # noqa: E402

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
TOLERANCE = {torch.float32: 2e-5, torch.float16: 1e-3, torch.bfloat16: 6e-3}
# kind, group, with zero points
FORMS = [
    ("fp8", None, False),
    ("fp8", 128, False),
    ("int8", None, False),
    ("int8", 32, False),
    ("int4", 128, False),
    ("int4", 128, True),
    ("int4", 32, True),
    ("int4", 16, False),
    ("int4", 16, True),
    ("fp4_nv", None, False),
    ("fp4_mx", None, False),
]


def close(got: torch.Tensor, truth: torch.Tensor, dtype: torch.dtype) -> None:
    assert torch.isfinite(got).all()
    error = float((got.double() - truth.double()).norm() / truth.double().norm().clamp_min(1e-9))
    assert error < TOLERANCE[dtype], f"{error=}"


def random_weight(kind: str, group: int | None, zeros: bool, columns: int, depth: int) -> CodedTensor:
    torch.manual_seed(columns + depth)
    weight = torch.randn(columns, depth, device=DEVICE) * torch.rand(columns, 1, device=DEVICE) * 0.1
    return encode(weight + (0.02 if zeros else 0.0), kind, group, asymmetric=zeros)


@pytest.mark.parametrize(("kind", "group", "zeros"), FORMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_quantised_gemv_matches_float64(kind: str, group: int | None, zeros: bool, dtype: torch.dtype) -> None:
    weight = random_weight(kind, group, zeros, 9, 640)
    packed = coded(weight, blocks=True)
    rows = {torch.float32: 1, torch.float16: 2, torch.bfloat16: 4}[dtype]
    x = torch.randn(rows, 640, device=DEVICE).to(dtype)
    bias = torch.randn(9, device=DEVICE).to(dtype) if rows > 1 else None
    truth = x.double() @ weight.dequantize().double().T + (0.0 if bias is None else bias.double())
    close(quant_gemv(x, packed, bias), truth, dtype)
    close(quant_gemv(x, packed, bias, GemvTiles(8, 128, 2)), truth, dtype)


@pytest.mark.parametrize("kind", ["fp8", "int8", "int4", "fp4_nv", "fp4_mx"])
def test_each_code_meets_the_input_of_its_place_exactly(kind: str) -> None:
    columns, depth = 16, 32 if kind in ("int4", "fp4_nv", "fp4_mx") else 16
    if kind == "fp8":
        codes = torch.tensor([c if c & 127 != 127 else 0 for c in range(256)], dtype=torch.uint8).view(16, 16)
    elif kind == "int8":
        codes = torch.arange(-128, 128, dtype=torch.int8).view(16, 16)
    else:
        each = (torch.arange(16).view(16, 1) + torch.arange(32)) % 16  # every code at every place
        codes = (each[:, 0::2] | (each[:, 1::2] << 4)).to(torch.uint8)
    scales = {"fp4_nv": torch.tensor([[1, 126]]), "fp4_mx": torch.tensor([[127 - 3]])}.get(kind)
    row_scales = torch.full((16,), 2.0, device=DEVICE) if kind == "fp4_nv" else None
    stored = torch.full((16, 1), 0.5) if scales is None else scales.expand(16, -1).to(torch.uint8)
    weight = CodedTensor(
        kind, (columns, depth), codes.to(DEVICE), stored.contiguous().to(DEVICE), row_scales=row_scales
    )
    packed, truth = coded(weight, blocks=True), weight.dequantize()
    x = torch.eye(depth, device=DEVICE)
    got = torch.cat([quant_gemv(x[i : i + 4], packed, None, GemvTiles(8, 8, 1)) for i in range(0, depth, 4)])
    assert torch.equal(got, truth.T)


def test_a_row_is_the_same_bit_for_bit_whatever_rows_are_beside_it() -> None:
    for kind in ("fp8", "int8", "int4", "fp4_nv"):
        packed = coded(random_weight(kind, None, False, 8, 384), blocks=True)
        x = torch.randn(4, 384, device=DEVICE).to(torch.bfloat16)
        whole = quant_gemv(x, packed)
        other = torch.cat((x[2:3], torch.randn(1, 384, device=DEVICE).to(torch.bfloat16) * 50))
        assert torch.equal(quant_gemv(other, packed)[0], whole[2])
