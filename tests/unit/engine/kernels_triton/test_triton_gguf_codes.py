"""GGUF blocks in pieces as codes beside multipliers: number by number, and through the kernels that read them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed: `make test` installs it for these tests")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

from engine.ggml_types import TYPE_BY_NAME  # noqa: E402
from engine.kernels import reference_experts  # noqa: E402
from engine.kernels.triton import coded, gguf_codes, quant_experts, quant_linear  # noqa: E402
from engine.quant.expert_stack import ExpertStack  # noqa: E402
from engine.quant.quant_tensor import QuantTensor  # noqa: E402
from engine.spec.loaded import DEVICE_BITS  # noqa: E402

DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float16
# Where a block has fp16 numbers: multipliers first, then what is taken away.
HALVES = {
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
}
PLAIN_BLOCKS = {"Q4_1": (0, 2)}
EXACT = ("Q3_K", "Q6_K", "Q5_0", "IQ4_NL", "IQ4_XS")  # nothing is taken away


def weight_of(kind: str, rows: int, columns: int, *, flat: bool = False) -> QuantTensor:
    """Random bytes, so that all codes and sub-block multipliers come; the blocks' own are small, or nothing if flat."""
    stored, draw = TYPE_BY_NAME[kind], np.random.default_rng(5)
    blocks = draw.integers(0, 256, (rows * columns // stored.block_elements, stored.block_bytes), dtype=np.uint8)
    for place, at in enumerate((HALVES | PLAIN_BLOCKS)[kind]):
        numbers = (draw.standard_normal(len(blocks)) * 1e-3).astype(np.float16)
        if flat and place == 0:
            numbers[::2] = 0.0
        blocks[:, at : at + 2] = numbers.view(np.uint8).reshape(-1, 2)
    return QuantTensor(kind, torch.from_numpy(blocks.reshape(rows, -1)).to(DEVICE), (rows, columns))


def numbers_of(weight: coded.CodedWeight) -> torch.Tensor:
    """What the codes stand for, by the formulas of coded.py. -> [N, K] float64"""
    count, columns = weight.shape
    if weight.code == "int4":
        blocks = weight.codes.view(count, -1, 16)
        codes, zero = torch.cat((blocks & 15, blocks >> 4), dim=2).reshape(count, columns).double(), 8.0
    else:
        codes, zero = weight.codes.double() + 128, 128.0
    zeros = torch.full_like(weight.scales, zero) if weight.zeros is None else weight.zeros
    wide = [each.double().repeat_interleave(weight.group, dim=1) for each in (zeros, weight.scales)]
    return (codes - wide[0]) * wide[1]


def test_every_kind_that_is_in_pieces_is_known() -> None:
    assert set(HALVES) == set(gguf_codes.SPLIT)
    assert set(gguf_codes.SPLIT) | {"Q8_0", "Q4_0", "Q4_1", "MXFP4"} == {k for k in coded.KINDS if k.upper() == k}


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("kind", HALVES)
def test_codes_stand_for_the_numbers_of_the_blocks(kind: str, flat: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_codes, "TILE_NUMBERS", 2048)  # so that there are several tiles
    weight = weight_of(kind, 5, 1024, flat=flat)
    split, truth = coded.coded(weight), weight.dequantize().double()
    found = numbers_of(split)
    if kind in EXACT:
        assert torch.equal(found.float(), truth.float())
    largest = truth.abs().view(5, -1, split.group).amax(dim=2).repeat_interleave(split.group, dim=1)
    assert float(((found - truth).abs() / largest.clamp_min(1e-30)).max()) < 4e-6


@pytest.mark.parametrize("kind", [*HALVES, "Q4_1"])
def test_predictions_know_how_many_bits_a_device_holds(kind: str) -> None:
    held = coded.coded(weight_of(kind, 4, 1024))
    assert held.num_bytes * 8 / (4 * 1024) == DEVICE_BITS[kind]


@pytest.mark.parametrize("kind", HALVES)
def test_each_number_of_rows_matches_float64(kind: str) -> None:
    weight = weight_of(kind, 32, 256)
    packed, numbers = quant_linear.pack(weight), weight.dequantize().double()
    assert packed.plain is None
    for rows in (1, 5, 17, 65):
        x = torch.randn(rows, 256, device=DEVICE).to(DTYPE)
        got, truth = quant_linear.linear(x, packed).double(), x.double() @ numbers.T
        assert float((got - truth).norm() / truth.norm()) < 1.5e-2, rows


@pytest.mark.parametrize(
    ("gate_up", "down", "tokens"),
    [("Q6_K", "Q5_1", 1), ("Q5_1", "IQ4_NL", 1), ("Q4_K", "Q5_0", 30), ("Q6_K", "Q5_1", 30), ("Q5_1", "IQ4_NL", 30)],
)
def test_experts_of_such_blocks_match_the_reference(gate_up: str, down: str, tokens: int) -> None:
    torch.manual_seed(0)
    count, width = 2, 32
    depth = 256 if gate_up.endswith("K") else 64
    stacks = [
        ExpertStack(weight_of(gate_up, count * 2 * width, depth), count),
        ExpertStack(weight_of(down, count * depth, width), count),
    ]
    x = torch.randn(tokens, depth, device=DEVICE) * 0.05
    ids = (torch.arange(tokens * 2, device=DEVICE).view(tokens, 2) % count).int()
    weights = torch.rand(tokens, 2, device=DEVICE)
    arguments = (None, None, "silu")
    got = quant_experts.experts(x, ids, weights, *map(quant_experts.pack, stacks), *arguments)
    truth = reference_experts.experts(x, ids, weights, *stacks, *arguments)
    assert float((got - truth).norm() / truth.norm()) < (2e-3 if DEVICE == "cuda" else 5e-5)
