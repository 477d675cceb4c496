"""What checkpoints of either format call their tensors."""

from __future__ import annotations

from collections.abc import Mapping

from engine.spec.model_spec import CheckpointFormat

# role -> (name in a GGUF file, name in a Hugging Face folder); layer roles follow the layer's prefix. A name with a
# star is of one expert, any other one of all of them stacked. A family's own names come first.
MODEL_NAMES: dict[str, tuple[str, str]] = {
    "embed": ("token_embd.weight", "model.embed_tokens.weight"),
    "final_norm": ("output_norm.weight", "model.norm.weight"),
    "lm_head": ("output.weight", "lm_head.weight"),
    "rope_factors": ("rope_freqs.weight", ""),
    "rope_long": ("rope_factors_long.weight", ""),
    "rope_short": ("rope_factors_short.weight", ""),
}
LAYER_NAMES: dict[str, tuple[str, str]] = {
    "attn_norm": ("attn_norm.weight", "input_layernorm.weight"),
    "attn_q": ("attn_q.weight", "self_attn.q_proj.weight"),
    "attn_k": ("attn_k.weight", "self_attn.k_proj.weight"),
    "attn_v": ("attn_v.weight", "self_attn.v_proj.weight"),
    "attn_o": ("attn_output.weight", "self_attn.o_proj.weight"),
    "attn_q_bias": ("attn_q.bias", "self_attn.q_proj.bias"),
    "attn_k_bias": ("attn_k.bias", "self_attn.k_proj.bias"),
    "attn_v_bias": ("attn_v.bias", "self_attn.v_proj.bias"),
    "attn_o_bias": ("attn_output.bias", "self_attn.o_proj.bias"),
    "attn_q_norm": ("attn_q_norm.weight", "self_attn.q_norm.weight"),
    "attn_k_norm": ("attn_k_norm.weight", "self_attn.k_norm.weight"),
    "mlp_norm": ("ffn_norm.weight", "post_attention_layernorm.weight"),
    "mlp_gate": ("ffn_gate.weight", "mlp.gate_proj.weight"),
    "mlp_up": ("ffn_up.weight", "mlp.up_proj.weight"),
    "mlp_down": ("ffn_down.weight", "mlp.down_proj.weight"),
    "mlp_gate_bias": ("ffn_gate.bias", "mlp.gate_proj.bias"),
    "mlp_up_bias": ("ffn_up.bias", "mlp.up_proj.bias"),
    "mlp_down_bias": ("ffn_down.bias", "mlp.down_proj.bias"),
    "attn_post_norm": ("post_attention_norm.weight", "post_attention_layernorm.weight"),
    "mlp_post_norm": ("post_ffw_norm.weight", "post_feedforward_layernorm.weight"),
    "attn_qkv": ("attn_qkv.weight", "self_attn.qkv_proj.weight"),
    "mlp_gate_up": ("ffn_up.weight", "mlp.gate_up_proj.weight"),
    "router": ("ffn_gate_inp.weight", "mlp.gate.weight"),
    "router_correction": ("exp_probs_b.bias", "mlp.gate.e_score_correction_bias"),
    "experts_gate": ("ffn_gate_exps.weight", "mlp.experts.*.gate_proj.weight"),
    "experts_up": ("ffn_up_exps.weight", "mlp.experts.*.up_proj.weight"),
    "experts_down": ("ffn_down_exps.weight", "mlp.experts.*.down_proj.weight"),
    "router_bias": ("ffn_gate_inp.bias", "mlp.gate.bias"),
    "experts_gate_bias": ("ffn_gate_exps.bias", ""),
    "experts_up_bias": ("ffn_up_exps.bias", ""),
    "experts_gate_up": ("", "mlp.experts.gate_up_proj"),
    "experts_gate_up_blocks": ("", "mlp.experts.gate_up_proj_blocks"),
    "experts_gate_up_scales": ("", "mlp.experts.gate_up_proj_scales"),
    "experts_gate_up_bias": ("", "mlp.experts.gate_up_proj_bias"),
    "experts_down_stack": ("", "mlp.experts.down_proj"),
    "experts_down_blocks": ("", "mlp.experts.down_proj_blocks"),
    "experts_down_scales": ("", "mlp.experts.down_proj_scales"),
    "experts_down_bias": ("ffn_down_exps.bias", "mlp.experts.down_proj_bias"),
    "attn_q_a": ("attn_q_a.weight", "self_attn.q_a_proj.weight"),
    "attn_q_a_norm": ("attn_q_a_norm.weight", "self_attn.q_a_layernorm.weight"),
    "attn_q_b": ("attn_q_b.weight", "self_attn.q_b_proj.weight"),
    "attn_kv_a": ("attn_kv_a_mqa.weight", "self_attn.kv_a_proj_with_mqa.weight"),
    "attn_kv_a_norm": ("attn_kv_a_norm.weight", "self_attn.kv_a_layernorm.weight"),
    "attn_kv_b": ("", "self_attn.kv_b_proj.weight"),
    "attn_k_b": ("attn_k_b.weight", ""),
    "attn_v_b": ("attn_v_b.weight", ""),
    "attn_sinks": ("attn_sinks.weight", "self_attn.sinks"),
    "shared_gate": ("ffn_gate_shexp.weight", "mlp.shared_experts.gate_proj.weight"),
    "shared_up": ("ffn_up_shexp.weight", "mlp.shared_experts.up_proj.weight"),
    "shared_down": ("ffn_down_shexp.weight", "mlp.shared_experts.down_proj.weight"),
}


def stored_name(
    stored_as: CheckpointFormat, role: str, layer: int | None = None, names: Mapping[str, tuple[str, str]] | None = None
) -> str:
    """names: those that a family has for itself"""
    column = 0 if stored_as is CheckpointFormat.GGUF else 1
    found = (names or {}).get(role)
    if layer is None:
        return (found or MODEL_NAMES[role])[column]
    prefix = ("blk.", "model.layers.")[column]
    return f"{prefix}{layer}.{(found or LAYER_NAMES[role])[column]}"
