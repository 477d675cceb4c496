"""Norms and gates that write the next projection's codes, through layers: the same bits as one after the other."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="triton is not installed: `make test` installs it for these tests")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

from engine.kernels import reference  # noqa: E402
from engine.kernels.registry import OpQuery  # noqa: E402
from engine.layers.adapters import AdaptedLinear  # noqa: E402
from engine.layers.coded_input import add_norm_into, gate_into, norm_into  # noqa: E402
from engine.layers.linear import CodedRows, Linear, WatchedLinear  # noqa: E402
from engine.layers.ops import Ops  # noqa: E402
from engine.quant.coded_tensor import CodedTensor  # noqa: E402
from engine.quant.encode import encode, encode_mixed  # noqa: E402

DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float16
WIDTH, ROWS = 256, 21
SAME = 3e-3 if DEVICE == "cuda" else 1e-3  # sums of another order, rounded to the type
# Weights -> kind of activations
KINDS = {"fp8": "fp8", "fp8_blocks": "fp8", "fp4_mx": "fp8", "int8": "int8", "int8_mixed": "int8"}


def weight_of(kind: str) -> CodedTensor:
    torch.manual_seed(11)
    weight = torch.randn(48, WIDTH, device=DEVICE) * 0.1
    if kind == "int8_mixed":
        return encode_mixed(weight, torch.tensor([4, 99, 200], device=DEVICE))
    return encode(weight, kind.removesuffix("_blocks"), 128 if kind.endswith("_blocks") else None)


def ops_of(activation: str) -> Ops:
    capabilities = frozenset({"triton", "fp8"})
    query = OpQuery("cuda", str(DTYPE).removeprefix("torch."), activation=activation, capabilities=capabilities)
    return Ops(query)


def projection(kind: str) -> tuple[Ops, Linear]:
    ops = ops_of(KINDS[kind])
    return ops, ops.linear([weight_of(kind)], [torch.randn(48, device=DEVICE).to(DTYPE)])


def values(*shape: int) -> Tensor:
    return torch.randn(*shape, device=DEVICE).to(DTYPE)


@pytest.mark.parametrize("rows", [2, ROWS])
@pytest.mark.parametrize("kind", list(KINDS))
def test_a_norm_writes_codes_that_give_what_its_numbers_give(
    kind: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.kernels.triton.fp4_native.NATIVE_ROWS", ROWS)
    ops, linear = projection(kind)
    x, residual, weight = values(rows, WIDTH), values(rows, WIDTH), torch.rand(WIDTH, device=DEVICE) + 0.5
    written = norm_into(ops.rms_norm, linear, x, weight, 1e-5)
    assert isinstance(written, CodedRows)
    assert written.shape == (rows, WIDTH)
    assert torch.equal(linear(written), linear(ops.rms_norm(x, weight, 1e-5)))
    added, total = add_norm_into(ops.add_rms_norm, linear, x, residual, weight, 1e-5)
    numbers, wanted = ops.add_rms_norm(x, residual, weight, 1e-5)
    assert isinstance(added, CodedRows)
    assert torch.equal(total, wanted)
    assert torch.equal(linear(added), linear(numbers))


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize(("kind", "rows"), [("fp8", 1), ("fp8", ROWS), ("int8", 1), ("int8_mixed", ROWS)])
def test_a_gate_writes_codes_that_give_what_its_numbers_give(kind: str, rows: int, activation: str) -> None:
    ops, linear = projection(kind)
    gate_up, gate = values(rows, 2 * WIDTH), ops.gate(activation)
    written = gate_into(gate, activation, linear, gate_up)
    assert isinstance(written, CodedRows)
    got = linear(written)
    assert torch.equal(got, linear(gate(gate_up)))
    named = {"silu": reference.silu_mul, "gelu_tanh": reference.gelu_mul}[activation]
    truth = named(gate_up).double() @ weight_of(kind).dequantize().double().T
    bias = linear.parts[0].bias
    assert bias is not None
    assert float((got.double() - bias.double() - truth).norm() / truth.norm()) < 5e-2


def test_whoever_needs_numbers_gets_numbers() -> None:
    ops, linear = projection("fp8")
    weight = torch.ones(WIDTH, device=DEVICE)
    watched = WatchedLinear(linear, lambda roles, layer, x: None, ["attn_q"], 0)
    adapted = AdaptedLinear(linear, SimpleNamespace(), SimpleNamespace(rows=None))  # type: ignore[arg-type]
    two = ops.linear([weight_of("fp8"), weight_of("fp8_blocks")], [None, None])
    assert len(two.parts) == 2
    exact = ops_of("exact").linear([weight_of("fp8")], [None])
    for reader in (watched, adapted, two, exact, None):
        assert isinstance(norm_into(ops.rms_norm, reader, values(ROWS, WIDTH), weight, 1e-5), Tensor), reader


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_row_is_rounded_alike_whatever_stands_beside_it(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels change with the number of rows; a rounding that changed with them would be a hundredth."""
    monkeypatch.setattr("engine.kernels.triton.fp4_native.NATIVE_ROWS", ROWS)
    monkeypatch.setattr("engine.kernels.triton.coded_rows.BLOCK_ROWS", ROWS)
    ops, linear = projection(kind)
    weight = torch.rand(WIDTH, device=DEVICE)
    x = values(40, WIDTH)
    x[1:] *= 30
    many = linear(x)[:1].double()
    normed = linear(norm_into(ops.rms_norm, linear, x, weight, 1e-5))[:1].double()
    for rows in (1, 5, 17):
        alone = linear(x[:rows])[:1].double()
        assert float((alone - many).norm() / many.norm()) < SAME, rows
        again = linear(norm_into(ops.rms_norm, linear, x[:rows], weight, 1e-5))[:1].double()
        assert float((again - normed).norm() / normed.norm()) < SAME, rows
    truth = x[:1].double() @ weight_of(kind).dequantize().double().T
    bias = linear.parts[0].bias
    assert bias is not None
    error = float((many - bias.double() - truth).norm() / truth.norm())
    assert error > (2e-3 if kind.startswith("int8") else 1e-2), "nothing was rounded, which proves nothing"
