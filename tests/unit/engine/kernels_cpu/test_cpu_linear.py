"""Matrix products of every weight kind on every instruction set, against float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.errors import UnsupportedFormat
from engine.ggml_types import TYPE_BY_NAME
from engine.kernels.cpu import abi, library, ops, weights

EachIsa = Callable[[], Iterator[str]]
RandomWeight = Callable[..., Any]  # kind, rows, columns -> .stored and .numbers


def quantised_rows(x: Tensor, block: int) -> Tensor:
    """What int8 activations stand for: each block rounded to 127ths of its largest."""
    rows, columns = x.shape
    padded = torch.nn.functional.pad(x, (0, -columns % block)).view(rows, -1, block)
    step = padded.abs().amax(dim=2, keepdim=True) / 127
    q = torch.where(step > 0, (padded * (1 / step).nan_to_num(posinf=0)).round(), 0)
    return (q.double() * step.double()).view(rows, -1)[:, :columns]


def bound(x: Tensor, weight: Any) -> Tensor:
    """What float32 sums may lose: a few units in the last place of the sum of the terms' sizes."""
    return 4e-6 * (x.double().abs() @ weight.numbers.abs().T) + 1e-30


@pytest.mark.parametrize("kind", abi.KINDS)
@pytest.mark.parametrize("rows", [1, 15, 37])
def test_linear_exact_every_isa_equals_float64_within_float32(
    kind: str, rows: int, each_isa: EachIsa, random_weight: RandomWeight
) -> None:
    columns = {256: 512, 128: 384}.get(TYPE_BY_NAME[kind].block_elements, 96)  # 384: half of a run of eight blocks
    weight = random_weight(kind, rows, columns)
    packed = weights.pack(weight.stored)
    x = torch.randn(9, columns)
    bias = torch.randn(rows)
    truth = x.double() @ weight.numbers.T + bias
    results = [ops.linear_exact(x, packed, bias) for _ in each_isa()]
    assert torch.all((results[0] - truth).abs() <= bound(x, weight) + 1e-6)
    assert all(r.equal(results[0]) for r in results)


@pytest.mark.parametrize("kind", sorted(abi.INTEGER_KINDS))
def test_linear_int8_every_isa_equals_float64_of_the_rounded_activations(
    kind: str, each_isa: EachIsa, random_weight: RandomWeight
) -> None:
    weight = random_weight(kind, 35, 768)
    packed = weights.pack(weight.stored)
    x = torch.randn(13, 768) * torch.logspace(-3, 3, 13).unsqueeze(1)
    truth = quantised_rows(x, 768 if kind == "I8_ROW" else 32) @ weight.numbers.T
    results = [ops.linear_int8(x, packed) for _ in each_isa()]
    # A value half way between two steps may round either way: that is one step of one weight.
    slack = bound(x, weight) + x.abs().amax(1, keepdim=True).double() / 127 * weight.numbers.abs().max()
    assert torch.all((results[0] - truth).abs() <= slack)
    assert all(r.equal(results[0]) for r in results)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "I8_ROW"])
@pytest.mark.parametrize("columns", [1, 3, 31, 33, 100, 4095])
def test_linear_float_kinds_with_ragged_columns(
    kind: str, columns: int, each_isa: EachIsa, random_weight: RandomWeight
) -> None:
    weight = random_weight(kind, 17, columns)
    packed = weights.pack(weight.stored)
    x = torch.randn(5, columns)
    truth = x.double() @ weight.numbers.T
    for _ in each_isa():
        assert torch.all((ops.linear_exact(x, packed) - truth).abs() <= bound(x, weight))


@pytest.mark.parametrize("run", [ops.linear_exact, ops.linear_int8])
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0", "Q6_K", "BF16", "I8_ROW", "I4_G128", "I4Z_G128"])
def test_linear_row_is_bit_identical_whatever_is_beside_it(
    kind: str, run: Callable[..., Tensor], each_isa: EachIsa, random_weight: RandomWeight
) -> None:
    packed = weights.pack(random_weight(kind, 50, 256).stored)
    x = torch.randn(129, 256)
    alone = torch.cat([run(x[i : i + 1], packed) for i in range(129)])
    for name in each_isa():
        counts = (1, 2, 3, 4, 5, 7, 8, 9, 16, 33, 129) if name != "scalar" else (3, 129)
        for count in counts:
            assert run(x[:count], packed).equal(alone[:count]), (name, count)


@pytest.mark.parametrize("kind", ["Q4_1", "Q6_K", "F16", "I8_ROW"])
def test_linear_of_1_to_129_rows_equals_float64(kind: str, each_isa: EachIsa, random_weight: RandomWeight) -> None:
    columns = 256 if kind == "Q6_K" else 96
    weight = random_weight(kind, 19, columns)
    packed = weights.pack(weight.stored)
    x = torch.randn(129, columns)
    truth, slack = x.double() @ weight.numbers.T, bound(x, weight)
    for name in each_isa():
        for count in range(1, 130) if name != "scalar" else (1, 2, 7, 128, 129):
            out = ops.linear_exact(x[:count], packed)
            assert torch.all((out - truth[:count]).abs() <= slack[:count]), (name, count)


def test_linear_writes_rows_that_begin_anywhere(each_isa: EachIsa, random_weight: RandomWeight) -> None:
    packed = weights.pack(random_weight("Q4_0", 21, 64).stored)
    x, bias = torch.randn(5, 64), torch.randn(22)[1:]
    for _ in each_isa():
        memory = torch.full((5 * 24 + 3,), 7.0)
        out = memory[3:].view(5, 24)[:, :21]
        assert out.data_ptr() % 16 != 0
        ops.linear_exact(x, packed, bias, out)
        assert out.equal(ops.linear_exact(x, packed, bias.clone()))
        assert memory[:3].eq(7).all()
        assert memory[3:].view(5, 24)[:, 21:].eq(7).all()


@pytest.mark.parametrize("threads", [1, 3, 5])
def test_linear_with_odd_thread_counts_is_bit_identical(threads: int, random_weight: RandomWeight) -> None:
    packed = weights.pack(random_weight("Q4_K", 333, 1024).stored)
    x = torch.randn(21, 1024)
    before = ops.linear_int8(x, packed)
    was = library.threads()
    try:
        library.set_threads(threads)
        assert weights.pack(random_weight("Q4_K", 333, 1024).stored).data.equal(packed.data)
        assert ops.linear_int8(x, packed).equal(before)
    finally:
        library.set_threads(was)


def test_linear_unaligned_rows_and_strided_input(each_isa: EachIsa, random_weight: RandomWeight) -> None:
    weight = random_weight("Q5_1", 40, 64)
    packed = weights.pack(weight.stored)
    memory = torch.randn(7 * 100 + 1)
    x = memory[1:].as_strided((7, 64), (100, 1))
    assert x.data_ptr() % 16 != 0
    for _ in each_isa():
        assert ops.linear_exact(x, packed).equal(ops.linear_exact(x.clone(), packed))
        assert ops.linear_int8(x, packed).equal(ops.linear_int8(x.clone(), packed))


@pytest.mark.parametrize("run", [ops.linear_exact, ops.linear_int8])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_linear_fault_stays_in_its_row_and_is_not_hidden(
    bad: float, run: Callable[..., Tensor], each_isa: EachIsa, random_weight: RandomWeight
) -> None:
    packed = weights.pack(random_weight("Q4_1", 32, 64).stored)
    x = torch.randn(5, 64)
    clean = run(x, packed)
    x[2, 40] = bad
    for _ in each_isa():
        out = run(x, packed)
        assert not torch.isfinite(out[2]).any()
        assert out[[0, 1, 3, 4]].equal(clean[[0, 1, 3, 4]])


def test_linear_tiny_and_zero_activations_give_zero_not_nan(each_isa: EachIsa, random_weight: RandomWeight) -> None:
    packed = weights.pack(random_weight("Q8_0", 16, 64).stored)
    x = torch.zeros(2, 64)
    x[1] = 1e-41
    for _ in each_isa():
        assert ops.linear_int8(x, packed).eq(0).all()


def test_linear_extreme_weights_and_activations_do_not_overflow(each_isa: EachIsa) -> None:
    data = torch.full((16, 34), 0x80, dtype=torch.uint8)  # every weight -128
    data[:, :2] = torch.tensor([1.0], dtype=torch.float16).view(torch.uint8)
    packed = weights.pack(weights.QuantTensor("Q8_0", data, (16, 32)))
    x = torch.full((1, 32), -127.0)
    for _ in each_isa():
        assert ops.linear_int8(x, packed).eq(127.0 * 128 * 32).all()


def test_linear_row_scales_hold_the_widest_sum(each_isa: EachIsa) -> None:
    width = 1 << 16
    data = torch.full((16, 4 + width), 0x80, dtype=torch.uint8)  # every weight -128
    data[:, :4] = torch.tensor([1.0]).view(torch.uint8)
    packed = weights.pack(weights.QuantTensor("I8_ROW", data, (16, width)))
    for _ in each_isa():
        assert ops.linear_int8(torch.full((9, width), -127.0), packed).eq(127.0 * 128 * width).all()
    wider = torch.zeros(1, 5 + width, dtype=torch.uint8)
    with pytest.raises(UnsupportedFormat):
        weights.pack(weights.QuantTensor("I8_ROW", wider, (1, width + 1)))


def test_linear_no_rows_gives_no_rows(random_weight: RandomWeight) -> None:
    packed = weights.pack(random_weight("F32", 8, 8).stored)
    assert ops.linear_exact(torch.empty(0, 8), packed).shape == (0, 8)


def test_pack_of_an_unread_kind_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedFormat, match="Q2_K"):
        weights.pack(weights.QuantTensor("Q2_K", torch.zeros(1, 84, dtype=torch.uint8), (1, 256)))


def test_pack_takes_rows_of_a_larger_tensor(random_weight: RandomWeight) -> None:
    whole = random_weight("BF16", 20, 64).stored
    assert isinstance(whole, Tensor)
    part = whole[:, :32]
    x = torch.randn(3, 32)
    assert ops.linear_exact(x, weights.pack(part)).equal(ops.linear_exact(x, weights.pack(part.clone())))


@pytest.mark.parametrize("kind", abi.KINDS)
def test_embedding_rows_equal_the_formats_own_numbers(kind: str, random_weight: RandomWeight) -> None:
    columns = {256: 256, 128: 384}.get(TYPE_BY_NAME[kind].block_elements, 64)
    weight = random_weight(kind, 11, columns)
    ids = torch.tensor([10, 0, 3, 3])
    rows = ops.embedding(ids, weights.keep_rows(weight.stored), torch.float32)
    assert rows.double().equal(weight.numbers[ids])
