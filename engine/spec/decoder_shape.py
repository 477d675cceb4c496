"""What config.json and a GGUF header both state about a decoder, and the layers that follow from it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from engine.spec.family import Family
from engine.spec.fields import Fields
from engine.spec.model_spec import (
    AttentionKind,
    AttentionSpec,
    LayerSpec,
    MlpKind,
    MlpSpec,
    RopeSpec,
    TensorInfo,
)


@dataclass(frozen=True, slots=True)
class DecoderShape:
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rope: RopeSpec
    windows: tuple[int | None, ...]  # one a layer
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool

    def layers(self, family: Family, stated: Fields) -> tuple[LayerSpec, ...]:
        mlp = MlpSpec(MlpKind.DENSE, self.intermediate_size, activation=family.activation, bias=self.mlp_bias)
        plain = tuple(LayerSpec(i, self._attention(family, window), mlp) for i, window in enumerate(self.windows))
        return family.adapt(stated, plain)

    def _attention(self, family: Family, window: int | None) -> AttentionSpec:
        return AttentionSpec(
            kind=AttentionKind.FULL if window is None else AttentionKind.SLIDING,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            scale=self.head_dim**-0.5,
            rope=self.rope,
            window_tokens=window,
            qkv_bias=self.qkv_bias,
            o_bias=self.o_bias,
            qk_norm=family.qk_norm,
        )


def commonest_dtype(tensors: tuple[TensorInfo, ...]) -> str:
    """The type that most weight bytes are stored as."""
    sizes: Counter[str] = Counter()
    for info in tensors:
        sizes[info.dtype] += info.size_bytes
    return sizes.most_common(1)[0][0]
