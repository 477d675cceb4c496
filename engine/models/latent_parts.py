"""LatentParts: what DeepSeek's attention is made of, from the tensors of either format."""

from __future__ import annotations

from torch import Tensor

from engine.layers.latent_attention import LatentAttention
from engine.layers.weight import half_style_rows, numbers
from engine.models.decoder import Decoder
from engine.models.parts import Parts
from engine.spec.model_spec import AttentionSpec, LayerSpec


class LatentParts(Parts):
    def attention(self, layer: LayerSpec) -> LatentAttention:
        i, spec = layer.index, layer.attention
        latent_dim, rope_dim = spec.latent_dim, spec.rope_head_dim
        cos_sin = self.rope(spec.rope)
        assert latent_dim is not None
        assert rope_dim is not None
        assert cos_sin is not None
        keys, values = self._expansions(i, spec, latent_dim, spec.head_dim - rope_dim)
        q_rows = half_style_rows(spec.num_heads, spec.head_dim, rope_dim, spec.head_dim - rope_dim)
        row_rows = half_style_rows(1, latent_dim + rope_dim, rope_dim, latent_dim)
        compressed = spec.q_latent_dim is not None
        inputs = ["attn_q_a" if compressed else "attn_q", "attn_kv_a"]
        return LatentAttention(
            spec=spec,
            layer=i,
            ops=self.ops,
            inputs=self.projection(inputs, i, [None if compressed else q_rows, row_rows]),
            q_norm=self.norm("attn_q_a_norm", i) if compressed else None,
            q_from_latent=self.projection(["attn_q_b"], i, [q_rows]) if compressed else None,
            row_norm=self.norm("attn_kv_a_norm", i),
            key_expansion=keys,
            value_expansion=values,
            o=self.projection(["attn_o"], i),
            cos_sin=cos_sin,
        )

    def _expansions(self, layer: int, spec: AttentionSpec, latent_dim: int, still_dim: int) -> tuple[Tensor, Tensor]:
        """Shapes: -> [H, N, L], [H, V, L] in the activations' type"""
        if ("attn_kv_b", layer) in self.checkpoint:
            both = numbers(self.matrix("attn_kv_b", layer)).view(spec.num_heads, -1, latent_dim)
            keys, values = both[:, :still_dim], both[:, still_dim:]
        else:
            keys = numbers(self.matrix("attn_k_b", layer)).view(spec.num_heads, latent_dim, still_dim).transpose(1, 2)
            values = numbers(self.matrix("attn_v_b", layer)).view(spec.num_heads, -1, latent_dim)
        return keys.to(self.dtype).contiguous(), values.to(self.dtype).contiguous()


class LatentDecoder(Decoder):
    parts_of = LatentParts
