"""The int8 product with waits of its own: compiled for its device on any machine, run where there is one."""

from __future__ import annotations

import pytest
import torch

triton = pytest.importorskip("triton", reason="triton is not installed: `make test` installs it for these tests")
pytest.importorskip("triton.experimental.gluon", reason="this triton has no way to write waits out")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.experimental.gluon import language as gl  # noqa: E402
from triton.experimental.gluon._runtime import GluonASTSource  # noqa: E402

from engine.kernels.triton import int8_pipeline  # noqa: E402
from engine.kernels.triton.device import copies_tiles  # noqa: E402
from engine.kernels.triton.int8_pipeline import BLOCK_K, pipelined  # noqa: E402
from engine.kernels.triton.scaled_gemm import scaled_gemm  # noqa: E402
from engine.kernels.triton.scaled_tiles import PipeTiles  # noqa: E402

POINTERS = {
    "a_scales": "*fp32", "w_scales": "*fp32", "bias": "*bf16", "out": "*bf16", "parts": "*i32", "locks": "*i32",
}  # fmt: skip
ON_DEVICE = torch.cuda.is_available() and copies_tiles(torch.device("cuda"))


def described(kind: str, element: object, height: int, width: int) -> str:
    layout = gl.NVMMASharedLayout.get_default_for([height, width], element)
    return f"tensordesc<{kind}[{height}, {width}],{layout!r}>"


@pytest.mark.parametrize(("block_m", "block_n", "warps", "stages", "splits"), [(128, 256, 8, 4, 1), (64, 128, 4, 4, 2)])
def test_a_product_is_under_way_while_the_next_tile_comes(
    block_m: int, block_n: int, warps: int, stages: int, splits: int
) -> None:
    kernel, kept = int8_pipeline._pipeline_kernel, 64
    constants = {
        "BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": BLOCK_K, "STAGES": stages, "GROUP_M": 8, "SPLITS": splits,
        "KEPT": kept, "HAS_BIAS": True, "WARPS": warps,
    }  # fmt: skip
    descriptors = {
        "a": described("i8", gl.int8, block_m, BLOCK_K),
        "w": described("i8", gl.int8, block_n, BLOCK_K),
        "a_outliers": described("fp16", gl.float16, block_m, kept),
        "w_outliers": described("fp16", gl.float16, block_n, kept),
    }
    types = {**dict.fromkeys(constants, "constexpr"), **POINTERS, **descriptors}
    signature = {name: types.get(name, "i32") for name in kernel.arg_names}
    source = GluonASTSource(kernel, signature, constants)
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps})
    assert "wgmma.mma_async.sync.aligned.m64n128k32.s32.s8.s8" in made.asm["ptx"]
    assert "wgmma.wait_group.sync.aligned 1" in made.asm["ptx"]
    assert made.metadata.shared <= 227 << 10


@pytest.mark.skipif(not ON_DEVICE, reason="there is no device with these instructions here")
@pytest.mark.parametrize(
    "tiles",
    [
        PipeTiles(128, 256, 8, 4),
        PipeTiles(128, 128, 4, 3, splits=3),
        PipeTiles(64, 128, 4, 4, splits=2, undivided=3),
        PipeTiles(128, 128, 8, 4, columns=256, rest=PipeTiles(64, 128, 4, 4)),
    ],
)
def test_products_are_those_of_the_other_kernel(tiles: PipeTiles) -> None:
    torch.manual_seed(0)
    for rows, columns, depth in ((200, 300, 528), (70, 1000, 4096)):
        a = torch.randint(-127, 128, (rows, depth), dtype=torch.int8, device="cuda")
        w = torch.randint(-127, 128, (columns, depth), dtype=torch.int8, device="cuda")
        scales = torch.rand(rows, 1, device="cuda"), torch.rand(columns, 1, device="cuda")
        bias = torch.randn(columns, device="cuda").bfloat16()
        plain = scaled_gemm(a, w, *scales, torch.bfloat16)
        assert torch.equal(pipelined(a, w, *scales, torch.bfloat16, None, None, None, tiles), plain)
        beside = torch.randn(rows, 32, device="cuda").half() * 99, torch.randn(columns, 32, device="cuda").half() * 99
        truth = scaled_gemm(a, w, *scales, torch.bfloat16, bias, *beside).double()
        got = pipelined(a, w, *scales, torch.bfloat16, bias, *beside, tiles).double()
        assert float((got - truth).norm() / truth.norm()) < 4e-3
