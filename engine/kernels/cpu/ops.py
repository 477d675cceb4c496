"""The registry's ops over libbayard_cpu: shapes and strides checked, pointers handed on. Float32 activations."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from engine.kernels.cpu import abi
from engine.kernels.cpu.library import check, load
from engine.kernels.cpu.weights import PackedWeight, RowTable, linear_struct
from engine.kernels.reference_sampling import NUM_SETTINGS
from engine.kernels.scaled_cache import SCALE_BYTES, is_scaled

_KV_TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2, torch.int8: abi.KINDS.index("I8_ROW")}


def _rows(x: Tensor) -> Tensor:
    """x with its last dimension contiguous, as float32; itself where it is so already."""
    if x.dtype is not torch.float32:
        x = x.to(torch.float32)
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _matrix(x: Tensor) -> Tensor:
    """x [..., K] as [M, K] rows of one stride."""
    x = _rows(x)
    return x if x.dim() == 2 else x.reshape(-1, x.shape[-1])


def _heads(x: Tensor) -> Tensor:
    """x [T, H, D] with a token's heads side by side."""
    x = _rows(x)
    return x if x.stride(1) == x.shape[2] or x.shape[1] == 1 else x.contiguous()


def _linear(x: Tensor, weight: PackedWeight, bias: Tensor | None, mode: int, out: Tensor | None) -> Tensor:
    rows = _matrix(x)
    assert rows.shape[1] == weight.shape[1], (rows.shape, weight.shape)
    if out is None:
        out = torch.empty(rows.shape[0], weight.shape[0], dtype=torch.float32)
    assert out.shape == (rows.shape[0], weight.shape[0]), out.shape
    assert out.dtype is torch.float32, out.dtype
    wide = None if bias is None else bias.to(torch.float32).contiguous()
    op = linear_struct(weight, wide, mode)
    code = load().bayard_linear(
        ctypes.byref(op), rows.data_ptr(), rows.stride(0), rows.shape[0], None, 0, out.data_ptr(), out.stride(0)
    )
    check(code, f"linear {weight.kind} {tuple(weight.shape)}")
    return out


def linear_exact(x: Tensor, weight: PackedWeight, bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """x times the dequantised weight's transpose, in float32 throughout. out: where to put it, else new memory."""
    return _linear(x, weight, bias, abi.EXACT, out)


def linear_int8(x: Tensor, weight: PackedWeight, bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """As linear_exact, with each 32 activations, or the row where weights have a scale a row, rounded to 8 bits."""
    return _linear(x, weight, bias, abi.INT8, out)


def linear_bf16(x: Tensor, weight: PackedWeight, bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """As linear_exact, with activations rounded to bfloat16 where the CPU multiplies those."""
    return _linear(x, weight, bias, abi.BF16_ROUNDED, out)


def embedding(token_ids: Tensor, table: RowTable, dtype: torch.dtype) -> Tensor:
    ids = token_ids.to(torch.int64).contiguous()
    out = torch.empty(ids.shape[0], table.shape[1], dtype=torch.float32)
    code = load().bayard_embedding(
        abi.KINDS.index(table.kind),
        table.data.data_ptr(),
        table.row_bytes,
        table.shape[0],
        table.shape[1],
        ids.data_ptr(),
        ids.shape[0],
        out.data_ptr(),
        out.stride(0),
    )
    check(code, f"embedding of {table.shape[0]} rows")
    return out.to(dtype)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    rows = _matrix(x)
    out = torch.empty(rows.shape, dtype=torch.float32)
    scale = _rows(weight)
    code = load().bayard_rms_norm(
        rows.data_ptr(),
        rows.stride(0),
        rows.shape[0],
        rows.shape[1],
        scale.data_ptr(),
        eps,
        out.data_ptr(),
        out.stride(0),
    )
    check(code, "rms_norm")
    return out.view(x.shape)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    a, b, scale = _matrix(x), _matrix(residual), _rows(weight)
    total, out = torch.empty(a.shape, dtype=torch.float32), torch.empty(a.shape, dtype=torch.float32)
    code = load().bayard_add_rms_norm(
        a.data_ptr(),
        a.stride(0),
        b.data_ptr(),
        b.stride(0),
        a.shape[0],
        a.shape[1],
        scale.data_ptr(),
        eps,
        total.data_ptr(),
        total.stride(0),
        out.data_ptr(),
        out.stride(0),
    )
    check(code, "add_rms_norm")
    return out, total


def silu_mul(gate_up: Tensor) -> Tensor:
    return _gated(gate_up, abi.SILU_MUL)


def gelu_mul(gate_up: Tensor) -> Tensor:
    return _gated(gate_up, abi.GELU_MUL)


def _gated(gate_up: Tensor, gate: int) -> Tensor:
    rows = _matrix(gate_up)
    width = rows.shape[1] // 2
    out = torch.empty(rows.shape[0], width, dtype=torch.float32)
    code = load().bayard_gate_mul(
        gate, rows.data_ptr(), rows.stride(0), rows.shape[0], width, out.data_ptr(), out.stride(0)
    )
    check(code, "gate_mul")
    return out


def rope(q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor) -> None:
    where = positions.to(torch.int64).contiguous()
    table = cos_sin.contiguous()
    assert table.dtype is torch.float32, table.dtype
    for heads in (q, k):
        assert heads.dtype is torch.float32, heads.dtype
        assert heads.stride(2) == 1, heads.stride()
        code = load().bayard_rope(
            heads.data_ptr(),
            heads.stride(0),
            heads.stride(1),
            heads.shape[0],
            heads.shape[1],
            where.data_ptr(),
            table.data_ptr(),
            table.shape[0],
            table.shape[1],
        )
        check(code, "rope")


def kv_struct(view: Tensor) -> abi.Kv:
    """The C form of one layer's pages; view [pages, 2, G, page tokens, D], elements of a head side by side.

    int8 views are [pages, 2, G, page tokens, D + 4], a head's multipliers after all its tokens (engine.kernels.
    scaled_cache).
    """
    assert view.stride(4) == 1, view.stride()
    size = view.element_size()
    return abi.Kv(
        base=view.data_ptr(),
        page_stride=view.stride(0) * size,
        v_offset=view.stride(1) * size,
        head_stride=view.stride(2) * size,
        token_stride=view.shape[4] - SCALE_BYTES if is_scaled(view) else view.stride(3) * size,
        pages=view.shape[0],
        type=_KV_TYPES[view.dtype],
        page_tokens=view.shape[3],
    )


def kv_write(
    k: Tensor, v: Tensor, view: Tensor, write_pages: Tensor, write_offsets: Tensor, kv_scales: Tensor | None = None
) -> None:
    """kv_scales: [2, G] float32, as of reference.kv_write"""
    keys, values = _heads(k), _heads(v)
    pages, offsets = write_pages.to(torch.int64).contiguous(), write_offsets.to(torch.int64).contiguous()
    kv = kv_struct(view)
    code = load().bayard_kv_write(
        keys.data_ptr(),
        keys.stride(0),
        values.data_ptr(),
        values.stride(0),
        keys.shape[0],
        keys.shape[1],
        keys.shape[2],
        ctypes.byref(kv),
        pages.data_ptr(),
        offsets.data_ptr(),
        None if kv_scales is None else kv_scales.data_ptr(),
    )
    check(code, "kv_write")


def attention_struct(
    heads: int,
    kv_heads: int,
    head_dim: int,
    scale: float,
    window_tokens: int | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> abi.Attention:
    """The C form of attention's constants; it points at sinks [heads] float32, which must outlive it."""
    return abi.Attention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        scale=scale,
        softcap=softcap or 0.0,
        window=window_tokens or 0,
        sinks=None if sinks is None else sinks.data_ptr(),
    )


def paged_attention(
    q: Tensor,
    view: Tensor,
    block_tables: Tensor,
    query_starts: Tensor,
    context_lens: Tensor,
    scale: float,
    window_tokens: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    queries = _heads(q)
    count, heads, dim = queries.shape
    extra = None if sinks is None else sinks.to(torch.float32).contiguous()
    op = attention_struct(heads, view.shape[2], dim, scale, window_tokens, softcap, extra)
    kv = kv_struct(view)
    tables = block_tables.to(torch.int32)
    tables = tables if tables.stride(1) == 1 else tables.contiguous()
    starts, contexts = query_starts.to(torch.int32).contiguous(), context_lens.to(torch.int32).contiguous()
    out = torch.empty(count, heads, dim, dtype=torch.float32)
    code = load().bayard_attention(
        ctypes.byref(op),
        queries.data_ptr(),
        queries.stride(0),
        ctypes.byref(kv),
        tables.data_ptr(),
        tables.stride(0),
        tables.shape[1],
        starts.data_ptr(),
        contexts.data_ptr(),
        contexts.shape[0],
        count,
        out.data_ptr(),
        out.stride(0),
    )
    check(code, "paged_attention")
    return out


def argmax(logits: Tensor) -> Tensor:
    """The first place of each row's largest number, -1 for a row with a NaN.

    Shapes: logits [R, V] float32 -> [R] int64
    """
    return _largest(logits, finite=False)


def pick_greedy(logits: Tensor) -> Tensor:
    """The first largest of each row, -1 where a row has a number that is not finite.

    Shapes: logits [R, V] -> [R] int32
    """
    return _largest(logits, finite=True).to(torch.int32)


def choose_tokens(logits: Tensor, rows: Tensor, settings: Tensor, counts: Tensor, count_rows: Tensor) -> Tensor:
    """reference_sampling.choose_tokens; logits stay as they are."""
    values, wanted = _matrix(logits), rows.to(torch.int32).contiguous()
    asked, tables = settings.to(torch.float32).contiguous(), counts.to(torch.int32).contiguous()
    own = count_rows.to(torch.int32).contiguous()
    assert asked.shape == (len(wanted), NUM_SETTINGS), asked.shape
    assert tables.shape[1] == values.shape[1], (tables.shape, values.shape)
    out = torch.empty(len(wanted), dtype=torch.int32)
    code = load().bayard_choose(
        values.data_ptr(),
        values.stride(0),
        values.shape[0],
        values.shape[1],
        wanted.data_ptr(),
        asked.data_ptr(),
        tables.data_ptr(),
        tables.shape[0],
        own.data_ptr(),
        len(wanted),
        out.data_ptr(),
    )
    check(code, f"choosing {len(wanted)} tokens")
    return out


def _largest(logits: Tensor, finite: bool) -> Tensor:
    rows = _matrix(logits)
    out = torch.empty(rows.shape[0], dtype=torch.int64)
    shape = (rows.stride(0), rows.shape[0], rows.shape[1])
    check(load().bayard_argmax(rows.data_ptr(), *shape, int(finite), out.data_ptr()), "argmax")
    return out
