"""Activation rows as int16 with a power of two as multiplier every 32 numbers: steps of 2^-15 of the largest or less.

So bfloat16 numbers that are not below a 128th of the largest are held exactly. Products of whole numbers are exact, and
the device multiplies two at once. The numbers stand in the order in which quant_dots.py meets the codes: a lane is what
one 64-bit word of codes holds, 16 half-byte ones or 8 bytes.

    numbers of a lane, four a word   half bytes: 0-3, 4-7, 16-19, 20-23 of a block of 32, or those plus 8
                                     mingled: 0 16 1 17, 2 18 3 19, 4 20 5 21, 6 22 7 23, or those plus 8
                                     in eights: 0 8 1 9, 2 10 3 11, 4 12 5 13, 6 14 7 15, or those plus 16
                                     bytes: 0-3, 4-7 of eight neighbours

A row can come straight from the norm or the gate before, in one kernel, where the kernel after wants nothing else.
"""

# mypy: disable-error-code="assignment"

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import triton
import triton.language as tl

from engine.kernels.triton.chained import chains, launch, let_next_start, wait_for_last
from engine.kernels.triton.device import speaks_ptx
from engine.kernels.triton.layouts import _apart
from engine.kernels.triton.norms import gated
from engine.kernels.triton.rounded_rows import four_digits

CHUNK = 32  # numbers that share a multiplier
CHUNKS_A_PROGRAM = 8


@dataclass(frozen=True, slots=True, eq=False)
class FineRows:
    """Shapes: codes [M, K] int16 in lanes' order; scales [M, K/32]; sums int32 of codes, for half bytes [M, 2, K/32] of
    each chunk's first and last 16 numbers, for bytes [M, 1, K/8], or [M, 1, K/16] of half bytes eight apart, of each
    lane's
    """

    codes: torch.Tensor
    scales: torch.Tensor
    sums: torch.Tensor
    form: FineForm

    @property
    def count(self) -> int:
        return int(self.codes.shape[0])


@triton.jit
def _numbers(chunks, LANE: tl.constexpr):
    """Places in a row, [numbers, parts, C] of chunks: a part is half a lane, which a thread has whole."""
    INNER: tl.constexpr = LANE // 2
    number = tl.arange(0, INNER)[:, None, None]
    return chunks[None, None, :] * 32 + tl.arange(0, 32 // INNER)[None, :, None] * INNER + number


@triton.jit
def _together(whole, PLACES: tl.constexpr, FIRST: tl.constexpr):
    """Numbers as int16 in 64-bit words, four a word. Shapes: [words, 4 or 2, P, C] -> [words, P, C]

    PLACES: apart in a word. FIRST: the first one's place; a tensor where it depends on the part.
    """
    place = tl.arange(0, whole.shape[1])[None, :, None, None] * PLACES + FIRST
    return tl.sum((whole.to(tl.int64) & 0xFFFF) << (16 * place), axis=1)


@triton.jit
def _two_of(words):
    """The words of each part one by one, without another thread's. Shapes: [2, P, C] -> 2 of [P, C]"""
    return tl.split(tl.permute(words, (1, 2, 0)))


@triton.jit
def _store_fine(values, row, chunks, codes, scales, sums, width, LANE: tl.constexpr, MINGLED: tl.constexpr,
                EIGHTS: tl.constexpr, ROUNDED: tl.constexpr, PTX: tl.constexpr):  # fmt: skip
    """values: [numbers, parts, C] float32 as _numbers has them, nothing but zeros beyond the width.

    All that is stored has the shape of parts and chunks, so that each thread stores what it has.
    """
    INNER: tl.constexpr = LANE // 2
    PARTS: tl.constexpr = 32 // INNER
    CHUNKS: tl.constexpr = chunks.shape[0]
    lanes = width // LANE
    if ROUNDED:
        values = four_digits(values)
    finite = tl.abs(values) < float("inf")
    values = tl.where(finite, values, 0.0)
    largest = tl.max(tl.max(tl.abs(values), axis=0), axis=0, keep_dims=True)
    exponent = largest.to(tl.int32, bitcast=True) & 0x7F800000
    exponent = tl.where(exponent < 0x0A000000, 0, exponent)  # below 2^-107: nothing beside any other numbers
    # 2^e / 2^14 and its inverse; what is not finite makes the multiplier so.
    scale = exponent.to(tl.float32, bitcast=True) * (1.0 / 16384.0)
    scale = tl.where(tl.min(tl.min(finite.to(tl.int32), axis=0), axis=0, keep_dims=True) > 0, scale, float("nan"))
    inverse = tl.where(exponent > 0, 0x7C000000 - (exponent - 0x0A000000), 0).to(tl.float32, bitcast=True)
    whole = tl.minimum(tl.floor(values * inverse[None, :, :] + 0.5), 32767.0).to(tl.int32)
    part = tl.arange(0, PARTS)[:, None]
    chunk = _apart(tl.broadcast_to(chunks[None, :], (PARTS, CHUNKS)), PTX)
    within = chunk * 32 < width
    if LANE == 16 and not EIGHTS:
        half, lane = part // 2, chunk * 2 + part % 2
    else:
        half, lane = part % 2, chunk * (32 // LANE) + part // 2
    to = codes.to(tl.pointer_type(tl.int64)) + row * (width // 4) + lane
    if MINGLED:
        # A word is of two numbers of each half: the halves' threads add theirs, and each stores two of the four.
        pairs = tl.reshape(whole, (4, 2, PARTS, CHUNKS))
        first_place = tl.arange(0, PARTS) % 2 if EIGHTS else tl.arange(0, PARTS) // 2
        words = _together(pairs, 2, first_place[None, None, :, None])
        both = tl.sum(tl.reshape(words, (4, 2, 2, CHUNKS)), axis=2 if EIGHTS else 1, keep_dims=True)
        both = tl.reshape(tl.broadcast_to(both, (4, 2, 2, CHUNKS)), (2, 2, PARTS, CHUNKS))
        first, second = _two_of(tl.sum(tl.where(_is_half(half, CHUNKS), both, 0), axis=0))
        tl.store(to + (2 * half) * lanes, first, mask=within)
        tl.store(to + (2 * half + 1) * lanes, second, mask=within)
    elif LANE == 16:
        first, second = _two_of(_together(tl.reshape(whole, (2, 4, PARTS, CHUNKS)), 1, 0))
        tl.store(to + (2 * half) * lanes, first, mask=within)
        tl.store(to + (2 * half + 1) * lanes, second, mask=within)
    else:
        words = tl.sum(_together(tl.reshape(whole, (1, 4, PARTS, CHUNKS)), 1, 0), axis=0)
        tl.store(to + half * lanes, words, mask=within)
    # Sums of neighbouring parts, which both of them have.
    pair = tl.sum(tl.reshape(tl.sum(whole, axis=0), (PARTS // 2, 2, CHUNKS)), axis=1, keep_dims=True)
    of_pair = tl.reshape(tl.broadcast_to(pair, (PARTS // 2, 2, CHUNKS)), (PARTS, CHUNKS))
    if LANE == 16 and not EIGHTS:
        sums_at = (row * 2 + half) * (width // 32) + chunk
    else:
        sums_at = row * lanes + lane
    tl.store(sums + sums_at, of_pair, mask=within & (part % 2 == 0))
    tl.store(scales + row * (width // 32) + chunk, tl.broadcast_to(scale, (PARTS, CHUNKS)), mask=within & (part == 0))


@triton.jit
def _is_half(half, CHUNKS: tl.constexpr):
    """Shapes: [P, 1] -> [2, 2, P, C]: whether the first dimension is the part's half"""
    of = tl.arange(0, 2)[:, None, None, None]
    return tl.broadcast_to(of == half[None, None, :, :], (2, 2, half.shape[0], CHUNKS))


@triton.jit
def _fine_kernel(
    x, codes, scales, sums, x_stride, width,
    GATE: tl.constexpr, CHUNKS: tl.constexpr, LANE: tl.constexpr, MINGLED: tl.constexpr,
    EIGHTS: tl.constexpr, ROUNDED: tl.constexpr, PTX: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """GATE: 0 takes rows, 1 and 2 the silu or gelu gate of rows twice as wide."""
    if CHAINED:
        let_next_start()
        wait_for_last()
    row = tl.program_id(0).to(tl.int64)
    chunks = tl.program_id(1) * CHUNKS + tl.arange(0, CHUNKS)
    k = _numbers(chunks, LANE)
    mask = k < width
    values = tl.load(x + row * x_stride + k, mask=mask, other=0.0).to(tl.float32)
    if GATE:
        up = tl.load(x + row * x_stride + width + k, mask=mask, other=0.0).to(tl.float32)
        # As the gate's own kernel stores it.
        values = gated(values, up, GATE == 2).to(x.dtype.element_ty).to(tl.float32)
    _store_fine(values, row, chunks, codes, scales, sums, width, LANE, MINGLED, EIGHTS, ROUNDED, PTX)


@triton.jit
def _norm_fine_kernel(
    x, residual, weight, total_out, codes, scales, sums, x_stride, width, eps,
    ADDED: tl.constexpr, CHUNKS: tl.constexpr, LANE: tl.constexpr, MINGLED: tl.constexpr,
    EIGHTS: tl.constexpr, ROUNDED: tl.constexpr, PTX: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """A program a row. ADDED: the residual is added before, and the sum stored."""
    row = tl.program_id(0).to(tl.int64)
    chunks = tl.arange(0, CHUNKS)
    k = _numbers(chunks, LANE)
    mask = k < width
    weights = tl.load(weight + k, mask=mask, other=0.0).to(tl.float32)
    if CHAINED:
        let_next_start()
        wait_for_last()
    values = tl.load(x + row * x_stride + k, mask=mask, other=0.0)
    if ADDED:
        values += tl.load(residual + row * width + k, mask=mask, other=0.0)
        tl.store(total_out + row * width + k, values, mask=mask)
    values = values.to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values) / width + eps)
    normed = (values * scale * weights).to(x.dtype.element_ty).to(tl.float32)
    _store_fine(normed, row, chunks, codes, scales, sums, width, LANE, MINGLED, EIGHTS, ROUNDED, PTX)


@dataclass(frozen=True, slots=True)
class FineForm:
    """What a linear that reads FineRows asks of the op before it."""

    lane: int  # numbers of one: 16 or 8
    mingled: bool = False  # low and high halves of bytes in turn
    eights: bool = False  # those halves are of numbers eight apart, not sixteen: a lane is of neighbours
    rounded: bool = field(default=False, compare=False)  # to what E4M3 holds, before

    def rows(self, x: torch.Tensor) -> FineRows:
        """Shapes: x [M, K], K a multiple of 32"""
        return self._made(x, 0, x.shape[1])

    def gate(self, gate_up: torch.Tensor, activation: str) -> FineRows:
        """The rows of silu_mul or gelu_mul. Shapes: gate_up [M, 2I]"""
        return self._made(gate_up, 1 if activation == "silu" else 2, gate_up.shape[1] // 2)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> FineRows:
        """Shapes: x [M, K]; weight [K]"""
        x = x.contiguous()
        rows = self._empty(x, x.shape[1])
        self._norm(x, x, weight, x, rows, eps, added=False)
        return rows

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[FineRows, torch.Tensor]:
        """Shapes: x, residual [M, K]; weight [K] -> (rows, new residual)"""
        x, residual = x.contiguous(), residual.contiguous()
        rows, total = self._empty(x, x.shape[1]), torch.empty_like(x)
        self._norm(x, residual, weight, total, rows, eps, added=True)
        return rows, total

    def _empty(self, like: torch.Tensor, width: int) -> FineRows:
        assert width % CHUNK == 0, width
        count, chunks, device = like.shape[0], width // CHUNK, like.device
        parts = (2, chunks) if self.lane == 16 and not self.eights else (1, width // self.lane)
        return FineRows(
            torch.empty(count, width, dtype=torch.int16, device=device),
            torch.empty(count, chunks, dtype=torch.float32, device=device),
            torch.empty(count, *parts, dtype=torch.int32, device=device),
            self,
        )

    def _made(self, x: torch.Tensor, gate: int, width: int) -> FineRows:
        x = x.contiguous()
        rows = self._empty(x, width)
        if rows.count:
            _fine_kernel[(rows.count, triton.cdiv(width, CHUNKS_A_PROGRAM * CHUNK))](
                x, rows.codes, rows.scales, rows.sums, x.stride(0), width,
                gate, CHUNKS_A_PROGRAM, self.lane, self.mingled, self.eights, self.rounded, speaks_ptx(x.device),
                chains(x.device),
                num_warps=1, **launch(x.device),
            )  # fmt: skip
        return rows

    def _norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, total: torch.Tensor,
        rows: FineRows, eps: float, *, added: bool,
    ) -> None:  # fmt: skip
        if rows.count == 0:
            return
        chunks = triton.next_power_of_2(x.shape[1] // CHUNK)
        _norm_fine_kernel[(rows.count,)](
            x, residual, weight, total, rows.codes, rows.scales, rows.sums, x.stride(0), x.shape[1], eps,
            added, chunks, self.lane, self.mingled, self.eights, self.rounded, speaks_ptx(x.device), chains(x.device),
            num_warps=16 if chunks >= 128 else 4, **launch(x.device),
        )  # fmt: skip
