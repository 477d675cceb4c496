"""Codes and scales apart: every code by an independent decoder, rounding to nearest, stacking, refusal."""

from __future__ import annotations

import itertools

import pytest
import torch

from engine.errors import UnsupportedFormat
from engine.quant.coded_tensor import CODED_KINDS, CodedTensor, check_codes, stack_coded, stackable
from engine.quant.encode import encode, encode_mixed


def e4m3(code: int) -> float:
    sign, exponent, fraction = -1.0 if code & 128 else 1.0, (code >> 3) & 15, code & 7
    return sign * (fraction / 8 * 2.0**-6 if exponent == 0 else (1 + fraction / 8) * 2.0 ** (exponent - 7))


def e2m1(code: int) -> float:
    sign, exponent, fraction = -1.0 if code & 8 else 1.0, (code >> 1) & 3, code & 1
    return sign * (fraction / 2 if exponent == 0 else (1 + fraction / 2) * 2.0 ** (exponent - 1))


@pytest.mark.parametrize("scale", [2.0**-8, 1.0, 448.0])
def test_each_fp8_code_decodes_to_its_number(scale: float) -> None:
    codes = [code for code in range(256) if code & 127 != 127]
    weight = CodedTensor("fp8", (1, 254), torch.tensor([codes], dtype=torch.uint8), torch.tensor([[scale]]))
    assert weight.dequantize().tolist() == [[e4m3(code) * scale for code in codes]]


def test_each_int8_and_int4_code_decodes_to_its_number_under_each_zero() -> None:
    eight = torch.arange(-128, 128, dtype=torch.int8).view(1, 256)
    scales = torch.tensor([[0.5, 2.0]], dtype=torch.float16)
    decoded = CodedTensor("int8", (1, 256), eight, scales).dequantize()
    assert decoded.tolist() == [[c * (0.5 if i < 128 else 2.0) for i, c in enumerate(range(-128, 128))]]
    packed = torch.tensor([[2 * j | (2 * j + 1) << 4 for j in range(8)]] * 17, dtype=torch.uint8)
    zeros = torch.arange(17, dtype=torch.uint8).clamp(max=15).view(17, 1)
    four = CodedTensor("int4", (17, 16), packed, torch.full((17, 1), 0.25), zeros=zeros).dequantize()
    for row, zero in enumerate(zeros.flatten().tolist()):
        assert four[row].tolist() == [(code - zero) * 0.25 for code in range(16)]
    assert CodedTensor("int4", (1, 16), packed[:1], torch.ones(1, 1)).dequantize().tolist() == [list(range(-8, 8))]


def test_each_fp4_code_decodes_under_every_scale_byte() -> None:
    pairs = torch.tensor([2 * j | (2 * j + 1) << 4 for j in range(8)], dtype=torch.uint8)
    numbers = [e2m1(code) for code in range(16)]
    bytes_nv = [code for code in range(256) if code & 127 != 127]
    nv = CodedTensor(
        "fp4_nv",
        (254, 16),
        pairs.expand(254, 8),
        torch.tensor(bytes_nv, dtype=torch.uint8).view(254, 1),
        row_scales=torch.full((254,), 0.125),
    ).dequantize()
    assert nv.tolist() == [[number * (e4m3(code) * 0.125) for number in numbers] for code in bytes_nv]
    mx = CodedTensor(
        "fp4_mx", (255, 32), pairs.repeat(2).expand(255, 16), torch.arange(255, dtype=torch.uint8).view(255, 1)
    ).dequantize()
    truth = torch.tensor([[n * 2.0 ** (byte - 127) for n in numbers * 2] for byte in range(255)], dtype=torch.float64)
    assert torch.equal(mx, truth.to(torch.float32))


@pytest.mark.parametrize("kind", CODED_KINDS)
def test_encoding_gives_the_nearest_code_and_decoded_numbers_encode_to_themselves(kind: str) -> None:
    torch.manual_seed(0)
    weight = torch.randn(6, 256) * torch.tensor([1e-3, 0.02, 1.0, 30.0, 1e-6, 0.0]).unsqueeze(1)
    coded = check_codes(encode(weight, kind), "w")
    decoded = coded.dequantize()
    steps = {"fp8": 2**-4, "int8": 0.5 / 127, "int4": 0.08, "fp4_nv": 0.18, "fp4_mx": 0.34}[kind]
    bound = weight.view(6, -1, min(coded.group, 256)).abs().amax(dim=-1, keepdim=True) * steps
    error = (decoded - weight).abs().view(6, -1, min(coded.group, 256))
    # Below the range of its scale's type a row has absolute errors of that type's least number.
    assert bool((error <= bound + 5e-7).all()), float((error - bound).max())
    assert float(decoded[5].abs().max()) == 0.0
    again = encode(decoded[1:4], kind)
    assert torch.allclose(again.dequantize(), decoded[1:4], rtol=0.2 if kind == "fp4_nv" else 1e-3, atol=1e-6)


def test_int4_between_least_and_largest_beats_symmetric_on_shifted_weights() -> None:
    torch.manual_seed(1)
    weight = torch.rand(4, 256) + 0.5
    plain, shifted = (encode(weight, "int4", asymmetric=a).dequantize() - weight for a in (False, True))
    assert float(shifted.norm()) < 0.8 * float(plain.norm())


def test_mixed_keeps_its_columns_and_codes_the_rest_without_them() -> None:
    torch.manual_seed(2)
    weight = torch.randn(8, 64)
    weight[:, [3, 40]] *= 50
    mixed = encode_mixed(weight, torch.tensor([3, 40]))
    decoded = mixed.dequantize()
    assert torch.equal(decoded[:, [3, 40]], weight[:, [3, 40]].half().float())
    assert float((decoded - weight).abs().max()) < float((encode(weight, "int8").dequantize() - weight).abs().max()) / 5


@pytest.mark.parametrize("kind", CODED_KINDS)
def test_rows_taken_and_stacked_decode_as_they_did(kind: str) -> None:
    torch.manual_seed(3)
    weight = torch.randn(10, 128)
    whole = encode(weight, kind)
    order = torch.tensor([7, 1, 1, 9])
    assert torch.equal(whole.take(order).dequantize(), whole.dequantize()[order])
    assert torch.equal(whole.dequantize_at(order), whole.dequantize()[order])
    assert torch.equal(
        stack_coded([whole.take(slice(0, 4)), whole.take(slice(4, 10))]).dequantize(), whole.dequantize()
    )
    assert whole.num_bytes < weight.numel() * 4 / 3


def test_weights_unlike_in_kind_group_or_outliers_are_not_stackable() -> None:
    weight = torch.randn(4, 128)
    fp8, int8, groups = encode(weight, "fp8"), encode(weight, "int8"), encode(weight, "int4", 32)
    mixed, other = encode_mixed(weight, torch.tensor([1])), encode_mixed(weight, torch.tensor([2]))
    unlike = [fp8, int8, groups, encode(weight, "int4"), mixed, other]
    for first, second in itertools.combinations(unlike, 2):
        assert not stackable(first, second)
    assert all(stackable(one, one) for one in unlike)


def test_codes_that_are_no_numbers_are_refused() -> None:
    weight = torch.randn(2, 64)
    for kind, member in (("fp8", "codes"), ("fp4_nv", "scales"), ("fp4_mx", "scales")):
        coded = encode(weight, kind)
        getattr(coded, member)[1, 0] = 0xFF
        with pytest.raises(UnsupportedFormat, match="layer 3 holds 1 "):
            check_codes(coded, "layer 3")
    coded = encode(weight, "int8")
    coded.scales[0, 0] = float("inf")
    with pytest.raises(UnsupportedFormat):
        check_codes(coded, "w")


def test_columns_in_another_order_are_put_back_where_the_input_has_them() -> None:
    torch.manual_seed(4)
    weight, order = torch.randn(3, 64), torch.randperm(64)
    coded = encode(weight[:, order], "int8")
    moved = CodedTensor("int8", coded.shape, coded.codes, coded.scales, columns=order.to(torch.int32))
    assert torch.equal(moved.dequantize()[:, order], coded.dequantize())
