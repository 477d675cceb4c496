"""A norm or a gate that leaves room behind its rows: the product of that is the product of the rows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="triton is not installed: `make test` installs it for these tests")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

from engine.kernels.registry import OpQuery  # noqa: E402
from engine.kernels.triton import gemv  # noqa: E402
from engine.layers.coded_input import add_norm_into, gate_into, norm_into  # noqa: E402
from engine.layers.linear import CodedRows, Linear  # noqa: E402
from engine.layers.ops import Ops  # noqa: E402

DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float16
WIDTH, COLUMNS, ROWS = 64, 96, 37


@pytest.fixture
def projection(monkeypatch: pytest.MonkeyPatch) -> tuple[Ops, Linear]:
    monkeypatch.setattr(gemv, "PAD_FROM_ROWS", 16)
    monkeypatch.setattr(gemv, "PAD_FROM_COLUMNS", COLUMNS)
    torch.manual_seed(5)
    ops = Ops(OpQuery("cuda", str(DTYPE).removeprefix("torch."), capabilities=frozenset({"triton"})))
    return ops, ops.linear([values(COLUMNS, WIDTH)], [values(COLUMNS)])


def values(*shape: int) -> Tensor:
    return torch.randn(*shape, device=DEVICE).to(DTYPE)


def test_what_a_norm_or_a_gate_pads_gives_the_product_of_its_rows(projection: tuple[Ops, Linear]) -> None:
    ops, linear = projection
    x, residual, weight = values(ROWS, WIDTH), values(ROWS, WIDTH), torch.rand(WIDTH, device=DEVICE) + 0.5
    written = norm_into(ops.rms_norm, linear, x, weight, 1e-5)
    assert isinstance(written, CodedRows)
    assert written.codes.numbers.shape == (256, WIDTH)
    assert torch.equal(linear(written), linear(ops.rms_norm(x, weight, 1e-5)))
    added, total = add_norm_into(ops.add_rms_norm, linear, x, residual, weight, 1e-5)
    numbers, wanted = ops.add_rms_norm(x, residual, weight, 1e-5)
    assert isinstance(added, CodedRows)
    assert torch.equal(total, wanted)
    got = linear(added)
    assert got.shape == (ROWS, COLUMNS)
    assert torch.equal(got, linear(numbers))
    gate_up = values(ROWS, 2 * WIDTH)
    for activation in ("silu", "gelu_tanh"):
        gate = ops.gate(activation)
        gated = gate_into(gate, activation, linear, gate_up)
        assert isinstance(gated, CodedRows)
        assert torch.equal(linear(gated), linear(gate(gate_up)))


@pytest.mark.parametrize("rows", [15, 256])
def test_rows_that_are_few_or_whole_stay_numbers(projection: tuple[Ops, Linear], rows: int) -> None:
    ops, linear = projection
    assert isinstance(norm_into(ops.rms_norm, linear, values(rows, WIDTH), values(WIDTH), 1e-5), Tensor)
