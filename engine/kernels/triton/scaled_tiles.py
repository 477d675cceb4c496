"""Which tiles an eight-bit product has, by how long their programs take a unit of the device."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from engine.kernels.triton.device import copies_tiles, pipelines_int8, units_of


@dataclass(frozen=True, slots=True)
class ScaledTiles:
    block_m: int
    block_n: int
    block_k: int
    warps: int
    stages: int
    group_m: int = 8
    splits: int = 1
    described: bool = False  # copied by descriptors, where rows begin at multiples of 16 bytes
    undivided: int = 0  # tiles that are not split, the first ones
    turned: bool = False  # block_m is of the weight's rows, block_n of the activations'


@dataclass(frozen=True, slots=True)
class PipeTiles:
    """Of int8_pipeline.py."""

    block_m: int
    block_n: int
    warps: int
    stages: int
    group_m: int = 8
    splits: int = 1
    undivided: int = 0  # tiles that are not split, the first ones
    columns: int = 0  # that have these tiles, 0 for all; the rest, which would leave most units idle, has others
    rest: PipeTiles | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """A tile, and how long 1, 2, ... of its programs at once take a unit for 4,096 of K; only the ratios count.

    fixed: of that, what does not grow with K
    """

    tile: ScaledTiles | PipeTiles
    turn: tuple[float, ...]  # as many as fit a unit
    fixed: float = 0.0

    def cost(self, rows: int, columns: int, depth: int, units: int) -> float:
        """Of the unit that is busy longest."""
        each, fit = -(-self.count(rows, columns) // units), len(self.turn)
        turns = -(-each // fit)
        grows = (self.turn[each - 1] if each <= fit else turns * self.turn[-1]) - turns * self.fixed
        return turns * self.fixed + grows * depth / 4096

    def count(self, rows: int, columns: int) -> int:
        return -(-rows // self.tile.block_m) * -(-columns // self.tile.block_n)


# Microseconds measured on an H200. Several programs a unit hide each other's waits.
CHOICES = (
    Choice(ScaledTiles(128, 256, 128, 8, 3), (31.2,)),
    Choice(ScaledTiles(256, 128, 128, 8, 3), (31.2,)),
    Choice(ScaledTiles(128, 128, 128, 8, 4), (17.5,)),
    Choice(ScaledTiles(128, 64, 128, 4, 3), (17.5, 18.0, 26.0)),
    Choice(ScaledTiles(64, 64, 128, 4, 4), (11.0, 13.0, 17.0)),
)
DESCRIBED = (
    Choice(ScaledTiles(128, 128, 128, 4, 3, described=True), (18.3, 26.4)),
    Choice(ScaledTiles(128, 64, 128, 4, 3, described=True), (17.5, 17.6, 24.4)),
    Choice(ScaledTiles(64, 128, 128, 4, 4, described=True), (12.7, 16.4)),
    Choice(ScaledTiles(64, 128, 256, 4, 3, described=True), (11.7,)),
    Choice(ScaledTiles(64, 64, 128, 4, 4, described=True), (11.0, 12.1, 15.5)),
)
# Where waits are written out (int8_pipeline.py): what bounds these is how fast codes come from the second-level cache.
PIPED = (
    Choice(PipeTiles(128, 256, 8, 4), (24.5,), 3.0),
    Choice(PipeTiles(256, 128, 8, 4), (24.3,), 3.0),
    Choice(PipeTiles(128, 128, 8, 6), (16.3,), 5.9),
    Choice(PipeTiles(64, 128, 4, 6), (11.7,), 3.0),
)
LAUNCH = 2.0  # microseconds that a second launch costs
# With multipliers of blocks a part is summed by itself: two sets of sums of larger tiles do not fit the registers.
IN_BLOCKS = (
    Choice(ScaledTiles(64, 128, 128, 4, 4), (19.8, 27.0)),
    Choice(ScaledTiles(64, 64, 128, 4, 4), (14.0, 17.0, 20.0)),
)
SPLIT_BELOW = 0.5  # tiles a unit: with more, writing the parts costs what the idle units would gain
MAX_SPLITS = 4
LEAST_PART = 2048  # numbers of K in a part
FEW_SPLIT = 16384  # columns below which few rows leave units idle


def usual_tiles(
    device: torch.device, rows: int, columns: int, depth: int, *, blocks: bool = False, whole: bool = False
) -> ScaledTiles | PipeTiles:
    """Those for what a device is and can. whole: codes are int8, their rows at multiples of 16 bytes"""
    units = units_of(device)
    tile = scaled_tiles(rows, columns, units, described=copies_tiles(device), blocks=blocks)
    if not whole or rows <= 64 or not pipelines_int8(device):
        return tile
    piped, cost = piped_tiles(rows, columns, depth, units)
    usual = min(choice.cost(rows, columns, depth, units) for choice in DESCRIBED)
    return piped if cost < usual else tile


def piped_tiles(rows: int, columns: int, depth: int, units: int) -> tuple[PipeTiles, float]:
    """The tile whose last round of programs ends first, and how long that takes.

    Columns beyond whole rounds, which would keep few units busy for as long as a round takes, may have smaller tiles.
    """
    found: list[tuple[float, PipeTiles]] = []
    for choice in PIPED:
        tile, count = choice.tile, choice.count(rows, columns)
        assert isinstance(tile, PipeTiles)
        found.append((choice.cost(rows, columns, depth, units), tile))
        first = count // units * units // -(-rows // tile.block_m) * tile.block_n
        if 0 < first < columns:
            rest = min(PIPED, key=lambda other: other.cost(rows, columns - first, depth, units))
            assert isinstance(rest.tile, PipeTiles)
            cost = choice.cost(rows, first, depth, units) + rest.cost(rows, columns - first, depth, units) + LAUNCH
            found.append((cost, replace(tile, columns=first, rest=rest.tile)))
    cost, tile = min(found, key=lambda one: one[0])
    return tile, cost


def scaled_tiles(
    rows: int, columns: int, units: int = 132, *, described: bool = False, blocks: bool = False
) -> ScaledTiles:
    """The tile with which the busiest of a device's units is done first, its K in parts where tiles are few."""
    if rows <= 32:
        # The weight's rows are as many as the matrix units want, the activations' few.
        few = ScaledTiles(64, 16 if rows <= 16 else 32, 256, 4, 4, described=described, turned=True)
        return replace(few, splits=2 if columns < FEW_SPLIT else 1)

    choices = IN_BLOCKS if blocks else DESCRIBED if described else CHOICES
    best = min(choices, key=lambda choice: choice.cost(rows, columns, 4096, units))
    assert isinstance(best.tile, ScaledTiles)
    tile, count = replace(best.tile, described=described), best.count(rows, columns)
    if count >= SPLIT_BELOW * units:
        return tile
    return replace(tile, splits=max(1, min(MAX_SPLITS, 2 * units // count)))
