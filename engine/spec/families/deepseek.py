"""DeepSeek V2 and V3: one compressed row a token in the cache, experts in groups beside shared ones."""

from __future__ import annotations

import math
from dataclasses import replace

from engine.spec.experts_fields import shared_expert_layers
from engine.spec.family import Family
from engine.spec.fields import MAX_WIDTH, Fields
from engine.spec.model_spec import AttentionKind, AttentionSpec, LayerSpec, RopeSpec

METHODS = ("greedy", "group_limited_greedy", "noaux_tc")


def _latent(stated: Fields, plain: AttentionSpec) -> AttentionSpec:
    if plain.qkv_bias or plain.rope is None:
        raise stated.refuse("attention_bias", "false, for this architecture,")
    rope_dim = stated.whole("qk_rope_head_dim", 2, MAX_WIDTH)
    if rope_dim % 2:
        raise stated.refuse("qk_rope_head_dim", "an even number")
    if stated.gguf:
        head_dim = stated.whole("qk_head_dim", rope_dim + 1, MAX_WIDTH)
    else:
        head_dim = stated.whole("qk_nope_head_dim", 1, MAX_WIDTH) + rope_dim
    rope, magnitude = _rope(stated, replace(plain.rope, rotary_dim=rope_dim))
    return replace(
        plain,
        kind=AttentionKind.LATENT,
        num_kv_heads=1,
        head_dim=head_dim,
        scale=magnitude**2 / math.sqrt(head_dim),
        rope=rope,
        latent_dim=stated.whole("kv_lora_rank", 1, MAX_WIDTH),
        rope_head_dim=rope_dim,
        q_latent_dim=stated.whole("q_lora_rank", 1, MAX_WIDTH) if "q_lora_rank" in stated else None,
        value_dim=stated.whole("v_head_dim", 1, MAX_WIDTH),
    )


def _rope(stated: Fields, rope: RopeSpec) -> tuple[RopeSpec, float]:
    """The rotation, and what stretching it multiplies queries and keys with."""
    if rope.scaling_kind != "yarn":
        return rope, 1.0
    scaling = dict(rope.scaling)
    if stated.gguf:  # the file states a tenth of mscale_all_dim, and the rotation itself is left as large as it is
        share = stated.number("yarn_log_multiplier", 0.0, 10.0, 0.0)
        scaling["attention_factor"] = 1.0
    else:
        share = 0.1 * scaling.get("mscale_all_dim", 0.0)
    return replace(rope, scaling=tuple(scaling.items())), 1.0 + share * math.log(max(scaling["factor"], 1.0))


def _adapt(stated: Fields, layers: tuple[LayerSpec, ...], newer: bool) -> tuple[LayerSpec, ...]:
    if stated.whole("moe_layer_freq", 1, MAX_WIDTH, 1) != 1:
        raise stated.refuse("moe_layer_freq", "1")
    latent = tuple(replace(layer, attention=_latent(stated, layer.attention)) for layer in layers)
    method = stated.one_of("topk_method", METHODS, METHODS[2] if newer else METHODS[0])
    found = shared_expert_layers(
        stated,
        latent,
        score="sigmoid" if newer else "softmax",
        correction=stated.truth("router_correction", newer),
        normalised=newer,
        grouped=stated.gguf or method != "greedy",
    )
    # The older one takes a group for as good as its best expert.
    tops = (replace(la.mlp, router_group_top=2 if la.mlp.router_score == "sigmoid" else 1) for la in found)
    return tuple(replace(layer, mlp=mlp) for layer, mlp in zip(found, tops, strict=True))


def _v2(stated: Fields, layers: tuple[LayerSpec, ...]) -> tuple[LayerSpec, ...]:
    return _adapt(stated, layers, newer=False)


def _v3(stated: Fields, layers: tuple[LayerSpec, ...]) -> tuple[LayerSpec, ...]:
    return _adapt(stated, layers, newer=True)


FAMILIES = (
    Family(
        "deepseek_v2",
        "DeepSeek V2, and V3 from GGUF",
        ("DeepseekV2ForCausalLM",),
        ("deepseek2",),
        experts=True,
        partial_rotary=1.0,
        gguf_interleaved=True,
        hf_interleaved=True,
        next_token_layers=True,
        latent=True,
        understands=(
            "moe_intermediate_size",
            "n_shared_experts",
            "first_k_dense_replace",
            "norm_topk_prob",
            "routed_scaling_factor",
            "n_group",
            "topk_group",
            "scoring_func",
            "kv_lora_rank",
            "q_lora_rank",
            "qk_head_dim",
            "v_head_dim",
            "yarn_log_multiplier",
        ),
        adapt=_v2,
    ),
    Family(
        "deepseek_v3",
        "DeepSeek V3, R1",
        ("DeepseekV3ForCausalLM",),
        (),
        experts=True,
        partial_rotary=1.0,
        hf_interleaved=True,
        next_token_layers=True,
        latent=True,
        adapt=_v3,
    ),
)
