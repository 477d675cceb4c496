"""Experts whose matrices are quantised: pairs by themselves where they are few, else tiles of rows sorted by expert.

As experts.py, whose sorting this uses, with weights decoded as quant_gemv.py and quant_gemm.py do. A row's result
depends on its own token and experts alone, and nothing is asked of the host.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from engine.kernels import reference_experts
from engine.kernels.triton.coded import CodedWeight, coded
from engine.kernels.triton.decode import CODE_NUMBERS, CORRECTIONS, INPUTS, ONE_BITS, SCALE_NUMBERS, _scale
from engine.kernels.triton.device import converts_fp8, speaks_ptx
from engine.kernels.triton.experts import FEW_PAIRS, stages_of
from engine.kernels.triton.few_experts import ACTIVATIONS, _gated
from engine.kernels.triton.quant_gemm import _numbers
from engine.kernels.triton.quant_gemv import column_sums, form_of, words_of
from engine.kernels.triton.quant_linear import takes
from engine.kernels.triton.sorted_pairs import _keep_gated, _keep_part, _tile_rows, sorted_pairs, summed
from engine.quant.expert_stack import ExpertStack

FEW_COLUMNS, FEW_WORDS, FEW_WARPS = 4, 128, 2


@dataclass(frozen=True, slots=True, eq=False)
class CodedStack:
    """Shapes: weight (E * N, K), expert after expert; plain: a stack whose shape the kernels do not take"""

    weight: CodedWeight | None
    num_experts: int
    plain: ExpertStack

    @property
    def rows(self) -> int:
        return self.plain.rows

    @property
    def captured_rows(self) -> int | None:
        """As an Implementation has it."""
        return reference_experts.CAPTURED_ROWS if self.weight is None else None


def pack(stack: ExpertStack) -> CodedStack:
    assert not isinstance(stack.weight, torch.Tensor), "plain weights have kernels of their own"
    if not takes(stack.weight):
        return CodedStack(None, stack.num_experts, stack)
    return CodedStack(coded(stack.weight, blocks=True), stack.num_experts, stack)


@triton.jit
def _few_gate_up_kernel(
    x, codes, scales, zeros, row_scales, bias, inner, ids, width, row_words, x_words, groups, one,
    CHOICES: tl.constexpr, ACTIVATION: tl.constexpr, HAS_BIAS: tl.constexpr,
    INPUT: tl.constexpr, CODE: tl.constexpr, SCALE: tl.constexpr, GROUPED: tl.constexpr, SIXTEENS: tl.constexpr,
    HAS_ZEROS: tl.constexpr, HAS_PAIRS: tl.constexpr, HAS_ROW_SCALES: tl.constexpr, EVEN: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_G: tl.constexpr, WORDS: tl.constexpr, CORRECTION: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    pair = tl.program_id(0)
    expert = tl.load(ids + pair)
    first_n = tl.program_id(1) * BLOCK_N
    top = expert * 2 * width
    row = x + (pair // CHOICES).to(tl.int64) * x_words
    gates = column_sums(
        row, codes, scales, zeros, row_scales, top + first_n, top + width - 1, row_words, groups, one,
        1, INPUT, CODE, SCALE, GROUPED, SIXTEENS, HAS_ZEROS, HAS_PAIRS, HAS_ROW_SCALES, EVEN,
        BLOCK_N, BLOCK_G, WORDS, CORRECTION, PTX,
    )  # fmt: skip
    ups = column_sums(
        row, codes, scales, zeros, row_scales, top + width + first_n, top + 2 * width - 1, row_words, groups, one,
        1, INPUT, CODE, SCALE, GROUPED, SIXTEENS, HAS_ZEROS, HAS_PAIRS, HAS_ROW_SCALES, EVEN,
        BLOCK_N, BLOCK_G, WORDS, CORRECTION, PTX,
    )  # fmt: skip
    for i in tl.static_range(BLOCK_N):
        n = tl.minimum(first_n + i, width - 1)
        gate = gates[i]
        up = ups[i]
        if HAS_BIAS:
            gate += tl.load(bias + top + n).to(tl.float32)
            up += tl.load(bias + top + width + n).to(tl.float32)
        value = _gated(gate, up, ACTIVATION).to(inner.dtype.element_ty)
        tl.store(inner + pair * width + n, value, mask=first_n + i < width)


@triton.jit
def _few_down_kernel(
    inner, codes, scales, zeros, row_scales, bias, pair_weights, parts, ids, width, row_words, x_words, groups, one,
    HAS_BIAS: tl.constexpr,
    INPUT: tl.constexpr, CODE: tl.constexpr, SCALE: tl.constexpr, GROUPED: tl.constexpr, SIXTEENS: tl.constexpr,
    HAS_ZEROS: tl.constexpr, HAS_PAIRS: tl.constexpr, HAS_ROW_SCALES: tl.constexpr, EVEN: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_G: tl.constexpr, WORDS: tl.constexpr, CORRECTION: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    pair = tl.program_id(0)
    expert = tl.load(ids + pair)
    first_n = tl.program_id(1) * BLOCK_N
    top = expert * width
    values = column_sums(
        inner + pair.to(tl.int64) * x_words, codes, scales, zeros, row_scales, top + first_n, top + width - 1,
        row_words, groups, one,
        1, INPUT, CODE, SCALE, GROUPED, SIXTEENS, HAS_ZEROS, HAS_PAIRS, HAS_ROW_SCALES, EVEN,
        BLOCK_N, BLOCK_G, WORDS, CORRECTION, PTX,
    )  # fmt: skip
    share = tl.load(pair_weights + pair)
    for i in tl.static_range(BLOCK_N):
        n = tl.minimum(first_n + i, width - 1)
        value = values[i]
        if HAS_BIAS:
            value += tl.load(bias + top + n).to(tl.float32)
        at = parts + pair.to(tl.int64) * width + n
        tl.store(at, (value * share).to(parts.dtype.element_ty), mask=first_n + i < width)


@triton.jit
def _decoded_product(
    x_rows, codes, scales, zeros, row_scales, n, depth, groups, acc,
    CODE: tl.constexpr, SCALE: tl.constexpr, GROUP: tl.constexpr, HAS_ZEROS: tl.constexpr,
    HAS_ROW_SCALES: tl.constexpr, HARDWARE: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """acc plus rows of x times rows n of the weight. Shapes: x_rows [M, 1] pointers; n [N] int64; acc [M, N]"""
    PACKED: tl.constexpr = 2 if CODE >= 2 else 1
    LATE: tl.constexpr = GROUP % BLOCK_K == 0  # a block has one scale a row of the weight
    lanes = tl.arange(0, BLOCK_K // PACKED)
    for start in range(0, depth, BLOCK_K):
        place = start // PACKED + lanes
        in_k = place < depth // PACKED
        stored = tl.load(codes + n[None, :] * (depth // PACKED) + place[:, None], mask=in_k[:, None], other=0)
        group = n * groups + start // GROUP
        part = acc
        if LATE:
            part = tl.zeros_like(acc)
        for half in tl.static_range(PACKED):
            k = place
            if PACKED == 2:
                k = (place // 16) * 32 + half * 16 + place % 16
            a = tl.load(x_rows + k[None, :], mask=in_k[None, :], other=0.0)
            w = _numbers(stored, CODE, half, HARDWARE)
            if CODE == 2 and not HAS_ZEROS:
                w -= 8.0
            elif CODE == 1 and HAS_ZEROS:
                w += 128.0
            if LATE:
                if HAS_ZEROS:
                    w -= tl.load(zeros + group).to(tl.float32)[None, :]
            else:
                at = n[None, :] * groups + (k // GROUP)[:, None]
                if HAS_ZEROS:
                    w -= tl.load(zeros + at, mask=in_k[:, None], other=0).to(tl.float32)
                w *= _scale(scales, at, in_k[:, None], False, SCALE)
            part = tl.dot(a, w.to(a.dtype), part, input_precision="ieee")
        acc = part if not LATE else acc + part * _scale(scales, group, in_k, True, SCALE)[None, :]
    if HAS_ROW_SCALES:
        acc *= tl.load(row_scales + n)[None, :]
    return acc


@triton.jit
def _gate_up_kernel(
    x, codes, scales, zeros, row_scales, bias, inner, order, counts, starts, tile_ends, num_experts, width, depth,
    groups,
    CHOICES: tl.constexpr, ACTIVATION: tl.constexpr, HAS_BIAS: tl.constexpr,
    CODE: tl.constexpr, SCALE: tl.constexpr, GROUP: tl.constexpr, HAS_ZEROS: tl.constexpr,
    HAS_ROW_SCALES: tl.constexpr, HARDWARE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    expert, rows, exists, pairs, first_n = _tile_rows(
        width, order, counts, starts, tile_ends, num_experts, BLOCK_M, BLOCK_N, STEPS
    )
    if expert >= num_experts:
        return
    n = first_n + tl.arange(0, BLOCK_N)
    row = expert.to(tl.int64) * 2 * width + tl.minimum(n, width - 1)
    x_rows = x + (pairs // CHOICES).to(tl.int64)[:, None] * depth
    nothing = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    gate = _decoded_product(
        x_rows, codes, scales, zeros, row_scales, row, depth, groups, nothing,
        CODE, SCALE, GROUP, HAS_ZEROS, HAS_ROW_SCALES, HARDWARE, BLOCK_K,
    )  # fmt: skip
    up = _decoded_product(
        x_rows, codes, scales, zeros, row_scales, row + width, depth, groups, nothing,
        CODE, SCALE, GROUP, HAS_ZEROS, HAS_ROW_SCALES, HARDWARE, BLOCK_K,
    )  # fmt: skip
    if HAS_BIAS:
        gate += tl.load(bias + row).to(tl.float32)[None, :]
        up += tl.load(bias + row + width).to(tl.float32)[None, :]
    _keep_gated(gate, up, inner, rows, exists, n, width, ACTIVATION)


@triton.jit
def _down_kernel(
    inner, codes, scales, zeros, row_scales, bias, pair_weights, parts, order, counts, starts, tile_ends,
    num_experts, width, depth, groups,
    HAS_BIAS: tl.constexpr, CODE: tl.constexpr, SCALE: tl.constexpr, GROUP: tl.constexpr, HAS_ZEROS: tl.constexpr,
    HAS_ROW_SCALES: tl.constexpr, HARDWARE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    expert, rows, exists, pairs, first_n = _tile_rows(
        width, order, counts, starts, tile_ends, num_experts, BLOCK_M, BLOCK_N, STEPS
    )
    if expert >= num_experts:
        return
    n = first_n + tl.arange(0, BLOCK_N)
    row = expert.to(tl.int64) * width + tl.minimum(n, width - 1)
    # Rows beyond the last are read from the first, and not stored.
    a_rows = inner + tl.where(exists, rows, 0).to(tl.int64)[:, None] * depth
    acc = _decoded_product(
        a_rows, codes, scales, zeros, row_scales, row, depth, groups, tl.zeros([BLOCK_M, BLOCK_N], tl.float32),
        CODE, SCALE, GROUP, HAS_ZEROS, HAS_ROW_SCALES, HARDWARE, BLOCK_K,
    )  # fmt: skip
    if HAS_BIAS:
        acc += tl.load(bias + row).to(tl.float32)[None, :]
    _keep_part(acc, pair_weights, parts, pairs, exists, n, width)


def experts(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    gate_up: CodedStack,
    down: CodedStack,
    gate_up_bias: torch.Tensor | None = None,
    down_bias: torch.Tensor | None = None,
    activation: str = "silu",
) -> torch.Tensor:
    """Shapes and meaning as reference_experts.experts."""
    biases = (gate_up_bias, down_bias)
    if gate_up.weight is None or down.weight is None:
        return reference_experts.experts(x, ids, weights, gate_up.plain, down.plain, *biases, activation)
    x, ids, weights = x.contiguous(), ids.contiguous(), weights.contiguous()
    tokens = x.shape[0]
    if tokens == 0:
        return torch.empty_like(x)
    run = _few if ids.numel() <= FEW_PAIRS else _many
    parts = run(x, ids, weights, gate_up.weight, down.weight, gate_up, *biases, ACTIVATIONS[activation])
    return summed(parts, tokens, x.dtype)


def _few(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    gate_up: CodedWeight,
    down: CodedWeight,
    stack: CodedStack,
    gate_up_bias: torch.Tensor | None,
    down_bias: torch.Tensor | None,
    activation: int,
) -> torch.Tensor:
    pairs, depth, width = ids.numel(), x.shape[1], stack.rows // 2
    inner = torch.empty(pairs, width, dtype=x.dtype, device=x.device)
    parts = torch.empty(pairs, depth, dtype=torch.float32, device=x.device)
    _few_gate_up_kernel[(pairs, triton.cdiv(width, FEW_COLUMNS))](
        _words(x), *_members(gate_up), inner if gate_up_bias is None else gate_up_bias, inner, ids, width,
        *_sizes(gate_up, x), ids.shape[1], activation, gate_up_bias is not None, *_few_form(gate_up, x),
        num_warps=FEW_WARPS,
    )  # fmt: skip
    _few_down_kernel[(pairs, triton.cdiv(depth, FEW_COLUMNS))](
        _words(inner), *_members(down), inner if down_bias is None else down_bias, weights, parts, ids, depth,
        *_sizes(down, inner), down_bias is not None, *_few_form(down, inner), num_warps=FEW_WARPS,
    )  # fmt: skip
    return parts


def _words(x: torch.Tensor) -> torch.Tensor:
    return x if x.dtype == torch.float32 else x.view(torch.int64)


def _members(weight: CodedWeight) -> tuple[torch.Tensor, ...]:
    """codes to row_scales of column_sums"""
    zeros = weight.zeros if weight.pairs is None else weight.pairs
    none = weight.codes
    row_scales = none if weight.row_scales is None else weight.row_scales
    return weight.codes.view(torch.int32), weight.scales, none if zeros is None else zeros, row_scales


def _sizes(weight: CodedWeight, x: torch.Tensor) -> tuple[int, ...]:
    """row_words to one"""
    depth = weight.shape[1]
    x_words = depth if x.dtype == torch.float32 else depth // 4
    return depth // weight.numbers_a_byte // 4, x_words, int(weight.scales.shape[1]), ONE_BITS


def _few_form(weight: CodedWeight, x: torch.Tensor) -> tuple[Any, ...]:
    """INPUT to PTX"""
    words = words_of(weight, FEW_WORDS)
    blocks = max(1, FEW_WORDS // words)
    even = weight.shape[1] // weight.numbers_a_byte // 4 % (blocks * words) == 0
    correction = CORRECTIONS[CODE_NUMBERS[weight.code]]
    ptx = speaks_ptx(x.device)
    return INPUTS[x.dtype], *form_of(weight), even, FEW_COLUMNS, blocks, words, correction, ptx


def _many(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    gate_up: CodedWeight,
    down: CodedWeight,
    stack: CodedStack,
    gate_up_bias: torch.Tensor | None,
    down_bias: torch.Tensor | None,
    activation: int,
) -> torch.Tensor:
    pairs, depth, width, count = ids.numel(), x.shape[1], stack.rows // 2, stack.num_experts
    found = sorted_pairs(ids, count)
    inner = torch.empty(pairs, width, dtype=x.dtype, device=x.device)
    parts = torch.empty(pairs, depth, dtype=x.dtype, device=x.device)
    block_n, block_k, warps = 64, 128, 4 if found.block_m <= 64 else 8
    # Of half bytes a tile of codes meets two half tiles of activations.
    stages = stages_of(found.block_m * block_k * x.element_size() + block_n * block_k, x.device)
    steps = count.bit_length() + 1
    _gate_up_kernel[(found.tiles * triton.cdiv(width, block_n),)](
        x, *_bytes(gate_up), inner if gate_up_bias is None else gate_up_bias, inner, *found.tensors,
        count, width, depth, gate_up.scales.shape[1], ids.shape[1], activation, gate_up_bias is not None,
        *_many_form(gate_up, x), found.block_m, block_n, block_k, steps, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    _down_kernel[(found.tiles * triton.cdiv(depth, block_n),)](
        inner, *_bytes(down), inner if down_bias is None else down_bias, weights, parts, *found.tensors,
        count, depth, width, down.scales.shape[1], down_bias is not None,
        *_many_form(down, x), found.block_m, block_n, block_k, steps, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return parts


def _bytes(weight: CodedWeight) -> tuple[torch.Tensor, ...]:
    """codes to row_scales of _decoded_product"""
    none = weight.codes
    return (
        weight.codes.view(torch.uint8),
        weight.scales,
        none if weight.zeros is None else weight.zeros,
        none if weight.row_scales is None else weight.row_scales,
    )


def _many_form(weight: CodedWeight, x: torch.Tensor) -> tuple[Any, ...]:
    """CODE to HARDWARE"""
    code, scale = CODE_NUMBERS[weight.code], SCALE_NUMBERS[weight.scale_code]
    forms = (weight.zeros is not None, weight.row_scales is not None, converts_fp8(x.device))
    return code, scale, weight.group, *forms
