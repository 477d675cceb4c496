"""Norms and gates of a few rows that write the whole numbers of the next product, beside numbers and the product."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed: `make test` installs it for these tests")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

from engine.kernels.registry import OpQuery  # noqa: E402
from engine.kernels.triton.few_codes import Fine  # noqa: E402
from engine.kernels.triton.few_rows import MAX_ROWS  # noqa: E402
from engine.layers.coded_input import add_norm_into, gate_into, norm_into  # noqa: E402
from engine.layers.linear import CodedRows, Linear  # noqa: E402
from engine.layers.ops import Ops  # noqa: E402
from engine.quant.encode import encode, encode_mixed  # noqa: E402

DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float16
WIDTH = 256


def projection(kind: str, activation: str = "exact") -> tuple[Ops, Linear]:
    torch.manual_seed(5)
    weight = torch.randn(24, WIDTH, device=DEVICE) * 0.1
    columns = torch.tensor([3, 70], device=DEVICE)
    coded = encode_mixed(weight, columns) if kind == "int8_mixed" else encode(weight, kind)
    name = str(DTYPE).removeprefix("torch.")
    ops = Ops(OpQuery("cuda", name, activation=activation, capabilities=frozenset({"triton", "fp8"})))
    return ops, ops.linear([coded], [torch.randn(24, device=DEVICE).to(DTYPE)])


@pytest.mark.parametrize(("kind", "activation"), [("int4", "exact"), ("int8", "exact"), ("int8", "int8")])
def test_ops_before_a_few_rows_write_what_rounding_their_numbers_gives(kind: str, activation: str) -> None:
    ops, linear = projection(kind, activation)
    x, residual = (torch.randn(2, WIDTH, device=DEVICE).to(DTYPE) for _ in range(2))
    weight = (torch.rand(WIDTH, device=DEVICE) + 0.5).to(DTYPE)
    normed, total = add_norm_into(ops.add_rms_norm, linear, x, residual, weight, 1e-5)
    plain, added = ops.add_rms_norm(x, residual, weight, 1e-5)
    assert isinstance(normed, CodedRows)
    assert isinstance(normed.codes, Fine)
    assert torch.equal(total, added)
    torch.testing.assert_close(linear(normed), linear(plain), rtol=4e-3, atol=4e-3)
    first = norm_into(ops.rms_norm, linear, x, weight, 1e-5)
    torch.testing.assert_close(linear(first), linear(ops.rms_norm(x, weight, 1e-5)), rtol=4e-3, atol=4e-3)
    gates = torch.randn(2, 2 * WIDTH, device=DEVICE).to(DTYPE)
    gated = gate_into(ops.silu_mul, "silu", linear, gates)
    assert isinstance(gated, CodedRows)
    torch.testing.assert_close(linear(gated), linear(ops.silu_mul(gates)), rtol=4e-3, atol=4e-3)


def test_more_rows_and_columns_kept_beside_come_as_numbers() -> None:
    _, linear = projection("int4")
    assert linear.coding_part(MAX_ROWS) is not None
    assert linear.coding_part(MAX_ROWS + 1) is None
    assert linear.coding_part(64) is None
    _, mixed = projection("int8_mixed")
    assert mixed.coding_part(2) is None
