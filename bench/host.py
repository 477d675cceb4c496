"""The CPU kernels against what the host can do: `python -m bench.host [--threads 16]`.

Each figure stands beside the host's own rate, measured in the same run by torch: matrix products beside its best
product, reading weights and keys beside a plain read. Weights are random, in the shapes of an 8B model's layers. One
JSON line a figure, the first says where they come from.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

import torch

from bench.provenance import provenance
from bench.read_rate import best_s, read_rate
from engine.calibrate import matrix
from engine.kernels.cpu import library, ops
from engine.kernels.cpu.weights import PackedWeight, pack
from engine.quant.coded_tensor import CodedTensor

LAYER = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))  # an 8B model's matrices: rows, columns
PROMPT_ROWS = 512
HEADS, KV_HEADS, HEAD_DIM, PAGE_TOKENS = 32, 8, 128, 16
KINDS = ("I8_ROW", "Q8_0", "Q4_0", "Q4_K", "BF16")
Linear = Callable[..., torch.Tensor]
FORMS: dict[str, Linear] = {"exact": ops.linear_exact, "int8": ops.linear_int8}


def product_rate(dtype: torch.dtype) -> float:
    """Operations a second of torch's own product."""
    a, b, out = (torch.ones(rows, 4096, dtype=dtype) for rows in (2048, 4096, 2048))
    return 2.0 * 2048 * 4096 * 4096 / best_s(lambda: torch.mm(a, b, out=out))


def layer_of(kind: str) -> list[PackedWeight]:
    made = [matrix(kind, rows, columns, torch.device("cpu")) for rows, columns in LAYER]
    return [pack(weight) for weight in made if not isinstance(weight, CodedTensor)]


def multiply(layer: list[PackedWeight], rows: int, run: Linear) -> Callable[[], object]:
    inputs = {columns: torch.randn(rows, columns) for _, columns in LAYER}
    # A step keeps its memory: new pages for each product would be most of what is measured.
    out = [torch.empty(rows, weight.shape[0]) for weight in layer]
    return lambda: [run(inputs[weight.shape[1]], weight, None, to) for weight, to in zip(layer, out, strict=True)]


def attention(context: int, dtype: torch.dtype, sequences: int) -> tuple[Callable[[], object], int]:
    """A decode step's attention, and the bytes of keys and values it reads."""
    blocks = context // PAGE_TOKENS
    view = torch.randn(sequences * blocks, 2, KV_HEADS, PAGE_TOKENS, HEAD_DIM).to(dtype)
    tables = torch.randperm(sequences * blocks).to(torch.int32).view(sequences, blocks)
    q = torch.randn(sequences, HEADS, HEAD_DIM)
    starts = torch.arange(sequences + 1, dtype=torch.int32)
    lens = torch.full((sequences,), context, dtype=torch.int32)
    return lambda: ops.paged_attention(q, view, tables, starts, lens, HEAD_DIM**-0.5, None, None, None), view.nbytes


def measure(arguments: argparse.Namespace) -> None:
    def show(**figure: object) -> None:
        print(json.dumps(figure), flush=True)

    read = read_rate()
    show(fig="read", gb_s=round(read / 1e9, 1))
    rates = {name: product_rate(getattr(torch, name)) for name in ("float32", "bfloat16")}
    for name, rate in rates.items():
        show(fig="product", dtype=name, tflops=round(rate / 1e12, 3))
    best = max(rates.values())
    for kind in arguments.kinds:
        layer = layer_of(kind)
        elements = sum(rows * columns for rows, columns in LAYER)
        stored = sum(weight.num_bytes for weight in layer)
        forms = {"exact": ops.linear_exact, "bf16": ops.linear_bf16} if kind == "BF16" else FORMS
        for mode, run in forms.items():
            seconds = best_s(multiply(layer, PROMPT_ROWS, run), 3)
            flops = 2.0 * PROMPT_ROWS * elements / seconds
            show(fig="prefill", kind=kind, activation=mode, tflops=round(flops / 1e12, 3), share=round(flops / best, 3))
            seconds = best_s(multiply(layer, 1, run), 5)
            rate = stored / seconds
            show(fig="decode", kind=kind, activation=mode, gb_s=round(rate / 1e9, 1), share=round(rate / read, 3))
        del layer
    for context in (4096, 8192, 32768):
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            step, size = attention(context, dtype, max(1, 16384 // context))
            rate = size / best_s(step, 5)
            name = str(dtype).removeprefix("torch.")
            show(fig="attention", context=context, kv=name, gb_s=round(rate / 1e9, 1), share=round(rate / read, 3))


def origin(arguments: argparse.Namespace) -> dict[str, Any]:
    return {**provenance("host"), "opts": {"threads": library.threads(), "isa": library.isa()}}


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.host", description=__doc__)
    parser.add_argument("--threads", default=0, type=int, help="0: every core the process may use")
    parser.add_argument("--kinds", default=KINDS, type=lambda text: tuple(text.split(",")))
    arguments = parser.parse_args(words)
    if (reason := library.absent_reason()) is not None:
        print(f"The CPU library is not here: {reason}", file=sys.stderr)
        return 1
    library.set_threads(arguments.threads)
    torch.set_num_threads(library.threads())
    print(json.dumps(origin(arguments)), flush=True)
    measure(arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
