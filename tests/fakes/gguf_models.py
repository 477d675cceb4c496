"""GGUF files of random transformers models, written as converters write them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch


def interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rotary rows as converters of the llama architecture store them: halves of a head pairwise."""
    return rows.reshape(heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


GGUF_NAMES = {
    "mlp.experts.gate_proj": "ffn_gate_exps",
    "mlp.experts.up_proj": "ffn_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps",
    "mlp.gate.": "ffn_gate_inp.",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}


NORMS_AFTER = {"post_attention_layernorm": "post_attention_norm", "post_feedforward_layernorm": "post_ffw_norm"}
OTHER_NAMES: dict[str, dict[str, str]] = {
    "gemma2": NORMS_AFTER | {"pre_feedforward_layernorm": "ffn_norm"},
    "gemma3": NORMS_AFTER | {"pre_feedforward_layernorm": "ffn_norm"},
    "olmo2": NORMS_AFTER,
    "phi3": {"self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"},
    "gpt-oss": {
        "mlp.router": "ffn_gate_inp",
        "self_attn.sinks": "attn_sinks.weight",
        "post_attention_layernorm": "post_attention_norm",
    },
    "deepseek2": {
        "self_attn.q_a_proj": "attn_q_a",
        "self_attn.q_a_layernorm": "attn_q_a_norm",
        "self_attn.q_b_proj": "attn_q_b",
        "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
        "self_attn.kv_a_layernorm": "attn_kv_a_norm",
        "self_attn.k_b_proj": "attn_k_b",
        "self_attn.v_b_proj": "attn_v_b",
        "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
        "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
        "mlp.shared_experts.up_proj": "ffn_up_shexp",
        "mlp.shared_experts.down_proj": "ffn_down_shexp",
    },
    "glm4": {
        "mlp.gate_up_proj": "ffn_up",
        "post_attention_layernorm": "ffn_norm",
        "post_self_attn_layernorm": "post_attention_norm",
        "post_mlp_layernorm": "post_ffw_norm",
    },
    "glm4moe": {
        "post_attention_layernorm": "post_attention_norm",
        "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
        "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
        "mlp.shared_experts.up_proj": "ffn_up_shexp",
        "mlp.shared_experts.down_proj": "ffn_down_shexp",
    },
}


def gguf_name(name: str, architecture: str) -> str:
    others = OTHER_NAMES.get(architecture, {})
    for theirs, ours in (others | {k: v for k, v in GGUF_NAMES.items() if k not in others}).items():
        name = name.replace(theirs, ours)
    return name.replace("model.layers.", "blk.")


def gpt_oss_experts(name: str, stored: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Views of what transformers keeps transposed, with gate and up in turns."""
    if not name.endswith("bias"):
        stored, name = stored.transpose(1, 2), f"{name}.weight"
    name = name.replace("_proj_bias", "_proj.bias")
    if "gate_up" in name:
        yield name.replace("gate_up", "gate"), stored[:, 0::2]
        yield name.replace("gate_up", "up"), stored[:, 1::2]
    else:
        yield name, stored


def stored_parameters(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters as GGUF has them: experts' gate and up are two stacks."""
    for name, parameter in model.named_parameters():
        if model.config.model_type == "gpt_oss" and "mlp.experts" in name:
            yield from gpt_oss_experts(name, parameter.data)
        elif name.endswith("kv_b_proj.weight"):
            both = parameter.data.view(model.config.num_attention_heads, -1, parameter.shape[1])
            keys, values = both.split([model.config.qk_nope_head_dim, model.config.v_head_dim], dim=1)
            yield name.replace("kv_b_proj", "k_b_proj"), keys.transpose(1, 2)
            yield name.replace("kv_b_proj", "v_b_proj"), values
        elif name.endswith("experts.gate_up_proj"):
            gate, up = parameter.data.chunk(2, dim=1)
            yield name.replace("gate_up_proj", "gate_proj.weight"), gate
            yield name.replace("gate_up_proj", "up_proj.weight"), up
        elif name.endswith("experts.down_proj"):
            yield f"{name}.weight", parameter.data
        else:
            yield name, parameter
    for name, buffer in model.named_buffers():
        if "correction" in name:
            yield name, buffer


OTHER_KEYS: dict[str, dict[str, Any]] = {
    "gemma2": {"attention.sliding_window": 9, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    "gemma3": {"attention.sliding_window": 9, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0},
    "granite": {"attention.scale": 0.3, "embedding_scale": 1.5, "residual_scale": 0.4, "logit_scale": 2.5},
    "phi3": {
        "rope.dimension_count": 16,
        "rope.scaling.original_context_length": 32,
        "rope.scaling.attn_factor": math.sqrt(1 + math.log(4) / math.log(32)),
    },
    "gpt-oss": {
        "attention.sliding_window": 9,
        "expert_feed_forward_length": 96,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 8.0,
        "rope.scaling.original_context_length": 32,
    },
    "deepseek2": {
        "attention.kv_lora_rank": 32,
        "attention.key_length_mla": 40,
        "attention.value_length_mla": 16,
        "rope.dimension_count": 8,
        "leading_dense_block_count": 1,
        "expert_shared_count": 2,
        "expert_weights_scale": 1.7,
    },
    "glm4": {"rope.dimension_count": 8},
    "glm4moe": {
        "rope.dimension_count": 8,
        "leading_dense_block_count": 1,
        "expert_shared_count": 1,
        "expert_weights_scale": 1.7,
        "expert_weights_norm": True,
        "expert_gating_func": 2,
        "nextn_predict_layers": 1,
    },
}


def write_gguf(path: Path, model: Any, architecture: str, matrix_type: gguf.GGMLQuantizationType) -> None:
    """Write a transformers model as converters do, and put what the quantised matrices decode to back into it."""
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers + (architecture == "glm4moe"))
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    latent = getattr(config, "kv_lora_rank", None)  # as seen by attention that reads the compressed rows
    writer.add_head_count_kv(1 if latent else config.num_key_value_heads)
    writer.add_key_length(latent + config.qk_rope_head_dim if latent else config.head_dim)
    writer.add_value_length(latent or config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    writer.add_rope_freq_base(rope["rope_theta"])
    more = getattr(config, "stated_besides", {})
    for key, value in (OTHER_KEYS.get(architecture, {}) | more).items():
        {float: writer.add_float32, int: writer.add_uint32, str: writer.add_string, bool: writer.add_bool}[type(value)](
            f"{architecture}.{key}", value
        )
    if rope["rope_type"] == "llama3":
        plain = config.rope_parameters["rope_theta"] ** -(np.arange(0, config.head_dim, 2) / config.head_dim)
        scaled = model.model.rotary_emb.inv_freq.numpy()
        writer.add_tensor("rope_freqs.weight", (plain / scaled).astype(np.float32))
    if rope["rope_type"] == "longrope":
        for length in ("long", "short"):
            divisors = np.array(rope[f"{length}_factor"], dtype=np.float32)
            writer.add_tensor(f"rope_factors_{length}.weight", divisors)
    if architecture == "glm4moe":  # what is there for speculation is not looked at
        writer.add_tensor(f"blk.{config.num_hidden_layers}.nextn.eh_proj.weight", np.zeros((4, 32), dtype=np.float32))
    count = getattr(config, "num_local_experts", None) or getattr(config, "n_routed_experts", None)
    if count:
        writer.add_expert_count(count)
        writer.add_expert_used_count(config.num_experts_per_tok)
    if hasattr(config, "moe_intermediate_size"):
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    for name, parameter in list(stored_parameters(model)):
        values = parameter.detach().numpy()
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2])
        permute = heads is not None and architecture in ("llama", "granite")
        matrix = values.ndim > 1 and not any(
            part in name for part in ("mlp.gate.", "router", "bias")
        )  # routers stay plain, as converters leave them
        stored_type = matrix_type if matrix else gguf.GGMLQuantizationType.F32
        packed = gguf.quantize(values, stored_type)
        with torch.no_grad():
            parameter.copy_(torch.from_numpy(gguf.dequantize(packed, stored_type).reshape(values.shape).copy()))
        stored = interleaved(packed, heads) if permute else packed
        if "norm" in name and architecture in ("gemma2", "gemma3"):
            stored = stored + 1  # converters store what the norm multiplies by
        writer.add_tensor(gguf_name(name, architecture), np.ascontiguousarray(stored), raw_dtype=stored_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
