"""Mixtral and Qwen3-MoE: Llama and Qwen3 with experts for MLPs."""

from __future__ import annotations

from dataclasses import replace

from engine.spec.experts_fields import expert_mlp
from engine.spec.family import Family, Window
from engine.spec.fields import MAX_LAYERS, Fields
from engine.spec.model_spec import LayerSpec

MIXTRAL_NAMES = {
    "router": ("ffn_gate_inp.weight", "block_sparse_moe.gate.weight"),
    "experts_gate": ("ffn_gate_exps.weight", "block_sparse_moe.experts.*.w1.weight"),
    "experts_up": ("ffn_up_exps.weight", "block_sparse_moe.experts.*.w3.weight"),
    "experts_down": ("ffn_down_exps.weight", "block_sparse_moe.experts.*.w2.weight"),
}


def _mixtral(stated: Fields, layers: tuple[LayerSpec, ...]) -> tuple[LayerSpec, ...]:
    return tuple(replace(layer, mlp=expert_mlp(stated, layer.mlp.intermediate_size)) for layer in layers)


def _qwen3_moe(stated: Fields, layers: tuple[LayerSpec, ...]) -> tuple[LayerSpec, ...]:
    """Every decoder_sparse_step-th layer has experts, but those of mlp_only_layers have none."""
    step = stated.whole("decoder_sparse_step", 1, MAX_LAYERS, 1)
    dense = set(stated.wholes("mlp_only_layers", 0, MAX_LAYERS))
    normalised = stated.truth("norm_topk_prob", stated.gguf)
    mlp = replace(expert_mlp(stated, layers[0].mlp.intermediate_size), normalise_router=normalised)
    return tuple(
        layer if layer.index in dense or (layer.index + 1) % step else replace(layer, mlp=mlp) for layer in layers
    )


FAMILIES = (
    Family(
        "mixtral",
        "Mixtral",
        ("MixtralForCausalLM",),
        ("llama",),
        window=Window.EVERY_LAYER,
        gguf_interleaved=True,
        experts=True,
        names=MIXTRAL_NAMES,
        adapt=_mixtral,
    ),
    Family(
        "qwen3_moe",
        "Qwen3-MoE",
        ("Qwen3MoeForCausalLM",),
        ("qwen3moe",),
        qk_norm=True,
        window=Window.UPPER_LAYERS,
        experts=True,
        understands=("moe_intermediate_size",),
        adapt=_qwen3_moe,
    ),
)
