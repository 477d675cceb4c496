"""Gemma 2 and 3: norms on both sides, embeddings scaled, sliding layers between full ones."""

from __future__ import annotations

import math
from dataclasses import replace

from engine.spec.family import Family, Norms, Window
from engine.spec.fields import MAX_CONTEXT, Fields
from engine.spec.model_spec import LayerSpec, RopeSpec
from engine.spec.rope_fields import DEFAULT_THETA, hf_rope

LARGEST_LAYERS = {"gemma2": 46, "gemma3": 62}  # the 27B models, which scale by the width of a head's share


def _scale(stated: Fields, layers: tuple[LayerSpec, ...], largest: int) -> float:
    """GGUF does not state it; it follows from which model it is."""
    attention = layers[0].attention
    dim = float(attention.head_dim)
    if stated.gguf and len(layers) == largest:
        dim = stated.whole("hidden_size", 1, MAX_CONTEXT) / attention.num_heads
    return 1 / math.sqrt(stated.number("query_pre_attn_scalar", 1e-6, 1e6, dim))


def _softcap(stated: Fields, name: str) -> float | None:
    return stated.number(name, 1e-6, 1e9) if name in stated else None


def _gemma2(stated: Fields, layers: tuple[LayerSpec, ...]) -> tuple[LayerSpec, ...]:
    _refuse_encoder(stated)
    scale, softcap = _scale(stated, layers, LARGEST_LAYERS["gemma2"]), _softcap(stated, "attn_logit_softcapping")
    return tuple(replace(la, attention=replace(la.attention, scale=scale, softcap=softcap)) for la in layers)


def _gemma3(stated: Fields, layers: tuple[LayerSpec, ...]) -> tuple[LayerSpec, ...]:
    """Sliding layers rotate by a base of their own, never stretched."""
    _refuse_encoder(stated)
    head_dim = layers[0].attention.head_dim
    local = RopeSpec(stated.number("rope_local_base_freq", 1.0, 1e12, DEFAULT_THETA), head_dim)
    if "rope_parameters" in stated:
        context = stated.whole("max_position_embeddings", 1, MAX_CONTEXT)
        local = hf_rope(stated, head_dim, context, layers="sliding_attention")
    scale, softcap = _scale(stated, layers, LARGEST_LAYERS["gemma3"]), _softcap(stated, "attn_logit_softcapping")
    found = []
    for layer in layers:
        rope = layer.attention.rope if layer.attention.window_tokens is None else local
        found.append(replace(layer, attention=replace(layer.attention, scale=scale, softcap=softcap, rope=rope)))
    return tuple(found)


def _refuse_encoder(stated: Fields) -> None:
    if stated.truth("use_bidirectional_attention", False):
        raise stated.refuse("use_bidirectional_attention", "false, a model that writes text,")


def _scalars(stated: Fields) -> dict[str, float]:
    found = {"embed_scale": math.sqrt(stated.whole("hidden_size", 1, MAX_CONTEXT))}
    softcap = _softcap(stated, "final_logit_softcapping")
    return found if softcap is None else found | {"logit_softcap": softcap}


NAMES = {"mlp_norm": ("ffn_norm.weight", "pre_feedforward_layernorm.weight")}

FAMILIES = (
    Family(
        "gemma2",
        "Gemma 2",
        ("Gemma2ForCausalLM",),
        ("gemma2",),
        window=Window.PATTERN,
        window_period=2,
        default_window=4096,
        norms=Norms.BOTH,
        hf_norms_below_one=True,
        tied=True,
        activation="gelu_tanh",
        names=NAMES,
        understands=("attn_logit_softcapping", "final_logit_softcapping"),
        adapt=_gemma2,
        scalars=_scalars,
    ),
    Family(
        "gemma3_text",
        "Gemma 3 (text)",
        ("Gemma3ForCausalLM",),
        ("gemma3",),
        window=Window.PATTERN,
        window_period=6,
        default_window=4096,
        norms=Norms.BOTH,
        qk_norm=True,
        hf_norms_below_one=True,
        tied=True,
        activation="gelu_tanh",
        names=NAMES,
        understands=(
            "attn_logit_softcapping",
            "final_logit_softcapping",
            "rope_local_base_freq",
            "sliding_window_pattern",
        ),
        adapt=_gemma3,
        scalars=_scalars,
    ),
)
