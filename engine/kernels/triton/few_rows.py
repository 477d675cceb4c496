"""A quantised weight times up to four rows: which kernel reads the codes once, and with which tiles.

Whole-number codes have the same kernel and the same parts of K for any of these numbers of rows, so that a row's result
depends on no other; E4M3 codes for one and two, and the kernel for tiles of rows beyond.
"""

from __future__ import annotations

import torch

from engine.kernels.triton import fp8_rows, quant_dots
from engine.kernels.triton.coded import CodedWeight
from engine.kernels.triton.fine_rows import FineRows
from engine.kernels.triton.fp8_rows import Fp8Tiles
from engine.kernels.triton.quant_dots import DotsTiles
from engine.kernels.triton.quant_gemv import GemvTiles, quant_gemv
from engine.kernels.triton.tile_rows import tile_rows

MAX_ROWS = 4
FewTiles = GemvTiles | DotsTiles | Fp8Tiles
KERNELS: dict[str, type[GemvTiles] | type[DotsTiles] | type[Fp8Tiles]] = {
    "columns": GemvTiles,
    "dots": DotsTiles,
    "fp8": Fp8Tiles,
}


def few_rows(
    x: torch.Tensor, weight: CodedWeight, bias: torch.Tensor | None = None, tiles: FewTiles | None = None
) -> torch.Tensor:
    """Shapes: x [M, K], M from 1 to 4, K a multiple of 4; weight (N, K); bias [N] -> [M, N]"""
    if quant_dots.takes(weight):
        return of_fine(quant_dots.form(weight).rows(x), weight, x.dtype, bias, tiles)
    if fp8_rows.takes(weight) and x.shape[0] > fp8_rows.MAX_ROWS:
        return tile_rows(x, weight, bias)
    if fp8_rows.takes(weight):
        assert tiles is None or isinstance(tiles, Fp8Tiles), tiles
        return fp8_rows.fp8_rows(x, weight, bias, tiles)
    assert tiles is None or isinstance(tiles, GemvTiles), tiles
    return quant_gemv(x, weight, bias, tiles)


def of_fine(
    rows: FineRows,
    weight: CodedWeight,
    dtype: torch.dtype,
    bias: torch.Tensor | None = None,
    tiles: FewTiles | None = None,
) -> torch.Tensor:
    """The same of rows that are whole numbers already, as quant_dots.form(weight) makes them."""
    assert tiles is None or isinstance(tiles, DotsTiles), tiles
    return quant_dots.quant_dots(rows, weight, dtype, bias, tiles)
