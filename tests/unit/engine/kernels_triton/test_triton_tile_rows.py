"""Quantised weights as the left side of a product with 5 to 128 rows: in the interpreter on a CPU, and on a GPU."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed: `make test` installs it for these tests")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

from engine.kernels.triton.coded import CodedWeight, coded  # noqa: E402
from engine.kernels.triton.tile_rows import RowTiles, row_tiles, takes, tile_rows  # noqa: E402
from engine.quant.coded_tensor import CodedTensor  # noqa: E402
from engine.quant.encode import encode  # noqa: E402

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
    ("int4", 16, True),
    ("fp4_nv", None, False),
    ("fp4_mx", None, False),
]
SMALL = RowTiles(32, 64, 4, 2, 1)
PARTED = RowTiles(32, 64, 4, 2, 3, turned=True)


def relative(got: torch.Tensor, truth: torch.Tensor) -> float:
    assert torch.isfinite(got).all()
    return float((got.double() - truth.double()).norm() / truth.double().norm().clamp_min(1e-9))


@pytest.mark.parametrize(("kind", "group", "zeros"), FORMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_products_match_float64(
    kind: str, group: int | None, zeros: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.kernels.triton.tile_rows.LEAST_PART", 64)
    torch.manual_seed(5)
    weight = encode(torch.randn(37, 640, device=DEVICE) * 0.1 + 0.05 * zeros, kind, group, asymmetric=zeros)
    packed, numbers = coded(weight), weight.dequantize()
    for rows, tiles in ((5, SMALL), (17, PARTED)):
        x, bias = torch.randn(rows, 640, device=DEVICE).to(dtype), torch.randn(37, device=DEVICE).to(dtype)
        truth = x.double() @ numbers.double().T
        assert relative(tile_rows(x, packed, None, tiles), truth) < TOLERANCE[dtype]
        assert relative(tile_rows(x, packed, bias, tiles), truth + bias.double()) < TOLERANCE[dtype]


@pytest.mark.parametrize("kind", ["fp8", "int4", "fp4_nv"])
def test_a_row_does_not_depend_on_those_beside_it(kind: str) -> None:
    packed = coded(encode(torch.randn(70, 384, device=DEVICE), kind))
    x = torch.randn(9, 384, device=DEVICE).half()
    other = torch.cat((torch.randn(4, 384, device=DEVICE).half() * 30, x[2:3]))
    tiles = RowTiles(32, 64, 4, 2, 2)
    assert torch.equal(tile_rows(other, packed, None, tiles)[4], tile_rows(x, packed, None, tiles)[2])


@pytest.mark.parametrize(
    ("kind", "multipliers"), [("fp4_mx", (127, 30)), ("fp4_mx", (128, 127)), ("fp4_mx", (200, 3)), ("fp4_nv", (1, 126))]
)
@pytest.mark.parametrize("depth", [128, 192])
def test_every_code_of_four_bit_floats_is_read_exactly(kind: str, multipliers: tuple[int, int], depth: int) -> None:
    dtype = torch.bfloat16 if DEVICE == "cuda" else torch.float32
    each = (torch.arange(16).view(16, 1) + torch.arange(depth)) % 16  # every code at every place
    codes = (each[:, 0::2] | (each[:, 1::2] << 4)).to(torch.uint8).to(DEVICE)
    groups = depth // (16 if kind == "fp4_nv" else 32)
    scales = torch.tensor(multipliers, dtype=torch.uint8, device=DEVICE).repeat(16, groups // 2)
    rows = torch.full((16,), 0.5, device=DEVICE) if kind == "fp4_nv" else None
    weight = CodedTensor(kind, (16, depth), codes, scales, row_scales=rows)
    tiles = RowTiles(16 if DEVICE == "cpu" else 64, 128, 2, 2, 1)
    got = tile_rows(torch.eye(depth, device=DEVICE, dtype=dtype), coded(weight), None, tiles)
    assert torch.equal(got.T.float(), weight.dequantize())


def test_tiles_are_known_for_each_code() -> None:
    for kind in ("fp8", "int8", "int4", "fp4_mx"):
        weight = coded(encode(torch.randn(4, 128, device=DEVICE), kind))
        assert row_tiles(weight, 5).splits >= row_tiles(weight, 64).splits


@pytest.mark.parametrize(("columns", "most"), [(4096, 128), (6144, 64), (28672, 128)])
def test_half_bytes_are_decoded_once_where_parts_of_k_would_not_run_at_once(columns: int, most: int) -> None:
    codes, scales = (torch.empty(columns, width, dtype=torch.uint8, device="meta") for width in (2048, 128))
    weight = CodedWeight("fp4", (columns, 4096), codes, scales, "e8m0")
    assert takes(weight, most)
    assert not takes(weight, most + 1)
