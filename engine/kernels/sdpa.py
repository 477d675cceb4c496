"""torch's own attention, where it wins: a whole prompt at once, no pages behind it."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from engine.kernels.registry import Implementation, OpQuery

# cuDNN's kernel reaches 589 TFLOP/s on an H200 where our paged one reaches 320 and flash attention 2 reaches 315.
PREFERENCE = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]


def prompt_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    """Causal attention of one whole prompt.

    Shapes: q [T, H, D]; k, v [T, G, D], H a multiple of G -> [T, H, D]
    """
    count = q.shape[0]
    room = padded(count)
    if room > count:  # rows behind the last see what is before them and are seen by none
        q, k, v = with_room(q, k, v, room)
    queries, keys, values = (part.transpose(0, 1).unsqueeze(0) for part in (q, k, v))
    with sdpa_kernel(PREFERENCE, set_priority=True):
        out = F.scaled_dot_product_attention(queries, keys, values, is_causal=True, scale=scale, enable_gqa=True)
    return out.squeeze(0).transpose(0, 1)[:count]


def padded(tokens: int) -> int:
    """A length among few: cuDNN makes a plan for each, which takes it 40 ms."""
    step = 256 if tokens <= 4096 else 1024
    return -(-tokens // step) * step


def with_room(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, room: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same with zeros behind, room rows each: one copy where all three are columns of one matrix, as a rule."""
    parts, (count, _, dim) = (q, k, v), q.shape
    first, width = q.storage_offset(), sum(part.shape[1] for part in parts) * dim
    begins = (first, first + q.shape[1] * dim, first + (q.shape[1] + k.shape[1]) * dim)
    together = all(
        part.untyped_storage().data_ptr() == q.untyped_storage().data_ptr()
        and part.storage_offset() == begin
        and part.stride() == (q.stride(0), dim, 1)
        for part, begin in zip(parts, begins, strict=True)
    )
    if not together or q.stride(0) < width:
        padded_q, padded_k, padded_v = (F.pad(part, (0, 0, 0, 0, 0, room - count)) for part in parts)
        return padded_q, padded_k, padded_v
    whole = q.new_empty(room, width)
    whole[:count].copy_(q.as_strided((count, width), (q.stride(0), 1)))
    whole[count:].zero_()
    heads, k_end = whole.view(room, -1, dim), q.shape[1] + k.shape[1]
    return heads[:, : q.shape[1]], heads[:, q.shape[1] : k_end], heads[:, k_end:]


def implementations() -> Iterable[Implementation]:
    def half_on_cuda(query: OpQuery) -> str | None:
        if query.device != "cuda":
            return f"torch's fused attention is not tried on {query.device}"
        if query.dtype not in ("bfloat16", "float16") or query.kv_dtype != query.dtype:
            return f"it computes in half precision, not {query.dtype} with {query.kv_dtype or 'no'} pages"
        return None

    yield Implementation("prompt_attention", "sdpa", 60, half_on_cuda, prompt_attention)
