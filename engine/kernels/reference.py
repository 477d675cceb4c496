"""Plain torch truth of every kernel: runs on any device, and what faster kernels are tested against.

A KV view of one layer is view[page, 0 for K | 1 for V, kv_head, token in page, head_dim]; the page stride may be any
64-bit number. Sums that decide a result (norms, softmax, scores) are taken in float32 whatever the activations are.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.kernels.reference_experts import CAPTURED_ROWS, experts, gelu_mul, route
from engine.kernels.reference_sampling import choose_tokens, draw_tokens
from engine.kernels.registry import Implementation, OpQuery
from engine.kernels.scaled_cache import is_scaled, numbers_of, parts, rounded
from engine.quant.coded_tensor import CodedTensor
from engine.quant.expert_stack import ExpertStack
from engine.quant.quant_tensor import QuantTensor

Weight = QuantTensor | CodedTensor | Tensor
Packable = Weight | ExpertStack
TILE_ELEMENTS = 1 << 21  # of a dequantised weight tile: 8 MiB of float32
SCORE_ELEMENTS = 1 << 22  # of a tile of attention scores: 16 MiB of float32


def linear(x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
    """x times the weight's transpose. A weight of another type than x is decoded a tile of rows at a time, never whole.

    Shapes: x [M, K]; weight [N, K]; bias [N] -> [M, N] in x's dtype
    """
    if isinstance(weight, Tensor) and weight.dtype == x.dtype:
        return F.linear(x, weight, bias)
    rows, columns = weight.shape
    out = torch.empty(x.shape[0], rows, dtype=x.dtype, device=x.device)
    step = max(1, TILE_ELEMENTS // columns)
    for start in range(0, rows, step):
        tile = slice(start, start + step)
        decoded = weight[tile] if isinstance(weight, Tensor) else weight.dequantize(tile)
        out[:, tile] = x @ decoded.to(x.dtype).T
    return out if bias is None else out.add_(bias)


def embedding(token_ids: Tensor, weight: Weight, dtype: torch.dtype) -> Tensor:
    """Rows of the table.

    Shapes: token_ids [T]; weight [V, K] -> [T, K] in dtype
    """
    if isinstance(weight, Tensor):
        return torch.nn.functional.embedding(token_ids, weight).to(dtype)
    return weight.dequantize_at(token_ids).to(dtype)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x over its root mean square, times weight.

    Shapes: x [..., K]; weight [K] float32 -> like x
    """
    wide = x.to(torch.float32)
    scaled = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return (scaled * weight).to(x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The norm of x + residual, and that sum.

    Shapes: x, residual [T, K]; weight [K] float32 -> (normed [T, K], new residual [T, K])
    """
    total = x + residual
    return rms_norm(total, weight, eps), total


def rope(q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor) -> None:
    """Rotate the leading R dimensions of each head, pairing dimension i with i + R/2.

    Shapes: q [T, H, D]; k [T, G, D]; positions [T] int64; cos_sin [P, R] float32, R/2 cosines then R/2 sines
    Mutates: q and k, which may be strided views of one projection
    """
    half = cos_sin.shape[1] // 2
    rows = cos_sin[positions].unsqueeze(1)
    cos, sin = rows[..., :half], rows[..., half:]
    for heads in (q, k):
        first = heads[..., :half].to(torch.float32)
        second = heads[..., half : 2 * half].to(torch.float32)
        # Both halves before either is written: in float32 `first` and `second` are views of what is written.
        rotated = (first * cos - second * sin, second * cos + first * sin)
        heads[..., :half], heads[..., half : 2 * half] = (part.to(heads.dtype) for part in rotated)


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up.

    Shapes: gate_up [M, 2I], the gate's columns first -> [M, I]
    """
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def kv_write(
    k: Tensor, v: Tensor, view: Tensor, write_pages: Tensor, write_offsets: Tensor, kv_scales: Tensor | None = None
) -> None:
    """Put each new token's K and V in its page; rounded where the view is of bytes (engine.kernels.scaled_cache).

    kv_scales: of such a view, the multipliers of K's and V's heads; None: each head of each token has its own
    Shapes: k, v [T, G, D]; view [pages, 2, G, page tokens, D], of bytes D + 4; write_pages, write_offsets [T] int64;
        kv_scales [2, G] float32
    Mutates: view
    """
    if is_scaled(view):
        codes, scales = parts(view)
        for plane, heads in enumerate((k, v)):
            made, multipliers = rounded(heads, view.dtype, None if kv_scales is None else kv_scales[plane])
            codes[write_pages, plane, :, write_offsets] = made
            scales[write_pages, plane, :, write_offsets] = multipliers
        return
    view[write_pages, 0, :, write_offsets] = k.to(view.dtype)
    view[write_pages, 1, :, write_offsets] = v.to(view.dtype)


def rope_kv_write(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    view: Tensor,
    write_pages: Tensor,
    write_offsets: Tensor,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
    kv_scales: Tensor | None = None,
) -> None:
    """rms_norm of each head if there are norms, rope, then kv_write: what lies between a projection and attention.

    Shapes: q_norm, k_norm [D], both or none
    Mutates: q, k, view
    """
    if q_norm is not None and k_norm is not None:
        q.copy_(rms_norm(q, q_norm, eps))
        k.copy_(rms_norm(k, k_norm, eps))
    rope(q, k, positions, cos_sin)
    kv_write(k, v, view, write_pages, write_offsets, kv_scales)


def pick_greedy(logits: Tensor) -> Tensor:
    """The first largest of each row, -1 where a row has a number that is not finite. No host sync.

    Shapes: logits [R, vocab] -> [R] int32
    """
    highest, token = logits.max(dim=-1)
    finite = torch.isfinite(highest) & torch.isfinite(logits.amin(dim=-1))
    return torch.where(finite, token, -1).to(torch.int32)


def newest_tokens(token_ids: Tensor, slots: Tensor, pool: Tensor) -> Tensor:
    """A step's tokens, those that the host does not know yet (below 0) from their sequences' places in the pool.

    Shapes: token_ids, slots [T]; pool [P]
    """
    return torch.where(token_ids < 0, pool[slots].to(token_ids.dtype), token_ids)


def keep_tokens(pool: Tensor, slots: Tensor, tokens: Tensor) -> None:
    """What a step chose, for the next. Of several tokens for one place one remains.

    Shapes: slots, tokens [S]. Mutates: pool
    """
    pool[slots] = tokens


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
    """Causal attention of each sequence's new tokens over its pages, the new tokens' own K and V being written already.

    A query at position p sees keys p - window_tokens + 1 .. p (from 0 without a window). softcap bounds scores to
    softcap * tanh(score / softcap) after scaling. sinks are one more score a head that takes weight and gives no value.

    Shapes: q [T, H, D]; view [pages, 2, G, page tokens, D]; block_tables [S, blocks] int32; query_starts [S + 1] int32;
        context_lens [S] int32, new tokens included; sinks [H] -> [T, H, D] in q's dtype. H is a multiple of G
    """
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    page_tokens = view.shape[3]
    starts = query_starts.tolist()
    for s, context in enumerate(context_lens.tolist()):
        first_row, end_row = starts[s], starts[s + 1]
        rows = end_row - first_row
        if rows == 0:
            continue
        first_position = context - rows
        first_key = 0 if window_tokens is None else max(0, first_position - window_tokens + 1)
        first_block = first_key // page_tokens
        pages = block_tables[s, first_block : -(-context // page_tokens)].to(torch.int64)
        key_base = first_block * page_tokens
        kv = _read(view, pages)
        kv = kv.permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, : context - key_base]
        step = max(1, SCORE_ELEMENTS // (q.shape[1] * kv.shape[2]))
        for row in range(first_row, end_row, step):
            end = min(row + step, end_row)
            positions = torch.arange(
                first_position + row - first_row, first_position + end - first_row, device=q.device
            )
            out[row:end] = _attend(q[row:end], kv, positions, key_base, scale, window_tokens, softcap, sinks)
    return out


def _read(view: Tensor, pages: Tensor) -> Tensor:
    """Some pages' numbers -> [blocks, 2, G, page tokens, D] float32"""
    if not is_scaled(view):
        return view[pages].to(torch.float32)
    codes, scales = parts(view)
    return numbers_of(codes[pages], scales[pages])


def _attend(
    q: Tensor,
    kv: Tensor,
    positions: Tensor,
    key_base: int,
    scale: float,
    window_tokens: int | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Queries of one sequence against its gathered keys.

    Shapes: q [t, H, D]; kv [2, G, C, D] float32; positions [t] -> [t, H, D] float32
    """
    count, heads, dim = q.shape
    groups, context = kv.shape[1], kv.shape[2]
    grouped = q.to(torch.float32).reshape(count, groups, heads // groups, dim).permute(1, 2, 0, 3)  # [G, H/G, t, D]
    scores = torch.matmul(grouped, kv[0].unsqueeze(1).transpose(2, 3)) * scale  # [G, H/G, t, C]
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    keys = torch.arange(key_base, key_base + context, device=q.device)
    hidden = keys > positions.unsqueeze(1)
    if window_tokens is not None:
        hidden = hidden | (keys <= positions.unsqueeze(1) - window_tokens)
    scores = scores.masked_fill(hidden, float("-inf"))
    if sinks is not None:
        extra = sinks.to(torch.float32).reshape(groups, heads // groups, 1, 1).expand(-1, -1, count, 1)
        weights = torch.softmax(torch.cat((scores, extra), dim=-1), dim=-1)[..., :-1]
    else:
        weights = torch.softmax(scores, dim=-1)
    return torch.matmul(weights, kv[1].unsqueeze(1)).permute(2, 0, 1, 3).reshape(count, heads, dim)


def prompt_attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Causal attention of one whole prompt, its K and V in hand.

    Shapes: q [T, H, D]; k, v [T, G, D], H a multiple of G -> [T, H, D] in q's dtype
    """
    kv = torch.stack((k, v)).to(torch.float32).transpose(1, 2)
    positions = torch.arange(q.shape[0], device=q.device)
    return _attend(q, kv, positions, 0, scale, None, None, None).to(q.dtype)


def latent_write(rows: Tensor, view: Tensor, write_pages: Tensor, write_offsets: Tensor) -> None:
    """Put each new token's compressed row in its page.

    Shapes: rows [T, C]; view [pages, 1, 1, page tokens, C]; write_pages, write_offsets [T] int64
    Mutates: view
    """
    view[write_pages, 0, 0, write_offsets] = rows.to(view.dtype)


def paged_latent_attention(
    q: Tensor,
    view: Tensor,
    block_tables: Tensor,
    query_starts: Tensor,
    context_lens: Tensor,
    scale: float,
    latent_dim: int,
) -> Tensor:
    """paged_attention of all heads over one row a token, which is the key whole and the value in its leading part.

    Shapes: q [T, H, C]; view [pages, 1, 1, page tokens, C] -> [T, H, latent_dim] in q's dtype
    """
    both = view.expand(-1, 2, -1, -1, -1)
    return paged_attention(q, both, block_tables, query_starts, context_lens, scale)[..., :latent_dim]


def implementations() -> Iterable[Implementation]:
    """The reference of every op; takes any query."""

    def anything(query: OpQuery) -> str | None:
        return None

    def keep(weight: Packable) -> Packable:
        return weight

    plain = (rms_norm, add_rms_norm, rope, silu_mul, gelu_mul, route, kv_write, rope_kv_write, latent_write)
    attending = (paged_attention, paged_latent_attention, prompt_attention)
    for packing in (linear, embedding, experts):
        most = CAPTURED_ROWS if packing is experts else None
        yield Implementation(
            packing.__name__, "reference", 0, anything, packing, keep, "plain torch", captured_rows=most
        )
    for run in (*plain, *attending, pick_greedy, choose_tokens, draw_tokens, newest_tokens, keep_tokens):
        most = 0 if run in (paged_attention, paged_latent_attention) else None  # they read lengths on the host
        yield Implementation(run.__name__, "reference", 0, anything, run, None, "plain torch", captured_rows=most)
