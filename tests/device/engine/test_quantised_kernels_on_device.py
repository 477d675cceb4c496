"""Quantised products on an accelerator, at the sizes of a real model: against float64, replayed, row by row."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.ggml_types import TYPE_BY_NAME
from engine.kernels.registry import OpQuery, select
from engine.quant.coded_tensor import CodedTensor
from engine.quant.encode import encode, encode_mixed
from engine.quant.quant_tensor import QuantTensor

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
]
# A few of each kernel's rows: most of the time is spent compiling.
ROWS = (1, 2, 7, 16, 33, 129)
SHAPES = ((1000, 4096, "bfloat16"), (129, 1536, "float16"))
KINDS = ("fp8", "int8", "int8_mixed", "int4", "fp4_nv", "fp4_mx")
# Of the norm: bfloat16 rounds the output, and 8-bit activations are rounded themselves.
EXACT, ROUNDED = 4e-3, 4e-2
TAKEN = {"exact": KINDS, "int8": ("int8", "int8_mixed"), "fp8": ("fp8", "fp4_mx")}


def weight_of(kind: str, columns: int, depth: int) -> CodedTensor:
    torch.manual_seed(columns)
    weight = torch.randn(columns, depth, device="cuda") * 0.05
    if kind == "int8_mixed":
        return encode_mixed(weight, torch.randperm(depth, device="cuda")[:50].sort().values)
    return encode(weight, kind, asymmetric=kind == "int4" and columns == 1000)


def capabilities() -> frozenset[str]:
    fp8 = {"fp8"} if torch.cuda.get_device_capability() >= (8, 9) else set()
    return frozenset({"triton", "bf16", *fp8})


def relative(got: Tensor, truth: Tensor) -> float:
    return float((got.double() - truth).norm() / truth.norm())


@pytest.mark.parametrize(("columns", "depth", "dtype"), SHAPES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("activation", ["exact", "int8", "fp8"])
def test_products_match_float64(kind: str, activation: str, columns: int, depth: int, dtype: str) -> None:
    if kind not in TAKEN[activation]:
        pytest.skip("these weights have no product with such activations")
    impl = select(
        "linear", OpQuery("cuda", dtype, weight_kind=kind, activation=activation, capabilities=capabilities())
    )
    assert impl.name.startswith("triton-"), impl.name
    assert impl.pack is not None
    weight = weight_of(kind, columns, depth)
    packed, numbers = impl.pack(weight), weight.dequantize().double()
    bias = torch.randn(columns, device="cuda").to(getattr(torch, dtype))
    for rows in ROWS:
        x = torch.randn(rows, depth, device="cuda").to(getattr(torch, dtype))
        error = relative(impl.run(x, packed, bias), x.double() @ numbers.T + bias.double())
        assert error < (EXACT if activation == "exact" else ROUNDED), (rows, error)


@pytest.mark.parametrize(
    ("kind", "activation"),
    [("fp8", "fp8"), ("fp8_blocks", "fp8"), ("fp4_mx", "fp8"), ("int8", "int8"), ("int8_mixed", "int8")],
)
def test_a_row_is_rounded_alike_whatever_stands_beside_it(kind: str, activation: str) -> None:
    """Sums in another order differ by a rounding of the output; another rounding of the input would by a hundredth."""
    name = kind.removesuffix("_blocks")
    impl = select(
        "linear", OpQuery("cuda", "bfloat16", weight_kind=name, activation=activation, capabilities=capabilities())
    )
    if not impl.name.startswith(f"triton-{activation[:2]}"):
        pytest.skip("these activations are not rounded on this device")
    assert impl.pack is not None
    plain = torch.randn(768, 2048, device="cuda") * 0.05
    packed = impl.pack(encode(plain, "fp8", 128) if kind == "fp8_blocks" else weight_of(name, 768, 2048))
    x = torch.randn(2100, 2048, device="cuda").to(torch.bfloat16)
    many = impl.run(x, packed, None)[:1].double()
    for rows in (1, 2, 3, 4, 5, 16, 17, 65, 129, 600):
        assert relative(impl.run(x[:rows], packed, None)[:1], many) < 3e-3, rows


@pytest.mark.parametrize("kind", KINDS)
def test_a_replayed_product_equals_the_eager_one_and_rows_do_not_touch_each_other(kind: str) -> None:
    activation = "int8" if kind.startswith("int8") else "fp8" if kind == "fp8" else "exact"
    impl = select(
        "linear", OpQuery("cuda", "bfloat16", weight_kind=kind, activation=activation, capabilities=capabilities())
    )
    assert impl.pack is not None
    packed = impl.pack(weight_of(kind, 1536, 4096))
    for rows in (1, 8, 256):
        static = torch.randn(rows, 4096, device="cuda").to(torch.bfloat16)
        impl.run(static, packed, None)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = impl.run(static, packed, None)
        x = torch.randn(rows, 4096, device="cuda").to(torch.bfloat16)
        static.copy_(x)
        graph.replay()
        assert torch.equal(out, impl.run(x, packed, None))
        beside = torch.randn_like(x) * 30
        beside[0] = x[0]
        assert torch.equal(impl.run(beside, packed, None)[0], out[0])


def test_columns_missed_are_counted_on_the_device_while_replaying() -> None:
    impl = select(
        "linear",
        OpQuery("cuda", "bfloat16", weight_kind="int8_mixed", activation="int8", capabilities=capabilities()),
    )
    assert impl.pack is not None
    packed = impl.pack(encode_mixed(torch.randn(256, 512, device="cuda"), torch.arange(4, device="cuda")))
    x = torch.rand(32, 512, device="cuda").to(torch.bfloat16)
    x[:, 2] = 90.0
    impl.run(x, packed, None)
    assert int(packed.kept.misses) == 0
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        impl.run(x, packed, None)
    x[5:9, 300] = 90.0
    graph.replay()
    graph.replay()
    assert int(packed.kept.misses) == 8


# Kinds whose multipliers are in pieces -> where a block has fp16 numbers.
IN_PIECES = {"Q4_K": (0, 2), "Q6_K": (208,), "Q5_K": (0, 2), "Q2_K": (80, 82)}


@pytest.mark.parametrize("kind", IN_PIECES)
def test_gguf_blocks_in_pieces_are_multiplied_by_kernels_and_match_float64(kind: str) -> None:
    stored, (columns, depth) = TYPE_BY_NAME[kind], (1000, 2048)
    draw = torch.Generator().manual_seed(3)
    shape = (columns, depth // stored.block_elements, stored.block_bytes)
    blocks = torch.randint(0, 256, shape, dtype=torch.uint8, generator=draw)
    for at in IN_PIECES[kind]:
        halves = (torch.randn(*shape[:2], generator=draw) * 1e-3).to(torch.float16)
        blocks[:, :, at : at + 2] = halves.view(torch.uint8).view(*shape[:2], 2)
    weight = QuantTensor(kind, blocks.view(columns, -1).to("cuda"), (columns, depth))
    impl = select("linear", OpQuery("cuda", "bfloat16", weight_kind=kind, capabilities=capabilities()))
    assert impl.name.startswith("triton-"), impl.name
    assert impl.pack is not None
    packed, numbers = impl.pack(weight), weight.dequantize().double()
    for rows in ROWS:
        x = torch.randn(rows, depth, device="cuda").to(torch.bfloat16)
        error = relative(impl.run(x, packed, None), x.double() @ numbers.T)
        assert error < EXACT, (rows, error)


@pytest.mark.parametrize(("columns", "depth"), [(384, 1024), (256, 7168), (200, 1024), (256, 1152)])
def test_square_blocks_match_float64_at_any_number_of_rows(columns: int, depth: int) -> None:
    torch.manual_seed(columns)
    codes = torch.randn(columns, depth, device="cuda").mul(60).to(torch.float8_e4m3fn).view(torch.uint8)
    scales = torch.rand(-(-columns // 128), depth // 128, device="cuda") * 0.01 + 0.001
    weight = CodedTensor("fp8", (columns, depth), codes, scales.repeat_interleave(128, dim=0)[:columns])
    query = OpQuery("cuda", "bfloat16", weight_kind="fp8", activation="fp8", capabilities=capabilities())
    impl = select("linear", query)
    assert impl.pack is not None
    packed, numbers = impl.pack(weight), weight.dequantize().double()
    bias = torch.randn(columns, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(2500, depth, device="cuda", dtype=torch.bfloat16)
    x[1] *= 1000
    last = None
    for rows in (3, 64, 65, 77, 96, 2500):
        got = impl.run(x[:rows], packed, bias)
        assert relative(got - bias, x[:rows].double() @ numbers.T) < ROUNDED, rows
        assert last is None or relative(got[:1], last) < 5e-3, "a row is rounded alike in all of them"
        last = got[:1].double()
