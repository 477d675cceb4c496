"""BF16 weights times activations rounded to bf16, in tiles or with AVX512_BF16, against float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from engine.kernels import registry
from engine.kernels.cpu import library, ops, weights
from engine.kernels.registry import OpQuery

EachIsa = Callable[[], Iterator[str]]


@pytest.mark.parametrize("columns", [1, 2, 31, 33, 100, 1000, 4095])
@pytest.mark.parametrize("rows", [1, 16, 17, 50])
def test_rounded_products_equal_float64_of_the_rounded_numbers(
    rows: int, columns: int, each_isa: EachIsa, random_weight: Callable[..., Any]
) -> None:
    weight = random_weight("BF16", rows, columns)
    packed = weights.pack(weight.stored)
    x, bias = torch.randn(11, columns), torch.randn(rows)
    for name in each_isa():
        given = x.to(torch.bfloat16).double() if library.has_bf16() else x.double()
        truth = given @ weight.numbers.T + bias
        # Units in the last place of sums of K terms, in an order of the CPU's own.
        slack = 1e-6 * columns**0.5 * (given.abs() @ weight.numbers.abs().T) + 1e-6
        assert torch.all((ops.linear_bf16(x, packed, bias) - truth).abs() <= slack), name


def test_rounded_row_is_bit_identical_whatever_is_beside_it(
    each_isa: EachIsa, random_weight: Callable[..., Any]
) -> None:
    packed = weights.pack(random_weight("BF16", 50, 1100).stored)
    x = torch.randn(129, 1100)
    for name in each_isa():
        if name == "scalar":
            continue  # slow, and it has no form of its own
        alone = torch.cat([ops.linear_bf16(x[i : i + 1], packed) for i in range(129)])
        for count in (1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 31, 32, 33, 129):
            assert ops.linear_bf16(x[:count], packed).equal(alone[:count]), (name, count)


def test_profile_that_may_round_gets_bf16_products_where_the_cpu_has_them(each_isa: EachIsa) -> None:
    query = OpQuery("cpu", "float32", weight_kind="BF16", activation="int8")
    for name in each_isa():
        chosen = registry.select("linear", query).name
        assert chosen == ("cpu-bf16" if library.has_bf16() else "cpu"), name
        if chosen == "cpu":
            assert f"this CPU's kernels are {name}" in registry.why("linear", query)
    assert registry.select("linear", OpQuery("cpu", "float32", weight_kind="BF16")).name == "cpu"
