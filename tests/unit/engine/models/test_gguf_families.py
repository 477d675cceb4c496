"""Every family that GGUF has, written as converters do: the logits of the numbers that its blocks stand for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
import transformers

from engine.models import Model
from engine.spec.families import FAMILIES
from tests.fakes.gguf_models import write_gguf

SIZES: dict[str, Any] = {
    "vocab_size": 99,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
    "pad_token_id": 0,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LATENT = {
    "head_dim": 8,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.7,
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 32,
    "v_head_dim": 16,
}
HALF_ROTARY = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}}
CASES: list[tuple[str, str, str, dict[str, Any]]] = [
    ("Llama", "llama", "F32", {}),
    ("Llama", "llama", "F16", {"tie_word_embeddings": True}),
    ("Llama", "llama", "BF16", {}),
    ("Llama", "llama", "Q8_0", {"attention_bias": True, "mlp_bias": True}),
    ("Llama", "llama", "Q4_0", {"rope_parameters": LLAMA3_ROPE}),
    ("Llama", "llama", "Q5_1", {"head_dim": 32}),
    ("Qwen2", "qwen2", "Q4_1", {}),
    ("Qwen3", "qwen3", "Q5_0", {"head_dim": 32}),
    ("Mixtral", "llama", "Q8_0", {"num_local_experts": 4}),
    (
        "Qwen3Moe",
        "qwen3moe",
        "Q4_0",
        {"num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "norm_topk_prob": True},
    ),
    (
        "DeepseekV2",
        "deepseek2",
        "Q8_0",
        LATENT | {"topk_method": "greedy", "q_lora_rank": None, "stated_besides": {}},
    ),
    (
        "DeepseekV3",
        "deepseek2",
        "Q8_0",
        LATENT
        | {
            "q_lora_rank": 32,
            "n_group": 2,
            "topk_group": 1,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 32,
                "mscale": 0.7,
                "mscale_all_dim": 0.7,
            },
            "stated_besides": {
                "attention.q_lora_rank": 32,
                "expert_gating_func": 2,
                "expert_weights_norm": True,
                "expert_group_count": 2,
                "expert_group_used_count": 1,
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": 4.0,
                "rope.scaling.original_context_length": 32,
                "rope.scaling.yarn_log_multiplier": 0.07,
            },
        },
    ),
    *(
        (
            "GptOss",
            "gpt-oss",
            kind,
            {
                "num_local_experts": 4,
                "num_experts_per_tok": 2,
                "sliding_window": 9,
                "rope_parameters": {
                    "rope_type": "yarn",
                    "rope_theta": 10000.0,
                    "factor": 8.0,
                    "original_max_position_embeddings": 32,
                    "truncate": False,
                },
            },
        )
        for kind in ("MXFP4", "Q8_0")
    ),
    (
        "Granite",
        "granite",
        "Q5_0",
        {
            "attention_multiplier": 0.3,
            "embedding_multiplier": 1.5,
            "residual_multiplier": 0.4,
            "logits_scaling": 2.5,
        },
    ),
    ("Olmo2", "olmo2", "Q4_0", {}),
    (
        "Phi3",
        "phi3",
        "Q8_0",
        {
            "original_max_position_embeddings": 32,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "original_max_position_embeddings": 32,
                "short_factor": [1.0] * 8,
                "long_factor": [1.5, 2.0, 3.0, 4.0, 5.0, 7.0, 9.0, 12.0],
            },
        },
    ),
    ("Glm4", "glm4", "Q8_0", {"attention_bias": True} | HALF_ROTARY),
    (
        "Glm4Moe",
        "glm4moe",
        "F16",
        {
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "first_k_dense_replace": 1,
            "n_group": 1,
            "topk_group": 1,
            "routed_scaling_factor": 1.7,
            "use_qk_norm": True,
        }
        | HALF_ROTARY,
    ),
    (
        "Gemma2",
        "gemma2",
        "F16",
        {
            "query_pre_attn_scalar": 16,
            "sliding_window": 9,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
        },
    ),
    (
        "Gemma3Text",
        "gemma3",
        "Q8_0",
        {
            "query_pre_attn_scalar": 16,
            "sliding_window": 9,
            "num_hidden_layers": 6,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
]


@pytest.mark.parametrize(("family", "architecture", "kind", "changes"), CASES)
def test_written_gguf_gives_the_logits_of_its_decoded_weights(
    family: str,
    architecture: str,
    kind: str,
    changes: dict[str, Any],
    tmp_path: Path,
    load: Callable[..., Model],
    harness: Callable[..., Any],
) -> None:
    config = getattr(transformers, f"{family}Config")(**(SIZES | changes), attn_implementation="eager")
    if family.startswith("Gemma3"):
        assert config.layer_types[:6] == ["sliding_attention"] * 5 + ["full_attention"]
    if getattr(config, "head_dim", None) is None:
        config.head_dim = config.hidden_size // config.num_attention_heads
    torch.manual_seed(3)
    model = getattr(transformers, f"{family.removesuffix('Text')}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if any(part in name for part in ("norm", "bias", "sinks")):
                parameter.add_(torch.randn_like(parameter) * 0.3)
        for name, buffer in model.named_buffers():
            if "correction" in name:
                buffer.add_(torch.randn_like(buffer) * 0.3)
    path = tmp_path / "model.gguf"
    write_gguf(path, model, architecture, gguf.GGMLQuantizationType[kind])
    prompt = torch.randint(0, 99, (50,), generator=torch.Generator().manual_seed(1)).tolist()
    with torch.no_grad():
        wanted = model(torch.tensor([prompt])).logits[0]
    found = harness(load(path)).run([prompt], 9)[0]
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)


def test_every_architecture_that_gguf_has_is_among_the_cases() -> None:
    assert {case[1] for case in CASES} == {name for family in FAMILIES for name in family.gguf_architectures}
