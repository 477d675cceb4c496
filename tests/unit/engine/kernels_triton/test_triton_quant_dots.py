"""Whole-number codes times a few rows of int16: in the interpreter on a CPU, compiled on a GPU."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed: `make test` installs it for these tests")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

from engine.kernels.triton.coded import coded  # noqa: E402
from engine.kernels.triton.fine_rows import FineForm, FineRows  # noqa: E402
from engine.kernels.triton.norms import add_rms_norm, gelu_mul, rms_norm, silu_mul  # noqa: E402
from engine.kernels.triton.quant_dots import DotsTiles, quant_dots, takes  # noqa: E402
from engine.kernels.triton.quant_dots import form as form_of  # noqa: E402
from engine.quant.coded_tensor import CodedTensor  # noqa: E402
from engine.quant.encode import encode  # noqa: E402
from engine.quant.gguf_encode import q4_1, q8_0  # noqa: E402
from engine.quant.quant_tensor import QuantTensor  # noqa: E402

# kind, group, with zero points
FORMS = [
    ("int8", None, False),
    ("int8", 32, False),
    ("int8", 128, True),
    ("int4", 128, False),
    ("int4", 128, True),
    ("int4", 32, True),
    ("int4", 16, False),
    ("int4", 16, True),
    ("fp4_nv", None, False),
    ("fp4_mx", None, False),
]
LAYOUTS = [FineForm(8), FineForm(16), FineForm(16, mingled=True), FineForm(16, mingled=True, eights=True)]


def numbers(rows: FineRows) -> torch.Tensor:
    """The rows as float64 in their own order. Shapes: -> [M, K]"""
    count, width = rows.codes.shape
    lane = rows.form.lane
    lanes, words = width // lane, lane // 4
    scales = rows.scales.double().repeat_interleave(32 // lane, dim=1)
    each = rows.codes.view(count, words, lanes, 4).double() * scales[:, None, :, None]
    if lane == 8:
        return each.permute(0, 2, 1, 3).reshape(count, width)
    if rows.form.eights:
        mixed = each.view(count, 4, lanes, 2, 2)  # [row, word, lane, number, half]
        return mixed.permute(0, 2, 4, 1, 3).reshape(count, width)
    if rows.form.mingled:
        mixed = each.view(count, 4, lanes // 2, 2, 2, 2)  # [row, word, block, lane, number, half]
        return mixed.permute(0, 2, 5, 3, 1, 4).reshape(count, width)
    blocks = each.view(count, 2, 2, lanes // 2, 2, 4)  # [row, half, word, block, lane, number]
    return blocks.permute(0, 3, 1, 4, 2, 5).reshape(count, width)


def random_weight(kind: str, group: int | None, zeros: bool, columns: int, depth: int) -> CodedTensor:
    torch.manual_seed(columns + depth)
    weight = torch.randn(columns, depth, device=DEVICE) * torch.rand(columns, 1, device=DEVICE) * 0.1
    return encode(weight + (0.02 if zeros else 0.0), kind, group, asymmetric=zeros)


@pytest.mark.parametrize("form", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_fine_rows_hold_numbers_to_a_32768th_of_the_largest_beside_them(dtype: torch.dtype, form: FineForm) -> None:
    torch.manual_seed(3)
    x = (torch.randn(3, 640, device=DEVICE) * torch.randn(3, 640, device=DEVICE).exp()).to(dtype)
    x[1, 32:64] = 0.0
    x[2, :32] = 1e-38
    rows = form.rows(x)
    largest = x.double().abs().view(3, 20, 32).amax(dim=2, keepdim=True)
    error = (numbers(rows) - x.double()).abs().view(3, 20, 32)
    assert bool((error <= largest / 32767 + 1e-30).all())
    whole = (numbers(rows).view(3, 20, 32) / rows.scales.double()[:, :, None]).nan_to_num()
    if form.eights:
        assert torch.equal(rows.sums.double().view(3, 40), whole.view(3, 40, 16).sum(dim=2))
    elif form.lane == 16:
        assert torch.equal(rows.sums.double(), whole.view(3, 20, 2, 16).sum(dim=3).transpose(1, 2))
    else:
        assert torch.equal(rows.sums.double().view(3, 80), whole.view(3, 80, 8).sum(dim=2))


def test_fine_rows_hold_bfloat16_exactly_down_to_a_128th() -> None:
    x = torch.randn(2, 256, device=DEVICE).to(torch.bfloat16)
    x = torch.where(x.abs() < 0.05, torch.full_like(x, 0.5), x)
    assert float(x.abs().max()) < 6.0
    assert torch.equal(numbers(FineForm(16).rows(x)), x.double())


@pytest.mark.parametrize("form", LAYOUTS)
def test_fine_rows_hold_the_largest_and_the_smallest_powers_of_two(form: FineForm) -> None:
    powers = torch.tensor([2.0**127, 2.0**124, 2.0**15, 1.0, 2.0**-60, 2.0**-107], device=DEVICE)
    x = powers[:, None] * torch.linspace(-1.9, 1.9, 32, device=DEVICE)
    x[0, 1:] = 0.0  # sums of such would be no floats
    error = (numbers(form.rows(x)) - x.double()).abs() / powers.double()[:, None]
    assert float(error.max()) <= 2.0**-15


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_fine_rows_that_are_not_finite_give_results_that_are_not(bad: float) -> None:
    packed = coded(random_weight("int4", 128, False, 4, 128))
    x = torch.randn(2, 128, device=DEVICE)
    x[1, 77] = bad
    got = quant_dots(form_of(packed).rows(x), packed, x.dtype)
    assert torch.isfinite(got[0]).all()
    assert not torch.isfinite(got[1]).any()


@pytest.mark.parametrize("width", [576, 1024])
def test_norms_and_gates_give_the_fine_rows_of_their_own_results(width: int) -> None:
    torch.manual_seed(width)
    x, residual = (torch.randn(3, width, device=DEVICE).to(torch.float16) for _ in range(2))
    weight = torch.rand(width, device=DEVICE).to(torch.float16) + 0.5
    wanted = FineForm(16)
    normed, total = add_rms_norm(x, residual, weight, 1e-5)
    rows, added = wanted.add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(added, total)
    pairs = [
        (rows, wanted.rows(normed)),
        (wanted.rms_norm(x, weight, 1e-5), wanted.rows(rms_norm(x, weight, 1e-5))),
        (wanted.gate(x, "silu"), wanted.rows(silu_mul(x))),
        (wanted.gate(x, "gelu_tanh"), wanted.rows(gelu_mul(x))),
    ]
    for got, truth in pairs:
        # The norm's sum may be added in another order: one rounding of a number more or less.
        torch.testing.assert_close(numbers(got), numbers(truth), rtol=2e-3, atol=1e-4)


@pytest.mark.parametrize(("kind", "group", "zeros"), FORMS)
def test_quant_dots_match_float64(kind: str, group: int | None, zeros: bool) -> None:
    weight = random_weight(kind, group, zeros, 9, 640)
    packed = coded(weight)
    assert takes(packed)
    for rows, tiles in ((1, None), (3, DotsTiles(4, 16, 1)), (2, DotsTiles(2, 512, 2))):
        x = torch.randn(rows, 640, device=DEVICE)
        bias = torch.randn(9, device=DEVICE) if rows > 1 else None
        truth = x.double() @ weight.dequantize().double().T + (0.0 if bias is None else bias.double())
        got = quant_dots(form_of(packed).rows(x), packed, x.dtype, bias, tiles)
        error = float((got.double() - truth).norm() / truth.norm())
        assert error < 1e-4, f"{rows} rows, {tiles}: {error}"


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1"])
@pytest.mark.parametrize("columns", [1, 3])
def test_blocks_that_are_whole_rows_are_read_in_words(kind: str, columns: int) -> None:
    weight = (q8_0 if kind == "Q8_0" else q4_1)(torch.randn(columns, 32))
    data = weight.data.to(DEVICE)
    packed = coded(QuantTensor(kind, data, weight.shape))
    x = torch.randn(2, 32, device=DEVICE)
    truth = x.double() @ weight.dequantize().to(DEVICE).double().T
    got = quant_dots(form_of(packed).rows(x), packed, x.dtype)
    torch.testing.assert_close(got.double(), truth, rtol=1e-3, atol=1e-3)


def test_blocks_without_a_scale_are_their_least_number() -> None:
    weight = q4_1(torch.randn(3, 96))
    blocks = weight.data.view(3, 3, 20)
    blocks[1, 1, :4] = torch.tensor([0.0, -0.75], dtype=torch.float16).view(torch.uint8)  # codes of any kind remain
    blocks[2, 0, :4] = 0
    packed = coded(QuantTensor("Q4_1", weight.data.to(DEVICE), weight.shape))
    truth = weight.dequantize().to(DEVICE).double()
    assert truth[1, 32:64].eq(-0.75).all()
    assert not truth[2, :32].any()
    x = torch.randn(2, 96, device=DEVICE)
    got = quant_dots(form_of(packed).rows(x), packed, x.dtype)
    torch.testing.assert_close(got.double(), x.double() @ truth.T, rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("kind", ["int8", "int4", "fp4_nv", "fp4_mx"])
def test_each_code_meets_the_input_of_its_place_exactly(kind: str) -> None:
    if kind == "int8":
        codes = torch.arange(-128, 128, dtype=torch.int8).view(8, 32)
    else:
        each = (torch.arange(16).view(16, 1) + torch.arange(32)) % 16  # every code at every place
        codes = (each[:, 0::2] | (each[:, 1::2] << 4)).to(torch.uint8)
    columns = codes.shape[0]
    scales = {"fp4_nv": torch.tensor([[1, 126]]), "fp4_mx": torch.tensor([[127 - 3]])}.get(kind)
    row_scales = torch.full((columns,), 2.0, device=DEVICE) if kind == "fp4_nv" else None
    stored = torch.full((columns, 1), 0.5) if scales is None else scales.expand(columns, -1).to(torch.uint8)
    weight = CodedTensor(kind, (columns, 32), codes.to(DEVICE), stored.contiguous().to(DEVICE), row_scales=row_scales)
    packed, truth = coded(weight), weight.dequantize()
    x = torch.eye(32, device=DEVICE)
    tiles, wanted = DotsTiles(columns, 4, 1), form_of(packed)
    got = [quant_dots(wanted.rows(x[i : i + 4]), packed, x.dtype, None, tiles) for i in range(0, 32, 4)]
    assert torch.equal(torch.cat(got), truth.T)


def test_a_row_is_the_same_bit_for_bit_whatever_rows_are_beside_it() -> None:
    for kind in ("int8", "int4", "fp4_nv"):
        packed = coded(random_weight(kind, None, False, 8, 384))
        x = torch.randn(4, 384, device=DEVICE).to(torch.bfloat16)
        wanted = form_of(packed)
        whole = quant_dots(wanted.rows(x), packed, x.dtype)
        for count in range(4):
            beside = torch.randn(count, 384, device=DEVICE).to(torch.bfloat16) * 50
            other = quant_dots(wanted.rows(torch.cat((x[2:3], beside))), packed, x.dtype)
            assert torch.equal(other[0], whole[2]), (kind, count)
