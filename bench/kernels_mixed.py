"""Int8 with outlier columns beside what it is compared with; a part of bench.kernels.

Activations are normal, 32 fixed columns twenty times as large, and one number in a thousand eight times.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.kernel_bench import Bench
from bench.kernel_timing import relative_error
from engine.kernels.triton import quant_linear
from engine.kernels.triton.coded import CodedWeight, coded
from engine.kernels.triton.quantise_rows import quantise_rows
from engine.kernels.triton.scaled_gemm import scaled_gemm
from engine.kernels.triton.scaled_tiles import PipeTiles, ScaledTiles, usual_tiles
from engine.kernels.triton.tile_rows import RowTiles, tile_rows
from engine.quant.encode import encode, encode_mixed

SHAPES = ((4096, 12288), (4096, 22016), (11008, 4096), (8192, 28672))
OUTLIERS = (0, 16, 64, 128)
SPORADIC, PLANTED = 0.001, 32
AWQ_ROWS = 512  # where decoding in each tile is known to be slow
NAIVE_OUTLIERS = 64


def mixed(bench: Bench, rows: int, shape: tuple[int, int], sweep: Sequence[ScaledTiles | PipeTiles]) -> None:
    depth, columns = bench.shape(shape)
    plain, x = bench.normal(columns, depth, spread=0.02), bench.normal(rows, depth)
    planted = torch.randperm(depth, device=bench.device)[:PLANTED].sort().values
    x[:, planted] *= 20
    x[torch.rand(x.shape, device=bench.device) < SPORADIC] *= 8
    exact = x.double() @ plain.double().T
    tiles = list(sweep) if bench.sweep else [usual_tiles(bench.device, rows, columns, depth, whole=True)]
    int8 = coded(encode(plain, "int8"))
    plain_x, _ = quantise_rows(x, "int8")

    def int8_only(codes: Tensor, tile: ScaledTiles | PipeTiles | None) -> Tensor:
        return scaled_gemm(plain_x.codes, codes, plain_x.scales, int8.scales, bench.dtype, tiles=tile)

    base_us = bench.times(lambda weight: F.linear(x, weight), [plain])
    int8_us, _ = bench.best(int8_only, [int8.codes], tiles)
    beside: dict[str, float | None] = {
        "bf16_us": base_us,
        "int8_us": int8_us,
        "naive_us": bench.times(lambda weight: naive(x, weight, int8), [plain]) if rows > 16 else None,
        "int_mm_us": bench.times(lambda w: torch._int_mm(plain_x.codes, w.T), [int8.codes]) if rows > 16 else None,
        "awq_us": None,
    }
    if rows == AWQ_ROWS:
        four = coded(encode(plain, "int4"))
        wide = RowTiles(128, 128, 4, 3)
        beside["awq_us"], _ = bench.best(lambda w, tile: tile_rows(x, w, None, tile), [four], [wide])
    int8_error = relative_error(int8_only(int8.codes, None), exact)
    for count in OUTLIERS:
        _with_outliers(bench, x, plain, exact, _kept(planted, count, depth), tiles, beside, int8_error)


def _with_outliers(
    bench: Bench,
    x: Tensor,
    plain: Tensor,
    exact: Tensor,
    columns: Tensor,
    tiles: Sequence[ScaledTiles | PipeTiles],
    beside: dict[str, float | None],
    int8_error: float,
) -> None:
    packed = quant_linear.pack(encode_mixed(plain, columns))
    kept, weights = (packed.kept, packed.beside) if len(columns) else (None, None)
    rows, _ = quantise_rows(x, "int8", kept=kept)

    def product(codes: Tensor, tile: ScaledTiles | PipeTiles | None) -> Tensor:
        scales = packed.weight.scales
        return scaled_gemm(rows.codes, codes, rows.scales, scales, bench.dtype, None, rows.outliers, weights, tile)

    took_us, best = bench.best(product, [packed.weight.codes], tiles)
    quantise_us = bench.times(lambda y: quantise_rows(y, "int8", kept=kept), [x])
    whole_us = took_us + quantise_us

    def over(name: str, own_us: float) -> float | None:
        other = beside[name]
        return None if other is None else round(other / own_us, 2)

    bench.show(
        "mixed",
        rows=x.shape[0],
        depth=x.shape[1],
        columns=plain.shape[0],
        outliers=len(columns),
        us=took_us,
        quantise_us=round(quantise_us, 1),
        **{name: value and round(value, 1) for name, value in beside.items()},
        over_bf16=over("bf16_us", took_us),
        over_bf16_with_quantise=over("bf16_us", whole_us),
        of_int8=over("int8_us", took_us),
        over_naive=over("naive_us", whole_us),
        over_awq=over("awq_us", whole_us),
        error=relative_error(product(packed.weight.codes, None), exact),
        int8_error=int8_error,
        tiles=best,
    )


def _kept(planted: Tensor, count: int, depth: int) -> Tensor:
    """count columns, ascending, the planted ones first among them."""
    known = planted.tolist()
    others = [column for column in range(depth) if column not in set(known)]
    return torch.tensor(sorted((known + others)[:count]), dtype=torch.int64, device=planted.device)


def naive(x: Tensor, plain: Tensor, int8: CodedWeight) -> Tensor:
    """Find outlier columns, gather them, two products, add: a fixed number, so that it can be replayed."""
    found = x.abs().amax(dim=0).topk(NAIVE_OUTLIERS).indices
    beside = x.index_select(1, found) @ plain.index_select(1, found).T
    rest = x.index_fill(1, found, 0.0)
    scales = rest.abs().amax(dim=1, keepdim=True).float() / 127
    codes = (rest / scales).round().clamp(-127, 127).to(torch.int8)
    whole = torch._int_mm(codes, int8.codes.T)
    return (whole * scales * int8.scales.T).to(x.dtype) + beside
