"""Kernels of experts compiled for compute capability 9.0, where there is no such device: the interpreter takes more."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="triton is not installed: `make test` installs it for these tests")

PROGRAM = """
import sys
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
import triton
from engine.kernels.triton import few_experts, grouped_experts, sorted_pairs

SORTED = dict.fromkeys(("order", "counts", "starts", "tile_ends"), "*i32")
NUMBERS = dict.fromkeys(("num_experts", "width", "num_pairs", "each"), "i32")
TILE = dict(BLOCK_M=64, BLOCK_N=64, BLOCK_K=64, STEPS=8, CHAINED=True, HAS_BIAS=True)
GATES, ROWS = "tensordesc<bf16[1,2,64,64]>", "tensordesc<bf16[64,64]>"
CASES = (
    (grouped_experts._grouped_gate_up_kernel, TILE | dict(ACTIVATION=0), dict(rows_of=ROWS, matrices=GATES)),
    (grouped_experts._grouped_down_kernel, TILE, dict(rows_of=ROWS, matrices="tensordesc<bf16[1,64,64]>")),
    (grouped_experts._spread_kernel, dict(CHOICES=8, BLOCK=1024, CHAINED=True), {}),
    (sorted_pairs._count_kernel, dict(SEGMENTS=4, BLOCK=1024, CHAINED=True), {}),
    (sorted_pairs._scan_kernel, dict(SEGMENTS=4, BLOCK_M=64, BLOCK=128, CHAINED=True), {}),
    (sorted_pairs._place_kernel, dict(SEGMENTS=4, BLOCK=1024, CHAINED=True), {}),
    (
        few_experts._pair_gate_up_kernel,
        dict(depth=2048, CHOICES=8, ACTIVATION=0, HAS_BIAS=True, BLOCK_N=2, BLOCK_K=1024, PIECES=2, CHAINED=True), {},
    ),
    (
        few_experts._pairs_down_kernel,
        dict(depth=768, CHOICES=8, PAD=8, HAS_BIAS=True, BLOCK_N=2, BLOCK_K=256, PIECES=3, CHAINED=True), {},
    ),
)
TYPES = dict.fromkeys(("x", "spread", "inner", "bias", "weight", "parts", "out"), "*bf16")
TYPES |= {"pair_weights": "*fp32", "depth": "i32"} | SORTED | NUMBERS
TYPES |= dict.fromkeys(("ids", "found", "firsts"), "*i32")
for kernel, constants, own in CASES:
    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else (TYPES | own)[name] for name in names}
    source = ASTSource(kernel, signature, {(names.index(name),): value for name, value in constants.items()})
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4, "num_stages": 3})
    print(kernel.__name__, len(made.asm["ptx"]))
"""


@pytest.mark.timeout(180)
def test_kernels_of_experts_compile_for_a_device_that_is_not_here(tmp_path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=170, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(done.stdout.splitlines()) == 8
