"""Attention over one compressed row a token, shared by all heads.

The matrices that would expand a row to each head's key and value are taken to the query and to the result instead, so
that the cache is read as it is. Source: multi-head latent attention (arXiv 2405.04434, section 2.1)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.batch import ForwardBatch
from engine.layers.linear import CodedRows, Linear
from engine.layers.ops import Ops
from engine.spec.model_spec import AttentionSpec

NORM_EPS = 1e-6  # of the inner norms; checkpoints do not state it


@dataclass(frozen=True, slots=True)
class LatentAttention:
    spec: AttentionSpec
    layer: int
    ops: Ops
    inputs: Linear  # the query, or its compressed form, then the row and the rotary part of the key
    q_norm: Tensor | None  # of the compressed query
    q_from_latent: Linear | None
    row_norm: Tensor
    key_expansion: Tensor  # [H, N, L]: N dimensions of a key do not rotate
    value_expansion: Tensor  # [H, V, L]
    o: Linear
    cos_sin: Tensor

    @property
    def entry(self) -> Linear:
        """What alone reads the input."""
        return self.inputs

    def __call__(self, x: Tensor | CodedRows, batch: ForwardBatch) -> Tensor:
        """Write the new tokens' rows into their pages, then attend.

        Shapes: x [T, hidden] -> [T, hidden]
        Mutates: the layer's pages
        """
        spec, ops = self.spec, self.ops
        latent_dim, rope_dim = self.value_expansion.shape[2], self.cos_sin.shape[1]
        projected = self.inputs(x)
        split = projected.shape[1] - latent_dim - rope_dim
        q, row, k_rope = projected[:, :split], projected[:, split:-rope_dim], projected[:, -rope_dim:]
        if self.q_norm is not None and self.q_from_latent is not None:
            q = self.q_from_latent(ops.rms_norm(q, self.q_norm, NORM_EPS))
        q = q.view(-1, spec.num_heads, spec.head_dim)
        q_rope = q[..., -rope_dim:].contiguous()
        k_rope = k_rope.unsqueeze(1).contiguous()
        ops.rope(q_rope, k_rope, batch.positions, self.cos_sin)
        cached = torch.cat((ops.rms_norm(row, self.row_norm, NORM_EPS), k_rope.squeeze(1)), dim=-1)
        q_latent = torch.einsum("thn,hnl->thl", q[..., :-rope_dim], self.key_expansion)
        view = batch.kv_views[self.layer]
        pages = batch.groups[batch.layer_groups[self.layer]]
        ops.latent_write(cached, view, pages.write_pages, pages.write_offsets)
        mixed = ops.latent_attention(
            torch.cat((q_latent, q_rope), dim=-1),
            view,
            pages.block_tables,
            batch.query_starts,
            batch.context_lens,
            spec.scale,
            latent_dim,
        )
        out = torch.einsum("thl,hvl->thv", mixed, self.value_expansion)
        return self.o(out.reshape(x.shape[0], -1))
