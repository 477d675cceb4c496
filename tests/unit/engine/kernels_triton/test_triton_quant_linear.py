"""The linear op over quantised weights, through the registry: every kind, every number of rows where a kernel ends."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed: `make test` installs it for these tests")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

from engine.kernels.registry import OpQuery, select  # noqa: E402
from engine.kernels.triton import backend, coded, coded_rows, quant_linear  # noqa: E402
from engine.quant.coded_tensor import CodedTensor  # noqa: E402
from engine.quant.encode import encode, encode_mixed  # noqa: E402

KINDS = ["fp8", "int8", "int8_mixed", "int4", "fp4_nv", "fp4_mx"]
DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float16


def relative(got: torch.Tensor, truth: torch.Tensor) -> float:
    return float((got.double() - truth.double()).norm() / truth.double().norm())


def weight_of(kind: str) -> CodedTensor:
    torch.manual_seed(7)
    weight = torch.randn(48, 256, device=DEVICE) * 0.1
    if kind == "int8_mixed":
        return encode_mixed(weight, torch.tensor([4, 99, 200], device=DEVICE))
    return encode(weight, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_each_number_of_rows_matches_float64(kind: str) -> None:
    weight = weight_of(kind)
    packed, numbers = quant_linear.pack(weight), weight.dequantize().double()
    bias = torch.randn(48, device=DEVICE).to(DTYPE)
    for rows in (0, 1, 4, 5, 16, 17, 64, 65):
        x = torch.randn(rows, 256, device=DEVICE).to(DTYPE)
        got = quant_linear.linear(x, packed, bias)
        assert got.shape == (rows, 48)
        if rows:
            truth = x.double() @ numbers.T + bias.double()
            assert relative(got, truth) < 1.5e-2


def test_kinds_are_offered_their_kernels_by_what_the_device_can() -> None:
    both = frozenset({"triton", "fp8"})
    assert set(backend.CODED_KINDS) == set(coded.KINDS)

    def name(kind: str, activation: str, capabilities: frozenset[str] = both, dtype: str = "bfloat16") -> str:
        query = OpQuery("cuda", dtype, weight_kind=kind, activation=activation, capabilities=capabilities)
        return select("linear", query).name

    assert {name(kind, "exact") for kind in [*KINDS, "Q8_0", "Q4_0", "MXFP4"]} == {"triton-codes"}
    assert name("fp8", "fp8") == "triton-fp8"
    assert name("fp8", "fp8", frozenset({"triton"})) == "triton-codes"
    assert name("int8", "int8") == name("int8_mixed", "int8") == "triton-int8"
    assert name("int4", "int8") == name("int4", "fp8") == "triton-codes"
    assert name("fp4_mx", "fp8") == name("MXFP4", "fp8") == "triton-fp4"
    assert name("fp4_nv", "fp8") == "triton-codes"  # as E4M3 it would be rounded for many rows alone
    assert name("fp4_mx", "fp8", frozenset({"triton"})) == name("fp4_mx", "int8") == "triton-codes"
    assert name("Q6_K", "exact") == name("IQ4_XS", "int8") == "triton-codes"
    assert name("F32", "exact") == name("fp8", "exact", frozenset()) == "reference"


def test_a_row_of_codes_does_not_depend_on_those_beside_it() -> None:
    for kind, run in (("int8_mixed", coded_rows.linear_int8), ("fp8", coded_rows.linear_fp8)):
        packed = quant_linear.pack(weight_of(kind))
        x = torch.randn(20, 256, device=DEVICE).to(DTYPE)
        other = torch.cat((torch.randn(19, 256, device=DEVICE).to(DTYPE) * 30, x[:1]))
        assert torch.equal(run(other, packed)[19], run(x, packed)[0])


def test_a_shape_the_kernels_do_not_take_is_computed_by_the_reference() -> None:
    weight = encode(torch.randn(5, 48, device=DEVICE), "fp4_nv")
    x = torch.randn(3, 48, device=DEVICE)
    got = quant_linear.linear(x, quant_linear.pack(weight))
    assert relative(got, x @ weight.dequantize().T) < 1e-5
