"""What GGUF calls the values that config.json states, so that a family reads both with the same code."""

from __future__ import annotations

from collections.abc import Collection

from engine.spec.fields import Fields

# config.json's name -> the key under the architecture's name
GGUF_NAMES: dict[str, str] = {
    "hidden_size": "embedding_length",
    "max_position_embeddings": "context_length",
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "n_shared_experts": "expert_shared_count",
    "first_k_dense_replace": "leading_dense_block_count",
    "norm_topk_prob": "expert_weights_norm",
    "routed_scaling_factor": "expert_weights_scale",
    "n_group": "expert_group_count",
    "topk_group": "expert_group_used_count",
    "scoring_func": "expert_gating_func",
    "kv_lora_rank": "attention.kv_lora_rank",
    "q_lora_rank": "attention.q_lora_rank",
    "qk_head_dim": "attention.key_length_mla",
    "v_head_dim": "attention.value_length_mla",
    "qk_rope_head_dim": "rope.dimension_count",
    "yarn_log_multiplier": "rope.scaling.yarn_log_multiplier",
    "attention_multiplier": "attention.scale",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "rope_local_base_freq": "rope.freq_base_swa",
    "sliding_window_pattern": "attention.sliding_window_pattern",
}


def renamed(metadata: Fields, prefix: str, tensors: Collection[str]) -> Fields:
    """The header's values under config.json's names, and what its tensors tell; messages keep the header's names."""
    values = {name: metadata.values.get(f"{prefix}.{key}") for name, key in GGUF_NAMES.items()}
    values["use_qk_norm"] = "blk.0.attn_q_norm.weight" in tensors
    values["router_correction"] = any(name.endswith(".exp_probs_b.bias") for name in tensors)
    return Fields(values, metadata.source, {name: f"{prefix}.{key}" for name, key in GGUF_NAMES.items()})
