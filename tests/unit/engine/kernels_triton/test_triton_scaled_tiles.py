"""Which tiles eight-bit products have: no device is asked."""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="triton is not installed: `make test` installs it for these tests")

from engine.kernels.triton.scaled_tiles import PIPED, PipeTiles, ScaledTiles, piped_tiles, scaled_tiles

UNITS = 132


def tiles_of(tile: PipeTiles, rows: int, columns: int) -> int:
    return -(-rows // tile.block_m) * -(-columns // tile.block_n)


@pytest.mark.parametrize("rows", [128, 256, 300, 512, 2048])
@pytest.mark.parametrize("columns", [4096, 12288, 22016, 28672])
def test_columns_are_shared_out_in_whole_rounds_and_a_rest(rows: int, columns: int) -> None:
    tile, cost = piped_tiles(rows, columns, 4096, UNITS)
    assert cost <= min(choice.cost(rows, columns, 4096, UNITS) for choice in PIPED)
    if tile.rest is not None:
        assert 0 < tile.columns < columns
        assert tile.columns % tile.block_n == 0, "the rest begins where a tile ends"
        idle = -tiles_of(tile, rows, tile.columns) % UNITS
        assert idle < -(-rows // tile.block_m), "another column of tiles would still fit the round"


def test_time_grows_with_k_but_for_what_a_tile_costs_anyway() -> None:
    short, long = (PIPED[0].cost(256, 22016, depth, UNITS) for depth in (4096, 8192))
    assert short < long < 2 * short


def test_few_rows_have_the_weight_on_the_left() -> None:
    few, some = (scaled_tiles(rows, 4096, UNITS, described=True) for rows in (8, 40))
    assert isinstance(few, ScaledTiles)
    assert few.turned
    assert few.block_n < few.block_m
    assert not some.turned
