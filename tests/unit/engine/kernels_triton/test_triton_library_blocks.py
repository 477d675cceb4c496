"""E4M3 in square blocks: what the matrix library is given, and that it is asked only for what it takes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="triton is not installed: `make test` installs it for these tests")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

import torch.nn.functional as F  # noqa: E402

from engine.kernels.triton import coded_rows, library_blocks  # noqa: E402
from engine.kernels.triton.coded import coded  # noqa: E402
from engine.kernels.triton.quant_linear import pack  # noqa: E402
from engine.kernels.triton.quantise_rows import quantise_rows  # noqa: E402
from engine.quant.coded_tensor import CodedTensor  # noqa: E402

DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float16


def weight_of(rows: int, depth: int, square: int = 128) -> CodedTensor:
    torch.manual_seed(rows)
    codes = torch.randn(rows, depth, device=DEVICE).mul(60).to(torch.float8_e4m3fn)
    scales = torch.rand(-(-rows // square), depth // 128, device=DEVICE) * 0.01 + 0.001
    return CodedTensor("fp8", (rows, depth), codes.view(torch.uint8), scales.repeat_interleave(square, dim=0)[:rows])


@pytest.mark.parametrize(("rows", "square", "found"), [(256, 128, True), (256, 1, False), (200, 128, False)])
def test_blocks_are_found_where_all_their_rows_have_one_multiplier(rows: int, square: int, found: bool) -> None:
    stored = weight_of(rows, 512, square)
    blocks = coded(stored).block_scales
    assert (blocks is not None) == found
    if blocks is not None:
        assert blocks.dtype is torch.float32
        assert torch.equal(blocks.repeat_interleave(128, dim=0), stored.scales)


def test_rows_in_groups_lie_as_products_want_them() -> None:
    x = torch.randn(37, 512, device=DEVICE).to(DTYPE)
    rows, _ = quantise_rows(x, "fp8", group=128)
    assert rows.whole is not None
    codes, scales = rows.whole
    assert codes.shape == (48, 512)
    assert (scales.shape, scales.stride()) == ((48, 4), (1, 48))
    assert torch.equal(codes[:37].view(torch.uint8), rows.codes.view(torch.uint8))
    assert torch.equal(scales[:37], rows.scales)
    alone, _ = quantise_rows(x[5:6], "fp8", group=128)
    assert torch.equal(alone.codes.view(torch.uint8), rows.codes[5:6].view(torch.uint8))
    assert torch.equal(alone.scales, rows.scales[5:6])


def multiplied(a: Tensor, b: Tensor, a_scales: Tensor, a_recipe: Any, b_scales: Tensor, b_recipe: Any, **more: Any):
    """The library's product as it is documented, in plain torch; what it refuses fails."""
    assert (a_recipe, b_recipe) == (F.ScalingType.BlockWise1x128, F.ScalingType.BlockWise128x128)
    (rows, depth), columns = a.shape, b.shape[1]
    assert rows % 16 == 0 and depth % 512 == 0 and a.is_contiguous() and b.T.is_contiguous()  # noqa: PT018
    assert (a_scales.shape, a_scales.stride()) == ((rows, depth // 128), (1, rows))
    assert (b_scales.shape, b_scales.stride()) == ((depth // 128, columns // 128), (1, depth // 128))
    left = a.float() * a_scales.repeat_interleave(128, dim=1)
    right = b.float() * b_scales.repeat_interleave(128, dim=0).repeat_interleave(128, dim=1)
    return (left @ right).to(more["output_dtype"])


@pytest.mark.parametrize("has_bias", [False, True])
def test_many_rows_go_to_the_library_and_give_what_ours_gives(monkeypatch: pytest.MonkeyPatch, has_bias: bool) -> None:
    packed = pack(weight_of(256, 512))
    bias = torch.randn(256, device=DEVICE).to(DTYPE) if has_bias else None
    x = torch.randn(70, 512, device=DEVICE).to(DTYPE)
    asked = []

    def product(a: Tensor, *arguments: Any, **more: Any) -> Tensor:
        asked.append(a.shape[0])
        return multiplied(a, *arguments, **more)

    monkeypatch.setattr(library_blocks, "has_blocks", lambda device: False)
    ours = coded_rows.linear_fp8(x, packed, bias)
    assert not asked
    monkeypatch.setattr(library_blocks, "has_blocks", lambda device: True)
    monkeypatch.setattr(F, "scaled_mm", product)
    monkeypatch.setattr(coded_rows, "BLOCK_ROWS", 66)  # what is beyond is decoded, but not where the library multiplies
    got = coded_rows.linear_fp8(x, packed, bias)
    assert asked == [80]
    assert got.shape == ours.shape
    assert float((got - ours).double().norm() / ours.double().norm()) < 3e-3
    coded_rows.linear_fp8(x[:64], packed, bias)
    coded_rows.linear_fp8(x, pack(weight_of(256, 384)), bias)  # a depth it does not take
    coded_rows.linear_fp8(x, pack(weight_of(256, 512, 1)), bias)
    assert asked == [80]
