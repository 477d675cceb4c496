"""Tile sizes of the attention kernels: measured ones where there are any, else what fits the shared memory.

MEASURED is chosen from by what a device can hold, never by its name. `python -m bench.kernels` and a profile of a
prompt say what a change does.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
import triton

SMALLEST_SHARED_BYTES = 96 << 10  # of the oldest GPUs that are supported
DECODE_SHARED_BYTES = (96 << 10, 64 << 10)  # heads up to 128, and wider


@dataclass(frozen=True, slots=True)
class Tile:
    """A program's share of the work: query rows (heads of one KV head side by side), keys a turn."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


BYTES_TILE = Tile(16, 64, 2, 3)


@dataclass(frozen=True, slots=True)
class _Measured:
    dim: int  # head size, up to the next power of two
    windowed: bool
    shared_bytes: int  # that a program must be able to use
    tile: Tile


# On an H200, whose programs may use 227 KiB: heads of 256 at 282 and 344 TFLOP/s instead of 170 and 195.
MEASURED: tuple[_Measured, ...] = (
    _Measured(256, windowed=True, shared_bytes=220 << 10, tile=Tile(128, 64, 8, 2)),
    _Measured(256, windowed=False, shared_bytes=220 << 10, tile=Tile(128, 64, 8, 2)),
)


def prefill_tile(dim: int, element_bytes: int, *, windowed: bool, shared_bytes: int) -> Tile:
    """Tiles for prompts' chunks and mixed batches."""
    padded = max(16, triton.next_power_of_2(dim))
    for row in MEASURED:
        if padded == row.dim and windowed == row.windowed and shared_bytes >= row.shared_bytes and element_bytes <= 2:
            return row.tile
    block_m = 128 if dim <= 128 else 64
    row_bytes = padded * max(2, element_bytes)
    # The queries stay in shared memory too. Two 128-key tiles in flight beat three of 64 where they fit.
    left = shared_bytes - block_m * row_bytes
    block_n = 128 if 2 * 2 * 128 * row_bytes <= left else 64 if 2 * 64 * row_bytes <= left else 32
    return Tile(block_m, block_n, 8 if block_m >= 128 else 4, stages(block_n, dim, element_bytes, left))


def decode_tile(dim: int, element_bytes: int) -> Tile:
    """Tiles for one query a sequence. Two programs or more are to fit a multiprocessor.

    Wide heads take half the keys a turn, so that two tiles are in flight: 4.05 TB/s instead of 2.6 on an H200. Bytes
    take half the room, and fewer threads that make more numbers each: heads of 256 in 88 us instead of 113.
    """
    if element_bytes == 1:
        return BYTES_TILE
    keys = 64 if dim <= 128 else 32
    return Tile(16, keys, 2 if dim <= 128 else 4, stages(keys, dim, element_bytes, DECODE_SHARED_BYTES[dim > 128]))


def few_tile(rows: int, dim: int, element_bytes: int) -> Tile:
    """Tiles for a few queries a sequence. rows: queries times the heads that share a KV head"""
    keys = 64 if dim <= 128 else 32
    block_m = max(16, rows)
    warps = max(2 if dim <= 128 else 4, block_m // 16)  # sixteen rows each: no row is shared between warps
    return Tile(block_m, keys, warps, stages(keys, dim, element_bytes, 96 << 10))


def stages(block_n: int, dim: int, element_bytes: int, budget_bytes: int) -> int:
    """Tiles of K and V in flight that fit the budget: 3 at most."""
    tile_bytes = 2 * block_n * triton.next_power_of_2(dim) * max(2, element_bytes)
    return max(1, min(3, int(budget_bytes // tile_bytes)))


@functools.cache
def shared_bytes(device: torch.device) -> int:
    """Shared memory one program may use; of a GPU that does not say, what the oldest supported have."""
    if device.type != "cuda":
        return SMALLEST_SHARED_BYTES
    properties = torch.cuda.get_device_properties(device)
    return int(getattr(properties, "shared_memory_per_block_optin", SMALLEST_SHARED_BYTES))
