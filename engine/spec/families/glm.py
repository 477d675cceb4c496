"""GLM-4 and GLM-4.5: heads rotate in part; the one norms on both sides, the other has experts beside a shared one."""

from __future__ import annotations

from dataclasses import replace

from engine.spec.experts_fields import shared_expert_layers
from engine.spec.family import Bias, Family, Norms
from engine.spec.fields import Fields
from engine.spec.model_spec import LayerSpec


def _glm4_moe(stated: Fields, layers: tuple[LayerSpec, ...]) -> tuple[LayerSpec, ...]:
    normed = stated.truth("use_qk_norm", False)
    plain = tuple(replace(la, attention=replace(la.attention, qk_norm=normed)) for la in layers)
    return shared_expert_layers(stated, plain, score="sigmoid", correction=True)


FAMILIES = (
    Family(
        "glm4",
        "GLM-4",
        ("Glm4ForCausalLM",),
        ("glm4",),
        bias=Bias.STATED_QKV,
        norms=Norms.BOTH,
        partial_rotary=0.5,
        gguf_interleaved=True,
        hf_interleaved=True,
        fused_gate_up=True,
        names={
            "attn_post_norm": ("post_attention_norm.weight", "post_self_attn_layernorm.weight"),
            "mlp_norm": ("ffn_norm.weight", "post_attention_layernorm.weight"),
            "mlp_post_norm": ("post_ffw_norm.weight", "post_mlp_layernorm.weight"),
        },
    ),
    Family(
        "glm4_moe",
        "GLM-4.5, 4.6, 4.7",
        ("Glm4MoeForCausalLM",),
        ("glm4moe",),
        bias=Bias.STATED_QKV,
        partial_rotary=0.5,
        experts=True,
        next_token_layers=True,
        names={"mlp_norm": ("post_attention_norm.weight", "post_attention_layernorm.weight")},
        understands=(
            "moe_intermediate_size",
            "n_shared_experts",
            "first_k_dense_replace",
            "norm_topk_prob",
            "routed_scaling_factor",
            "n_group",
            "topk_group",
            "scoring_func",
        ),
        adapt=_glm4_moe,
    ),
)
