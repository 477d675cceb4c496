"""Granite: Llama with embeddings, scores, residual sums and logits scaled."""

from __future__ import annotations

from dataclasses import replace

from engine.spec.family import Family
from engine.spec.fields import Fields
from engine.spec.model_spec import LayerSpec

LOW, HIGH = 1e-6, 1e6  # of a multiplier


def _adapt(stated: Fields, layers: tuple[LayerSpec, ...]) -> tuple[LayerSpec, ...]:
    scale = stated.number("attention_multiplier", LOW, HIGH, 1.0)
    return tuple(replace(layer, attention=replace(layer.attention, scale=scale)) for layer in layers)


def _scalars(stated: Fields) -> dict[str, float]:
    return {
        "embed_scale": stated.number("embedding_multiplier", LOW, HIGH, 1.0),
        "residual_scale": stated.number("residual_multiplier", LOW, HIGH, 1.0),
        "logit_scale": 1.0 / stated.number("logits_scaling", LOW, HIGH, 1.0),
    }


FAMILIES = (
    Family(
        "granite",
        "Granite 3",
        ("GraniteForCausalLM",),
        ("granite",),
        gguf_interleaved=True,
        understands=("attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling"),
        adapt=_adapt,
        scalars=_scalars,
    ),
)
