"""E4M3 codes times a few rows: in the interpreter on a CPU, compiled on a GPU."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed: `make test` installs it for these tests")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

from engine.kernels.triton.coded import coded  # noqa: E402
from engine.kernels.triton.fp8_rows import Fp8Tiles, fp8_rows, takes  # noqa: E402
from engine.quant.coded_tensor import CodedTensor  # noqa: E402
from engine.quant.encode import encode  # noqa: E402

TOLERANCE = {torch.float32: 2e-5, torch.float16: 1e-3, torch.bfloat16: 6e-3}


def random_weight(group: int | None, columns: int, depth: int) -> CodedTensor:
    torch.manual_seed(columns + depth)
    return encode(
        torch.randn(columns, depth, device=DEVICE) * torch.rand(columns, 1, device=DEVICE) * 0.1, "fp8", group
    )


@pytest.mark.parametrize("by_bits", [True, False])
@pytest.mark.parametrize("group", [None, 128])
@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_fp8_rows_match_float64(dtype: torch.dtype, group: int | None, by_bits: bool) -> None:
    weight = random_weight(group, 9, 640)
    packed = coded(weight)
    assert takes(packed)
    for rows, tiles in ((1, None), (2, Fp8Tiles(8, 64, 1)), (2, Fp8Tiles(2, 256, 2))):
        x = torch.randn(rows, 640, device=DEVICE).to(dtype)
        bias = torch.randn(9, device=DEVICE).to(dtype) if rows > 1 else None
        truth = x.double() @ weight.dequantize().double().T + (0.0 if bias is None else bias.double())
        got = fp8_rows(x, packed, bias, tiles, by_bits=by_bits)
        error = float((got.double() - truth).norm() / truth.norm())
        assert error < TOLERANCE[dtype], f"{rows} rows, {tiles}: {error}"


@pytest.mark.parametrize("by_bits", [True, False])
def test_each_code_meets_the_input_of_its_place_exactly(by_bits: bool) -> None:
    codes = torch.tensor([c if c & 127 != 127 else 0 for c in range(256)], dtype=torch.uint8).view(16, 16)
    weight = CodedTensor("fp8", (16, 16), codes.to(DEVICE), torch.full((16, 1), 0.5, device=DEVICE))
    packed = coded(weight)
    x = torch.eye(16, device=DEVICE)
    got = [fp8_rows(x[i : i + 2], packed, None, Fp8Tiles(16, 4, 1), by_bits=by_bits) for i in range(0, 16, 2)]
    assert torch.equal(torch.cat(got), weight.dequantize().T)


def test_a_row_is_the_same_bit_for_bit_whatever_rows_are_beside_it() -> None:
    packed = coded(random_weight(None, 8, 384))
    x = torch.randn(2, 384, device=DEVICE).to(torch.bfloat16)
    whole = fp8_rows(x, packed)
    other = torch.cat((x[1:2], torch.randn(1, 384, device=DEVICE).to(torch.bfloat16) * 50))
    assert torch.equal(fp8_rows(other, packed)[0], whole[1])
    assert torch.equal(fp8_rows(x[1:2], packed)[0], whole[1])


@pytest.mark.parametrize("first", [1, 2, 4])
def test_a_row_may_begin_anywhere_in_a_wider_one(first: int) -> None:
    packed = coded(random_weight(None, 3, 64))
    wide = torch.randn(1, 72, device=DEVICE).to(torch.float16)
    cut = wide[:, first : first + 64]
    assert torch.equal(fp8_rows(cut, packed), fp8_rows(cut.clone(), packed))
