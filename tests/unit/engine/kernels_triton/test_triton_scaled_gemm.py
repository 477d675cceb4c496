"""Eight-bit activations and products, outlier columns with them: in the interpreter on a CPU, compiled on a GPU."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed: `make test` installs it for these tests")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

from engine.kernels import reference  # noqa: E402
from engine.kernels.triton import quantise_rows as rows_of  # noqa: E402
from engine.kernels.triton.coded_rows import linear_int8  # noqa: E402
from engine.kernels.triton.quant_linear import pack  # noqa: E402
from engine.kernels.triton.quantise_rows import outlier_columns, quantise_rows  # noqa: E402
from engine.kernels.triton.scaled_gemm import scaled_gemm  # noqa: E402
from engine.kernels.triton.scaled_tiles import ScaledTiles, scaled_tiles  # noqa: E402
from engine.quant.encode import encode, encode_mixed  # noqa: E402

MODES = {"plain": rows_of.PLAIN, "norm": rows_of.NORM, "add_norm": rows_of.ADD_NORM, "silu": rows_of.SILU, "gelu": 4}


def relative(got: torch.Tensor, truth: torch.Tensor) -> float:
    return float((got.double() - truth.double()).norm() / truth.double().norm())


def made(mode: str, x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    if mode == "norm":
        return reference.rms_norm(x, weight, 1e-5)
    if mode == "add_norm":
        return reference.add_rms_norm(x, residual, weight, 1e-5)[0]
    return {"plain": lambda y: y, "silu": reference.silu_mul, "gelu": reference.gelu_mul}[mode](x)


@pytest.mark.parametrize("code", ["int8", "fp8"])
@pytest.mark.parametrize("mode", list(MODES))
def test_rows_become_codes_of_what_the_unfused_op_gives(mode: str, code: str) -> None:
    torch.manual_seed(0)
    width = 200
    x = torch.randn(5, width * (2 if MODES[mode] >= 3 else 1), device=DEVICE)
    weight, residual = torch.rand(width, device=DEVICE) + 0.5, torch.randn(5, width, device=DEVICE)
    got, total = quantise_rows(x, code, mode=MODES[mode], weight=weight, eps=1e-5, residual=residual)
    truth = made(mode, x, weight, residual)
    largest = truth.abs().amax(dim=1, keepdim=True)
    wanted = largest / 127 if code == "int8" else torch.exp2((largest / 448).log2().ceil())
    assert torch.allclose(got.scales, wanted)
    decoded = got.codes.to(torch.float32) * got.scales
    # A GPU rounds to the nearest E4M3; the interpreter cuts off.
    part = 16.0 if DEVICE == "cuda" else 8.0
    steps = got.scales * 0.5001 if code == "int8" else (truth.abs() / part).clamp_min(got.scales * 2.0**-6 / part)
    assert bool(((decoded - truth).abs() <= steps).all())
    if mode == "add_norm":
        assert total is not None
        assert torch.equal(total, x + residual)
    alone, _ = quantise_rows(x[3:4], code, mode=MODES[mode], weight=weight, eps=1e-5, residual=residual[3:4])
    assert torch.equal(alone.codes.view(torch.uint8)[0], got.codes.view(torch.uint8)[3])


UNDEFINED = pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # codes whose multiplier is NaN


@UNDEFINED
@pytest.mark.parametrize("code", ["int8", "fp8"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_rows_that_are_not_finite_give_results_that_are_not(bad: float, code: str) -> None:
    x = torch.randn(3, 256, device=DEVICE)
    x[1, 200] = bad
    rows, _ = quantise_rows(x, code)
    assert torch.isfinite(rows.scales).squeeze(1).tolist() == [True, False, True]
    assert torch.isnan(rows.scales[1]).all()
    groups, _ = quantise_rows(x, code, group=128)
    assert torch.isnan(groups.scales).tolist() == [[False, False], [False, True], [False, False]]


@UNDEFINED
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_column_kept_beside_that_is_not_finite_stays_so(bad: float) -> None:
    weight = encode_mixed(torch.rand(4, 64, device=DEVICE) + 0.1, torch.tensor([7], device=DEVICE))
    x = torch.randn(20, 64, device=DEVICE)
    x[3, 7] = bad
    got = torch.isfinite(linear_int8(x, pack(weight)))
    assert not got[3].any()
    assert got[[0, 1, 2, *range(4, 20)]].all()


def test_groups_of_a_row_have_scales_of_their_own() -> None:
    x = torch.randn(3, 384, device=DEVICE) * torch.tensor([1.0, 30.0, 0.01], device=DEVICE).repeat_interleave(128)
    got, _ = quantise_rows(x, "fp8", group=128)
    assert torch.equal(got.scales, torch.exp2((x.view(3, 3, 128).abs().amax(dim=2) / 448).log2().ceil()))
    assert relative(got.codes.float().view(3, 3, 128) * got.scales.unsqueeze(-1), x.view(3, 3, 128)) < 0.04


def test_e4m3_codes_are_the_nearest() -> None:
    fine = torch.linspace(-460, 460, 4001).clamp(-448, 448)
    x = torch.stack((fine, fine / 1000)).to(DEVICE)
    x[:, 0] = 448.0
    got, _ = quantise_rows(x, "fp8")
    assert torch.equal(got.codes.float(), (x / got.scales).to(torch.float8_e4m3fn).float())


@pytest.mark.parametrize("mode", list(MODES))
def test_outlier_columns_are_set_aside_and_others_counted(mode: str) -> None:
    torch.manual_seed(1)
    width = 96
    x = torch.randn(6, width * (2 if MODES[mode] >= 3 else 1), device=DEVICE)
    weight, residual = torch.rand(width, device=DEVICE) + 0.5, torch.randn(6, width, device=DEVICE)
    truth = made(mode, x, weight, residual)
    columns = torch.tensor([3, 17, 95], device=DEVICE)
    kept = outlier_columns(columns, width, float(truth.abs().median()), torch.float32)
    got, _ = quantise_rows(x, "int8", mode=MODES[mode], weight=weight, eps=1e-5, residual=residual, kept=kept)
    assert got.outliers is not None
    assert torch.allclose(got.outliers[:, :3], truth[:, columns], atol=1e-6)
    assert float(got.outliers[:, 3:].abs().max()) == 0.0
    assert int(got.codes[:, columns].abs().max()) == 0
    rest = truth.index_fill(1, columns, 0.0)
    assert torch.allclose(got.scales, rest.abs().amax(dim=1, keepdim=True) / 127)
    assert int(kept.misses) == int((rest.abs().amax(dim=1) > kept.threshold).sum())


@pytest.mark.parametrize(("rows", "columns", "depth"), [(1, 33, 64), (17, 40, 200), (40, 70, 512)])
def test_int8_products_are_exact_before_they_are_scaled(rows: int, columns: int, depth: int, monkeypatch) -> None:
    torch.manual_seed(2)
    a = torch.randint(-127, 128, (rows, depth), dtype=torch.int8, device=DEVICE)
    w = torch.randint(-127, 128, (columns, depth), dtype=torch.int8, device=DEVICE)
    a_scales, w_scales = torch.rand(rows, 1, device=DEVICE), torch.rand(columns, 1, device=DEVICE)
    bias = torch.randn(columns, device=DEVICE)
    got = scaled_gemm(a, w, a_scales, w_scales, torch.float32, bias, tiles=ScaledTiles(16, 32, 64, 4, 2))
    truth = (a.double() @ w.double().T) * a_scales.double() * w_scales.double().T + bias.double()
    assert relative(got, truth) < 1e-6
    monkeypatch.setattr("engine.kernels.triton.scaled_gemm.LEAST_PART", 64)
    parted = ScaledTiles(16, 32, 64, 4, 2, splits=3)
    described = ScaledTiles(16, 32, 64, 4, 2, splits=2, described=True)  # a depth of 200 cannot be
    tail = ScaledTiles(16, 32, 64, 4, 2, splits=3, undivided=1)
    turned = ScaledTiles(32, 16, 64, 4, 2, splits=2, undivided=1, turned=True)
    for tiles in (parted, parted, described, tail, turned):  # the counters are as they were
        assert torch.equal(scaled_gemm(a, w, a_scales, w_scales, torch.float32, bias, tiles=tiles), got)


@pytest.mark.parametrize("blocks", [False, True])
def test_fp8_products_match_float64(blocks: bool, monkeypatch) -> None:
    torch.manual_seed(3)
    weight = encode(torch.randn(40, 384, device=DEVICE), "fp8", 128 if blocks else None)
    x = encode(torch.randn(19, 384, device=DEVICE), "fp8", 128 if blocks else None)
    a, w = x.codes.view(torch.float8_e4m3fn), weight.codes.view(torch.float8_e4m3fn)
    got = scaled_gemm(a, w, x.scales, weight.scales, torch.float32, tiles=ScaledTiles(16, 32, 64, 4, 2))
    truth = x.dequantize().double() @ weight.dequantize().double().T
    monkeypatch.setattr("engine.kernels.triton.scaled_gemm.LEAST_PART", 64)
    parted = ScaledTiles(16, 32, 64, 4, 2, splits=2)
    assert relative(scaled_gemm(a, w, x.scales, weight.scales, torch.float32, tiles=parted), got.double()) < 1e-5
    assert relative(got, truth) < (2e-3 if DEVICE == "cuda" else 1e-6)  # matrix units sum E4M3 in fewer bits


def test_products_with_outlier_columns_are_many_times_nearer_than_without() -> None:
    torch.manual_seed(4)
    depth, planted = 512, torch.tensor([5, 100, 101, 407], device=DEVICE)
    x = torch.randn(24, depth, device=DEVICE)
    x[:, planted] *= 20
    weight = torch.randn(48, depth, device=DEVICE) * 0.05
    truth = x.double() @ weight.double().T
    plain, _ = quantise_rows(x, "int8")
    coded = encode(weight, "int8")
    rough = scaled_gemm(plain.codes, coded.codes, plain.scales, coded.scales, torch.float32)
    kept = outlier_columns(planted, depth, 6.0, torch.float32)
    apart, _ = quantise_rows(x, "int8", kept=kept)
    mixed = encode_mixed(weight, planted, torch.float32)
    assert mixed.outliers is not None
    beside = torch.zeros(48, 16, device=DEVICE)
    beside[:, :4] = mixed.outliers.weights
    sides = (apart.codes, mixed.codes, apart.scales, mixed.scales, torch.float32, None, apart.outliers, beside)
    got = scaled_gemm(*sides)
    described = ScaledTiles(16, 32, 128, 4, 2, described=True)
    assert torch.allclose(scaled_gemm(*sides, tiles=described), got, rtol=1e-5, atol=1e-5)
    assert relative(got, truth) * 5 < relative(rough, truth)
    assert int(kept.misses) == 0


@pytest.mark.parametrize("described", [False, True])
def test_tiles_fill_a_device_and_split_k_only_where_they_are_few(described: bool) -> None:
    few, many = (scaled_tiles(rows, 4096, 132, described=described) for rows in (40, 4096))
    assert few.splits > 1
    assert many.splits == 1
    assert few.block_m * few.block_n < many.block_m * many.block_n
    assert few.described == many.described == described
    blocks = scaled_tiles(4096, 4096, 132, described=described, blocks=True)
    assert blocks.block_m * blocks.block_n / blocks.warps <= 2048, "two sets of sums have to fit the registers"
