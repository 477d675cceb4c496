"""What GGUF calls the values that config.json states, so that a family reads both with the same code."""

from __future__ import annotations

from engine.spec.fields import Fields

# config.json's name -> the key under the architecture's name
GGUF_NAMES: dict[str, str] = {
    "hidden_size": "embedding_length",
    "max_position_embeddings": "context_length",
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "rope_local_base_freq": "rope.freq_base_swa",
    "sliding_window_pattern": "attention.sliding_window_pattern",
}


def renamed(metadata: Fields, prefix: str) -> Fields:
    """The header's values under config.json's names; messages keep the header's."""
    values = {name: metadata.values.get(f"{prefix}.{key}") for name, key in GGUF_NAMES.items()}
    return Fields(values, metadata.source, {name: f"{prefix}.{key}" for name, key in GGUF_NAMES.items()})
