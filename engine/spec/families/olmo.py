"""OLMo 2 and 3: norms at the outputs, q and k normed over all heads."""

from __future__ import annotations

from dataclasses import replace

from engine.spec.family import Family, Norms, Window
from engine.spec.fields import MAX_CONTEXT, Fields
from engine.spec.model_spec import LayerSpec
from engine.spec.rope_fields import hf_rope


def _olmo2(stated: Fields, layers: tuple[LayerSpec, ...]) -> tuple[LayerSpec, ...]:
    return tuple(replace(la, attention=replace(la.attention, qk_norm_whole=True)) for la in layers)


def _olmo3(stated: Fields, layers: tuple[LayerSpec, ...]) -> tuple[LayerSpec, ...]:
    """Sliding layers may rotate otherwise than full ones."""
    context = stated.whole("max_position_embeddings", 1, MAX_CONTEXT)
    local = hf_rope(stated, layers[0].attention.head_dim, context, layers="sliding_attention")
    found = []
    for layer in _olmo2(stated, layers):
        rope = layer.attention.rope if layer.attention.window_tokens is None else local
        found.append(replace(layer, attention=replace(layer.attention, rope=rope)))
    return tuple(found)


FAMILIES = (
    Family("olmo2", "OLMo 2", ("Olmo2ForCausalLM",), ("olmo2",), norms=Norms.AFTER, adapt=_olmo2),
    Family(
        "olmo3",
        "OLMo 3",
        ("Olmo3ForCausalLM",),
        (),
        window=Window.PATTERN,
        window_period=4,
        norms=Norms.AFTER,
        adapt=_olmo3,
    ),
)
