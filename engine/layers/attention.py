"""Attention over paged keys and values, full or in a sliding window."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from engine.batch import ForwardBatch
from engine.kernels.scaled_cache import is_scaled
from engine.layers.linear import CodedRows, Linear
from engine.layers.ops import Ops
from engine.spec.model_spec import AttentionSpec

WHOLE_PROMPT_TOKENS = 512  # below, the paged kernel is as fast


@dataclass(frozen=True, slots=True)
class Attention:
    spec: AttentionSpec
    layer: int
    ops: Ops
    qkv: Linear  # q's heads, then k's, then v's
    o: Linear
    cos_sin: Tensor | None  # None: no rotation
    q_norm: Tensor | None
    k_norm: Tensor | None
    norm_eps: float
    sinks: Tensor | None = None  # [H] float32
    kv_scales: Tensor | None = None  # [2, G] float32, of a cache of bytes; None: its heads have their own

    @property
    def entry(self) -> Linear:
        """What alone reads the input."""
        return self.qkv

    def __call__(self, x: Tensor | CodedRows, batch: ForwardBatch) -> Tensor:
        """Write the new tokens' K and V into their pages, then attend.

        Shapes: x [T, hidden] -> [T, hidden]
        Mutates: the layer's pages
        """
        spec, ops = self.spec, self.ops
        rows, dim = x.shape[0], spec.head_dim
        projected = self.qkv(x)
        qkv = projected.view(rows, spec.num_heads + 2 * spec.num_kv_heads, dim)
        k_end = spec.num_heads + spec.num_kv_heads
        q, k, v = qkv[:, : spec.num_heads], qkv[:, spec.num_heads : k_end], qkv[:, k_end:]
        norms: tuple[object, ...] = ()
        if self.q_norm is not None and self.k_norm is not None and self._joins_norms():
            norms = (self.q_norm, self.k_norm, self.norm_eps)
        elif self.q_norm is not None and self.k_norm is not None:
            if spec.qk_norm_whole:
                q, k = projected[:, : spec.num_heads * dim], projected[:, spec.num_heads * dim : k_end * dim]
            q = ops.rms_norm(q, self.q_norm, self.norm_eps).view(rows, spec.num_heads, dim)
            k = ops.rms_norm(k, self.k_norm, self.norm_eps).view(rows, spec.num_kv_heads, dim)
        view = batch.kv_views[self.layer]
        pages = batch.groups[batch.layer_groups[self.layer]]
        given = {} if self.kv_scales is None else {"kv_scales": self.kv_scales}
        where = (view, pages.write_pages, pages.write_offsets)
        if self.cos_sin is None:
            ops.kv_write(k, v, *where, **given)
        else:
            ops.rope_kv_write(q, k, v, batch.positions, self.cos_sin, *where, *norms, **given)
        if self._takes_whole_prompt(batch):
            assert self.ops.prompt_attention is not None
            whole: Tensor = self.ops.prompt_attention(q, k, v, spec.scale)  # k is rotated by now
            return self.o(whole.reshape(rows, spec.num_heads * dim))
        out = ops.paged_attention(
            q,
            view,
            pages.block_tables,
            batch.query_starts,
            batch.context_lens,
            spec.scale,
            spec.window_tokens,
            spec.softcap,
            self.sinks,
        )
        return self.o(out.reshape(rows, spec.num_heads * dim))

    def _joins_norms(self) -> bool:
        """Whether heads are normed in the pass that rotates and writes them."""
        return self.ops.joins_norms and self.cos_sin is not None and not self.spec.qk_norm_whole

    def _takes_whole_prompt(self, batch: ForwardBatch) -> bool:
        """One sequence from its beginning, long enough to pay, and nothing that the plain kernel lacks."""
        spec = self.spec
        if is_scaled(batch.kv_views[self.layer]):  # what was written is read back rounded, in every step alike
            return False
        if self.ops.prompt_attention is None or batch.num_sequences != 1 or spec.softcap is not None or spec.sinks:
            return False
        tokens = batch.max_query_tokens
        within = spec.window_tokens is None or tokens <= spec.window_tokens
        return tokens == batch.max_context_tokens and tokens >= WHOLE_PROMPT_TOKENS and within
