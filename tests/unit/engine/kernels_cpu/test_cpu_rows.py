"""Norms, gates, rotary embedding, page writes and argmax on every instruction set."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from engine.errors import WorkerError
from engine.kernels import reference
from engine.kernels.cpu import ops

EachIsa = Callable[[], Iterator[str]]
WIDTHS = [1, 7, 8, 9, 15, 16, 17, 31, 64, 100, 4095]


@pytest.mark.parametrize("width", WIDTHS)
def test_rms_norm_every_isa_equals_float64(width: int, each_isa: EachIsa) -> None:
    x, weight = torch.randn(5, width) * 30, torch.randn(width)
    truth = x.double() * (x.double().square().mean(1, keepdim=True) + 1e-5).rsqrt() * weight.double()
    results = [ops.rms_norm(x, weight, 1e-5) for _ in each_isa()]
    assert torch.allclose(results[0].double(), truth, rtol=2e-6, atol=1e-7)
    assert all(r.equal(results[0]) for r in results)


def test_rms_norm_of_strided_heads_keeps_the_shape(each_isa: EachIsa) -> None:
    heads = torch.randn(6, 5, 48)[:, :3]
    weight = torch.randn(48)
    for _ in each_isa():
        assert torch.allclose(ops.rms_norm(heads, weight, 1e-6), reference.rms_norm(heads, weight, 1e-6), atol=1e-5)


def test_add_rms_norm_gives_the_sum_and_its_norm(each_isa: EachIsa) -> None:
    x, residual, weight = torch.randn(3, 100), torch.randn(3, 100), torch.randn(100)
    for _ in each_isa():
        normed, total = ops.add_rms_norm(x, residual, weight, 1e-5)
        assert total.equal(x + residual)
        assert normed.equal(ops.rms_norm(total, weight, 1e-5))


@pytest.mark.parametrize("width", WIDTHS)
def test_silu_mul_every_isa_equals_float64(width: int, each_isa: EachIsa) -> None:
    gate_up = torch.randn(4, 2 * width) * 8
    gate, up = gate_up.double().chunk(2, dim=1)
    results = [ops.silu_mul(gate_up) for _ in each_isa()]
    assert torch.allclose(results[0].double(), gate * torch.sigmoid(gate) * up, rtol=1e-6, atol=1e-7)
    assert all(r.equal(results[0]) for r in results)


def test_silu_mul_at_the_ends_of_float32(each_isa: EachIsa) -> None:
    gate = torch.tensor([[-1e30, -200.0, -88.0, -0.0, 0.0, 88.0, 200.0, 1e30, float("nan"), float("inf")]])
    gate_up = torch.cat((gate, torch.ones_like(gate)), dim=1)
    truth = torch.nn.functional.silu(gate)
    for _ in each_isa():
        assert torch.allclose(ops.silu_mul(gate_up), truth, atol=1e-30, equal_nan=True)


@pytest.mark.parametrize("rotary", [64, 32, 20, 2])
def test_rope_every_isa_equals_the_reference(rotary: int, each_isa: EachIsa) -> None:
    positions, table = torch.tensor([3, 0, 99]), torch.randn(100, rotary)
    qkv = torch.randn(3, 6, 64)
    for _ in each_isa():
        ours, theirs = qkv.clone(), qkv.clone()
        ops.rope(ours[:, :3], ours[:, 3:5], positions, table)
        reference.rope(theirs[:, :3], theirs[:, 3:5], positions, table)
        assert torch.allclose(ours, theirs, atol=1e-6)
        assert ours[:, 5].equal(qkv[:, 5])


def test_rope_position_beyond_the_table_is_refused() -> None:
    with pytest.raises(WorkerError):
        ops.rope(torch.randn(1, 1, 8), torch.randn(1, 1, 8), torch.tensor([4]), torch.randn(4, 8))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dim", [16, 33])
def test_kv_write_rounds_as_torch_does(dtype: torch.dtype, dim: int, each_isa: EachIsa) -> None:
    k = torch.randn(4, 2, dim) * torch.logspace(-9, 6, 4).view(4, 1, 1)
    v = torch.randn(4, 2, dim)
    odd = (65519.0, 65520.0, 6e-8, 2.9e-8, float("inf"), -float("inf"), -0.0, 1.00390625)
    k[0, 0, : len(odd)] = torch.tensor(odd)
    pages, offsets = torch.tensor([2, 0, 1, 2]), torch.tensor([7, 0, 3, 1])
    for _ in each_isa():
        ours, theirs = (torch.zeros(3, 2, 2, 8, dim, dtype=dtype) for _ in range(2))
        ops.kv_write(k, v, ours, pages, offsets)
        reference.kv_write(k, v, theirs, pages, offsets)
        assert ours.view(torch.uint8).equal(theirs.view(torch.uint8))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_kv_write_nan_stays_nan(dtype: torch.dtype, each_isa: EachIsa) -> None:
    k = torch.full((1, 1, 16), float("nan"))
    for _ in each_isa():
        view = torch.zeros(1, 2, 1, 1, 16, dtype=dtype)
        ops.kv_write(k, k, view, torch.tensor([0]), torch.tensor([0]))
        assert torch.isnan(view).all()


@pytest.mark.parametrize(("page", "offset"), [(3, 0), (-1, 0), (0, 8)])
def test_kv_write_outside_the_pages_is_refused(page: int, offset: int) -> None:
    k = torch.randn(1, 2, 16)
    with pytest.raises(WorkerError):
        ops.kv_write(k, k, torch.zeros(3, 2, 2, 8, 16), torch.tensor([page]), torch.tensor([offset]))


@pytest.mark.parametrize("width", [1, 2, 255, 256, 257, 4095])
def test_argmax_first_of_equals_and_nan(width: int, each_isa: EachIsa) -> None:
    x = torch.randint(-5, 5, (6, width)).float()
    x[1] = -float("inf")
    x[2, -1] = float("nan")
    x[3] = 1.0
    expected = torch.tensor([int(row.tolist().index(max(row.tolist()))) for row in x.nan_to_num(nan=-99)])
    expected[2] = -1
    for _ in each_isa():
        assert ops.argmax(x).equal(expected)


def test_embedding_of_a_token_beyond_the_table_is_refused() -> None:
    from engine.kernels.cpu.weights import keep_rows

    with pytest.raises(WorkerError):
        ops.embedding(torch.tensor([4]), keep_rows(torch.randn(4, 8)), torch.float32)
