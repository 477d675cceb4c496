"""Each quantised kernel beside the plain one, and its error: `python -m bench.kernels --device cuda`.

    gemv     weights of fewer bits times 1 to 4 rows, beside the bf16 kernel and what the memory allows
    tiles    ... times 8 to 128 rows, beside the matrix library
    large    ... times 64 rows and more, as a layer has it, beside the matrix library with plain weights, and with
             weights decoded once for each product
    native   E4M3 and int8 activations and weights: the library's kernel and ours
    mixed    int8 with outlier columns, beside bf16, plain int8, a decomposition in two products, and decoding by tile
    sampling choosing tokens: penalties, filters, log-probabilities

With --sweep each kernel is tried with several tiles, and the best are printed. One JSON line a figure, the first says
where they come from. "step" is the sum over a Llama-8B's matrices, 32 layers and the head.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.kernel_bench import Bench, copies, plain_copies, truth
from bench.kernel_timing import relative_error
from bench.kernels_experts import experts
from bench.kernels_mixed import SHAPES as MIXED_SHAPES
from bench.kernels_mixed import mixed
from bench.kernels_sampling import sampling
from bench.provenance import provenance
from engine.kernels.triton import fp8_rows, quant_dots, quant_linear
from engine.kernels.triton.coded import SQUARE, CodedWeight
from engine.kernels.triton.coded_rows import linear_fp4, linear_fp8, linear_int8
from engine.kernels.triton.few_rows import KERNELS, few_rows, of_fine
from engine.kernels.triton.fp4_native import NATIVE_ROWS, to_e4m3
from engine.kernels.triton.fp8_rows import Fp8Tiles
from engine.kernels.triton.gemv import linear as plain_linear
from engine.kernels.triton.quant_dots import DotsTiles
from engine.kernels.triton.quant_gemm import dequantised
from engine.kernels.triton.quantise_rows import quantise_rows
from engine.kernels.triton.scaled_gemm import scaled_gemm
from engine.kernels.triton.scaled_tiles import PipeTiles, ScaledTiles, usual_tiles
from engine.kernels.triton.tile_rows import RowTiles, row_tiles, tile_rows
from engine.kernels.triton.tuned import add, few_key

Shape = tuple[int, int]  # (K, N)
LLAMA: dict[str, Shape] = {"qkv": (4096, 6144), "o": (4096, 4096), "gate_up": (4096, 28672), "down": (14336, 4096)}
HEAD: Shape = (4096, 128256)
LAYERS = 32
KINDS = ("fp8", "fp8_128", "int8", "int4", "fp4_nv", "fp4_mx")  # _128: E4M3 with a multiplier for 128 numbers
DOTS_SWEEP = tuple(
    DotsTiles(*sizes)
    for sizes in (
        (4, 64, 1), (8, 64, 2), (4, 128, 2), (8, 128, 2), (4, 128, 1), (4, 256, 2), (8, 256, 4), (2, 256, 2),
        (4, 512, 4), (2, 128, 1),
    )
)  # fmt: skip
FP8_SWEEP = tuple(
    Fp8Tiles(*sizes)
    for sizes in (
        (8, 512, 4), (4, 512, 4), (8, 256, 2), (8, 256, 4), (4, 256, 2), (4, 256, 1), (2, 512, 2), (4, 512, 2),
        (2, 1024, 4),
    )
)  # fmt: skip
ROWS_SWEEP = tuple(
    RowTiles(*sizes, splits, apart)
    for splits in (1, 4, 8)
    for sizes, apart in (
        ((64, 128, 2, 3), False), ((64, 128, 2, 4), False), ((64, 128, 4, 3), False), ((64, 128, 4, 4), False),
        ((128, 128, 4, 3), False), ((128, 128, 4, 3), True), ((128, 128, 8, 3), False),
    )
)  # fmt: skip
SCALED_SWEEP = tuple(
    ScaledTiles(*sizes, described=described)
    for described in (True, False)
    for sizes in (
        (64, 64, 128, 4, 4), (64, 128, 128, 4, 4), (64, 128, 256, 4, 3), (128, 64, 128, 4, 3), (128, 128, 128, 4, 3),
        (128, 128, 128, 8, 4), (128, 256, 128, 8, 3), (128, 256, 128, 8, 4), (256, 128, 128, 8, 4),
    )
)  # fmt: skip


def gemv(bench: Bench, rows: int) -> None:
    totals: dict[str, float] = dict.fromkeys(("bf16", *bench.kinds), 0.0)
    for name, full in (*LLAMA.items(), ("head", HEAD)):
        times = 1 if name == "head" else LAYERS
        for kind, took_us in _gemv_of(bench, rows, name, bench.shape(full)).items():
            totals[kind] += took_us * times
    for kind, total_us in totals.items():
        ratio = round(totals["bf16"] / total_us, 2)
        bench.show("step", kind=kind, rows=rows, matrices_ms=round(total_us / 1e3, 3), over_bf16=ratio)


def _gemv_of(bench: Bench, rows: int, name: str, shape: Shape) -> dict[str, float]:
    """Microseconds by kind."""
    depth, columns = shape
    plain, x = bench.normal(columns, depth, spread=0.02), bench.normal(rows, depth)
    base_us = bench.times(lambda weight: plain_linear(x, weight), plain_copies(plain))
    took = {"bf16": base_us}
    for kind in bench.kinds:
        weight = bench.weight(plain, kind)
        took[kind], best = bench.best(*_few_of(bench, weight, x))
        if bench.sweep and best and kind != "fp8_128":
            form, *sizes = best[0][1]
            kernel = next(key for key, tiles_of in KERNELS.items() if tiles_of.__name__ == form)
            bench.found[few_key(quant_dots.kind_of(weight), rows, columns, depth)] = (kernel, tuple(sizes))
        bytes_s = weight.num_bytes / took[kind] * 1e6
        bench.show(
            "gemv",
            kind=kind,
            matrix=name,
            rows=rows,
            us=took[kind],
            tb_s=round(bytes_s / 1e12, 2),
            of_copy=round(bytes_s / bench.copy_bytes_s, 2),
            bf16_us=round(base_us, 2),
            over_bf16=round(base_us / took[kind], 2),
            error=relative_error(few_rows(x, weight), truth(x, weight)),
            tiles=best,
        )
    return took


def _few_of(bench: Bench, weight: CodedWeight, x: Tensor) -> tuple[Callable[..., Tensor], list[CodedWeight], list[Any]]:
    """The kernel for few rows, weights to turn through, and the tiles to try. Rows are whole numbers before."""
    if quant_dots.takes(weight):
        fine = quant_dots.form(weight).rows(x)
        wanted = list(DOTS_SWEEP) if bench.sweep else [quant_dots.dots_tiles(weight, bench.device)]
        return lambda w, tile: of_fine(fine, w, x.dtype, None, tile), copies(weight), wanted
    chosen = list(FP8_SWEEP) if bench.sweep else [fp8_rows.fp8_tiles(weight, bench.device)]
    return lambda w, tile: few_rows(x, w, None, tile), copies(weight), chosen


def tiles_of_few(bench: Bench, rows: int) -> None:
    for name, full in LLAMA.items():
        _tiles_of(bench, rows, name, bench.shape(full))


def _tiles_of(bench: Bench, rows: int, name: str, shape: Shape) -> None:
    depth, columns = shape
    plain, x = bench.normal(columns, depth, spread=0.02), bench.normal(rows, depth)
    base_us = bench.times(lambda weight: F.linear(x, weight), plain_copies(plain))
    for kind in bench.kinds:
        weight = bench.weight(plain, kind)
        wanted = list(ROWS_SWEEP) if bench.sweep else [row_tiles(weight, rows)]
        took_us, best = bench.best(lambda w, tile: tile_rows(x, w, None, tile), copies(weight), wanted)
        bench.show(
            "tiles",
            kind=kind,
            matrix=name,
            rows=rows,
            us=took_us,
            bf16_us=round(base_us, 2),
            over_bf16=round(base_us / took_us, 2),
            error=relative_error(tile_rows(x, weight), truth(x, weight)),
            tiles=best,
        )


def large(bench: Bench, rows: int) -> None:
    for name, full in LLAMA.items():
        _large_of(bench, rows, name, bench.shape(full))


def _large_of(bench: Bench, rows: int, name: str, shape: Shape) -> None:
    depth, columns = shape
    plain, x = bench.normal(columns, depth, spread=0.02), bench.normal(rows, depth)
    base_us = bench.times(lambda weight: F.linear(x, weight), plain_copies(plain))

    def whole(weight: CodedWeight) -> Tensor:
        return F.linear(x, dequantised(weight, x.dtype))

    for kind in bench.kinds:
        weight = bench.weight(plain, kind)
        weights = copies(weight)
        took_us, whole_us = bench.in_turns(
            lambda w: quant_linear.linear(x, quant_linear.PackedLinear(w)), whole, weights
        )
        bench.show(
            "large",
            kind=kind,
            matrix=name,
            rows=rows,
            us=round(took_us, 1),
            bf16_us=round(base_us, 1),
            whole_us=round(whole_us, 1),
            of_whole=round(took_us / whole_us, 3),
            of_bf16=round(took_us / base_us, 3),
        )


def native(bench: Bench, rows: int) -> None:
    for name, full in LLAMA.items():
        for kind in ("fp8", "int8"):
            _native_of(bench, rows, name, bench.shape(full), kind)
        if all(size % SQUARE == 0 for size in bench.shape(full)):
            _native_groups_of(bench, rows, name, bench.shape(full), "fp8_blocks")
        if rows >= NATIVE_ROWS:
            _native_groups_of(bench, rows, name, bench.shape(full), "fp4_mx")


def _native_groups_of(bench: Bench, rows: int, name: str, shape: Shape, kind: str) -> None:
    """Four-bit floats made E4M3 for the library's product; E4M3 in blocks of 128 x 128."""
    run = linear_fp8 if kind == "fp8_blocks" else linear_fp4
    depth, columns = shape
    plain, x = bench.normal(columns, depth, spread=0.02), bench.normal(rows, depth)
    base_us = bench.times(lambda weight: F.linear(x, weight), [plain])
    packed = quant_linear.PackedLinear(bench.weight(plain, kind))
    took_us = bench.times(lambda p: run(x, p), [packed])
    bench.show(
        "native",
        kind=kind,
        matrix=name,
        rows=rows,
        us=round(took_us, 1),
        convert_us=round(bench.times(to_e4m3, [packed.weight]), 1) if kind == "fp4_mx" else 0.0,
        bf16_us=round(base_us, 1),
        over_bf16=round(base_us / took_us, 2),
        error=relative_error(run(x, packed), truth(x, packed.weight)),
    )


def _native_of(bench: Bench, rows: int, name: str, shape: Shape, kind: str) -> None:
    depth, columns = shape
    plain, x = bench.normal(columns, depth, spread=0.02), bench.normal(rows, depth)
    base_us = bench.times(lambda weight: F.linear(x, weight), [plain])
    weight = bench.weight(plain, kind)
    packed = quant_linear.PackedLinear(weight)
    run = linear_fp8 if kind == "fp8" else linear_int8
    took_us = bench.times(lambda p: run(x, p), [packed])
    coded_x, _ = quantise_rows(x, kind)
    codes = weight.codes.view(torch.float8_e4m3fn) if kind == "fp8" else weight.codes

    def ours(w: Tensor, tile: ScaledTiles | PipeTiles) -> Tensor:
        return scaled_gemm(coded_x.codes, w, coded_x.scales, weight.scales, bench.dtype, tiles=tile)

    def library(w: Tensor) -> Tensor:
        if kind == "int8":
            return torch._int_mm(coded_x.codes, w.T)
        return torch._scaled_mm(
            coded_x.codes, w.T, coded_x.scales, weight.scales.T, out_dtype=bench.dtype, use_fast_accum=True
        )

    tiles = (
        list(SCALED_SWEEP) if bench.sweep else [usual_tiles(bench.device, rows, columns, depth, whole=kind == "int8")]
    )
    ours_us, best = bench.best(ours, [codes], tiles)
    library_us = round(bench.times(library, [codes]), 1) if bench.device.type == "cuda" and rows > 16 else None
    bench.show(
        "native",
        kind=kind,
        matrix=name,
        rows=rows,
        us=round(took_us, 1),
        quantise_us=round(bench.times(lambda y: quantise_rows(y, kind), [x]), 1),
        ours_us=ours_us,
        library_us=library_us,
        bf16_us=round(base_us, 1),
        over_bf16=round(base_us / took_us, 2),
        tops=round(2e-6 * rows * columns * depth / ours_us),
        error=relative_error(run(x, packed), x.double() @ plain.double().T),
        tiles=best,
    )


def mixed_shapes(bench: Bench, rows: int) -> None:
    for shape in MIXED_SHAPES:
        mixed(bench, rows, shape, SCALED_SWEEP)


PARTS: dict[str, tuple[Callable[[Bench, int], None], tuple[int, ...]]] = {
    "gemv": (gemv, (1, 2, 4)),
    "tiles": (tiles_of_few, (8, 16, 32, 64, 128)),
    "large": (large, (64, 128, 256, 512, 2048)),
    "native": (native, (32, 64, 256, 512, 4096)),
    "mixed": (mixed_shapes, (16, 64, 256, 512, 2048)),
    "experts": (experts, (1, 4, 8, 64, 256, 1024, 2048, 4096, 8192)),
    "sampling": (sampling, (1, 64, 256)),
}


def parse(words: list[str]) -> argparse.Namespace:
    def names(known: tuple[str, ...]) -> Callable[[str], list[str]]:
        def read(text: str) -> list[str]:
            chosen = text.split(",")
            if not set(chosen) <= set(known):
                raise argparse.ArgumentTypeError(f"choose from {', '.join(known)}")
            return chosen

        return read

    parser = argparse.ArgumentParser(prog="python -m bench.kernels", description=__doc__)
    option = parser.add_argument
    option("--device", default="cuda")
    option("--do", default=list(PARTS), type=names(tuple(PARTS)))
    option("--kinds", default=list(KINDS), type=names(KINDS))
    option("--rows", default=[], type=lambda text: [int(word) for word in text.split(",")])
    option("--sweep", action="store_true", help="try several tiles, and print the best")
    option("--write", action="store_true", help="keep the best tiles for few rows in engine/kernels/triton/tiles.json")
    option("--scale", default=1, type=int, help="divide all widths, for a look without a GPU")
    return parser.parse_args(words)


def main(words: list[str]) -> int:
    arguments = parse(words)
    print(json.dumps(provenance("kernels", arguments.device)), flush=True)
    bench = Bench(arguments)
    for part in arguments.do:
        run, usual = PARTS[part]
        for rows in arguments.rows or usual:
            run(bench, rows)
    if arguments.write:
        add(bench.device, bench.found)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
