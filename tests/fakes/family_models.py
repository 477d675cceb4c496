"""Small random transformers models of every family, saved as Hugging Face folders."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
import transformers

VOCABULARY = 101
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 72,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "initializer_range": 0.2,  # wide, so that attention is not uniform and a wrong mask shows
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def long_rope(original: int) -> dict[str, Any]:
    return {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "original_max_position_embeddings": original,
        "short_factor": [1.0, 1.5, 2.0, 2.5],
        "long_factor": [2.0, 5.0, 9.0, 20.0],
    }


YARN_ROPE = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
EXPERTS = {"num_local_experts": 6, "num_experts_per_tok": 3}
GEMMA = {"head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": 9}
GROUPED = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 40,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 1.7,
}
GPT_OSS = EXPERTS | {
    "head_dim": 16,
    "num_hidden_layers": 4,
    "sliding_window": 9,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
LATENT = GROUPED | {
    "num_key_value_heads": 6,
    "q_lora_rank": 20,
    "kv_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 10,
}
HALF_ROTARY = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama-tied": ("Llama", {"tie_word_embeddings": True}),
    "llama-bias": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-head-dim": ("Llama", {"head_dim": 16}),
    "llama-one-kv-head": ("Llama", {"num_key_value_heads": 1}),
    "llama-no-gqa": ("Llama", {"num_key_value_heads": 6}),
    "llama-rope-llama3": ("Llama", {"rope_parameters": LLAMA3_ROPE}),
    "llama-rope-linear": (
        "Llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0}},
    ),
    "llama-rope-yarn": ("Llama", {"rope_parameters": YARN_ROPE}),
    "mistral-window": ("Mistral", {"sliding_window": 9}),
    "mistral-full": ("Mistral", {"sliding_window": None}),
    "qwen2": ("Qwen2", {}),
    "qwen2-tied": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen2-window": ("Qwen2", {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "qwen3-bias": ("Qwen3", {"head_dim": 8, "attention_bias": True}),
    "mixtral": ("Mixtral", EXPERTS),
    "mixtral-window": ("Mixtral", EXPERTS | {"sliding_window": 9}),
    "qwen3_moe": ("Qwen3Moe", EXPERTS | {"head_dim": 16, "moe_intermediate_size": 40, "norm_topk_prob": True}),
    "qwen3_moe-dense-layers": (
        "Qwen3Moe",
        EXPERTS | {"head_dim": 8, "moe_intermediate_size": 40, "mlp_only_layers": [1]},
    ),
    "gemma2": ("Gemma2", GEMMA | {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}),
    "gemma2-uncapped": (
        "Gemma2",
        GEMMA | {"attn_logit_softcapping": None, "final_logit_softcapping": None},
    ),
    "gemma3_text": ("Gemma3Text", GEMMA | {"num_hidden_layers": 7}),
    "gemma3_text-linear": (
        "Gemma3Text",
        GEMMA
        | {
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
    "olmo2": ("Olmo2", {}),
    "olmo3": ("Olmo3", {"num_hidden_layers": 4, "sliding_window": 9}),
    "granite": (
        "Granite",
        {
            "attention_multiplier": 0.3,
            "embedding_multiplier": 1.5,
            "residual_multiplier": 0.4,
            "logits_scaling": 2.5,
        },
    ),
    "phi3": ("Phi3", {"sliding_window": 9}),
    "phi3-partial": ("Phi3", {"hidden_size": 96} | HALF_ROTARY),
    "glm4": ("Glm4", {"head_dim": 16, "attention_bias": True} | HALF_ROTARY),
    "glm4-no-bias": ("Glm4", {"head_dim": 8, "attention_bias": False} | HALF_ROTARY),
    "glm4_moe": ("Glm4Moe", GROUPED | {"head_dim": 16, "attention_bias": True, "use_qk_norm": True}),
    "gpt_oss": ("GptOss", GPT_OSS),
    "gpt_oss-yarn": (
        "GptOss",
        GPT_OSS | {"rope_parameters": YARN_ROPE | {"factor": 32.0, "beta_fast": 32.0, "truncate": False}},
    ),
    "deepseek_v2": ("DeepseekV2", LATENT | {"n_group": None, "topk_group": None, "topk_method": "greedy"}),
    "deepseek_v2-groups": ("DeepseekV2", LATENT | {"topk_method": "group_limited_greedy", "q_lora_rank": None}),
    "deepseek_v3": ("DeepseekV3", LATENT),
    "deepseek_v3-yarn": (
        "DeepseekV3",
        LATENT | {"q_lora_rank": None, "rope_parameters": YARN_ROPE | {"mscale": 1.0, "mscale_all_dim": 0.7}},
    ),
    "glm4_moe-plain": ("Glm4Moe", GROUPED | {"head_dim": 16, "n_group": 1, "topk_group": 1, "norm_topk_prob": False}),
}


def prompts() -> list[list[int]]:
    """Ragged lengths: around page and chunk borders, and one of a single token."""
    draw = random.Random(5)
    return [[draw.randrange(VOCABULARY) for _ in range(n)] for n in (1, 37, 16, 70)]


def saved_model(name: str, folder: Path) -> Any:
    """A random transformers model, saved into folder."""
    return saved_case(*CASES[name], folder)


def saved_case(family: str, changes: dict[str, Any], folder: Path) -> Any:
    config = getattr(transformers, f"{family}Config")(**(SIZES | changes), attn_implementation="eager")
    torch.manual_seed(11)
    model = getattr(transformers, f"{family.removesuffix('Text')}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if any(part in parameter_name for part in ("norm", "bias", "sinks")):
                parameter.add_(torch.randn_like(parameter) * 0.3)  # norms are born as ones, biases as zeros
        for buffer_name, buffer in model.named_buffers():
            if "correction" in buffer_name:
                buffer.add_(torch.randn_like(buffer) * 0.3)
    model.save_pretrained(folder)
    return model


def true_logits(model: Any, prompt: list[int]) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(torch.tensor([prompt])).logits[0].float()
    return logits


def behind_best(model: Any, prompt: list[int], tokens: list[int]) -> torch.Tensor:
    """How far each token written stands behind the model's best there, of the logits' spread. Shapes: -> [tokens]"""
    logits = true_logits(model, prompt + tokens)[len(prompt) - 1 : -1]
    chosen = logits.gather(1, torch.tensor(tokens).unsqueeze(1)).squeeze(1)
    return (logits.amax(dim=1) - chosen) / logits.std(dim=1)
