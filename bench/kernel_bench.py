"""What the parts of bench.kernels share: the device, the sweep, and where a figure goes."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from bench.ceilings import RATES
from bench.kernel_timing import copies_for, microseconds
from engine.kernels.triton.coded import SQUARE, CodedWeight, coded
from engine.kernels.triton.quant_gemm import dequantised
from engine.quant.coded_tensor import CodedTensor
from engine.quant.encode import E4M3_MAX, encode

Item = TypeVar("Item")
COMPILERS = 12
TURNS = 3  # of what is compared with something else


class Bench:
    """Owner of the device for the length of a run."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.device = torch.device(arguments.device)
        self.kinds: list[str] = arguments.kinds
        self.sweep: bool = arguments.sweep
        self.copy_bytes_s = RATES["NVIDIA H200"].copy_bytes_s
        self.scale: int = arguments.scale
        self.dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float16
        self.found: dict[str, tuple[str, tuple[int, ...]]] = {}  # for engine.kernels.triton.tuned
        torch.manual_seed(0)

    def show(self, fig: str, **figure: object) -> None:
        print(json.dumps({"fig": fig, **figure}), flush=True)

    def shape(self, shape: tuple[int, int]) -> tuple[int, int]:
        """(K, N) divided by --scale, for machines without a GPU."""
        return max(256, shape[0] // self.scale // 256 * 256), max(32, shape[1] // self.scale)

    def normal(self, *shape: int, spread: float = 1.0) -> Tensor:
        return torch.empty(shape, device=self.device).normal_(0.0, spread).to(self.dtype)

    def weight(self, plain: Tensor, kind: str) -> CodedWeight:
        """As loading with another precision makes it; kind_group for another group than is usual, or for blocks."""
        base, _, group = kind.partition("_")
        if group == "blocks":
            return coded(in_blocks(plain))
        if group.isdecimal():
            return coded(encode(plain, base, int(group)))
        return coded(encode(plain, kind, asymmetric=kind == "int4"))

    def times(self, run: Callable[[Item], object], items: Sequence[Item]) -> float:
        """Microseconds of one call."""

        def call(item: Item) -> Callable[[], object]:
            return lambda: run(item)

        return microseconds([call(item) for item in items])

    def in_turns(
        self, one: Callable[[Item], object], other: Callable[[Item], object], items: Sequence[Item]
    ) -> tuple[float, float]:
        """Microseconds of a call of each, the best of turns: a clock that sinks meanwhile would favour the first."""
        turns = [(self.times(one, items), self.times(other, items)) for _ in range(TURNS)]
        return min(took for took, _ in turns), min(took for _, took in turns)

    def best(
        self, run: Callable[[Item, Any], object], items: Sequence[Item], tiles: Sequence[Any]
    ) -> tuple[float, list[list[Any]]]:
        """(microseconds of the best, the four best with their tiles). Tiles that do not fit the device are left out."""
        found: list[list[Any]] = []

        def with_tiles(tile: Any) -> Callable[[Item], object]:
            return lambda item: run(item, tile)

        with ThreadPoolExecutor(COMPILERS) as pool:  # compiling takes most of a sweep's time
            for tile in tiles if len(tiles) > 1 else ():
                pool.submit(with_tiles(tile), items[0])
        for tile in tiles:
            try:
                name = type(tile).__name__
                found.append([round(self.times(with_tiles(tile), items), 2), [name, *astuple(tile)]])
            except Exception as error:  # noqa: BLE001 - a sweep tries what may not fit the device: that is its result
                self.show("refused", tiles=astuple(tile), why=f"{type(error).__name__}: {error}"[:200])
        found.sort(key=lambda one: float(one[0]))
        return (float(found[0][0]) if found else float("nan")), found[:4]


def copies(weight: CodedWeight) -> list[CodedWeight]:
    """The weight and as many copies as push it out of the cache before its next turn."""
    wanted = copies_for(weight.num_bytes) - 1
    more = [replace(weight, codes=weight.codes.clone(), scales=weight.scales.clone()) for _ in range(wanted)]
    return [weight, *more]


def plain_copies(weight: Tensor) -> list[Tensor]:
    return [weight, *(weight.clone() for _ in range(copies_for(weight.numel() * weight.element_size()) - 1))]


def in_blocks(plain: Tensor) -> CodedTensor:
    """E4M3 with one multiplier for SQUARE x SQUARE numbers, as checkpoints have it."""
    rows, depth = plain.shape
    blocks = plain.float().view(rows // SQUARE, SQUARE, depth // SQUARE, SQUARE)
    scales = blocks.abs().amax(dim=(1, 3)) / E4M3_MAX
    codes = (blocks / scales[:, None, :, None]).view(rows, depth).to(torch.float8_e4m3fn).view(torch.uint8)
    return CodedTensor("fp8", (rows, depth), codes, scales.repeat_interleave(SQUARE, dim=0))


def truth(x: Tensor, weight: CodedWeight) -> Tensor:
    """In float64, of the weight as it is stored."""
    return x.double() @ dequantised(weight, torch.float32).double().T
