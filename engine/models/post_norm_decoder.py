"""PostNormDecoder: a decoder whose norms stand at the outputs of attention and MLP, as OLMo 2 has them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from engine.batch import ForwardBatch
from engine.layers.attention import Attention
from engine.layers.experts import ExpertsMlp
from engine.layers.latent_attention import LatentAttention
from engine.layers.mlp import GatedMlp
from engine.models.decoder import Decoder
from engine.models.parts import Parts
from engine.spec.model_spec import LayerSpec


@dataclass(frozen=True, slots=True)
class PostNormLayer:
    attention: Attention | LatentAttention
    attn_post_norm: Tensor
    mlp: GatedMlp | ExpertsMlp
    mlp_post_norm: Tensor


class PostNormDecoder(Decoder):
    def _load_layers(self, parts: Parts) -> None:
        self.post_norm_layers = self.in_order(parts, _layer)

    def _through_layers(self, residual: Tensor, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        rms_norm, eps = self.ops.rms_norm, self.spec.norm_eps
        added = residual.new_zeros(())
        for layer in self.post_norm_layers:
            residual = residual + added
            residual = residual + rms_norm(layer.attention(residual, batch), layer.attn_post_norm, eps)
            added = rms_norm(layer.mlp(residual), layer.mlp_post_norm, eps)
        return added, residual


def _layer(parts: Parts, layer: LayerSpec) -> PostNormLayer:
    return PostNormLayer(
        attention=parts.attention(layer),
        attn_post_norm=parts.norm("attn_post_norm", layer.index),
        mlp=parts.mlp(layer),
        mlp_post_norm=parts.norm("mlp_post_norm", layer.index),
    )
