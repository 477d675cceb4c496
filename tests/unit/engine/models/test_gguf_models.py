"""GGUF models: the real small one beside transformers reading the same file, and random ones written to files."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers

from engine.models import Model
from engine.spec import read_spec
from engine.text.loading import load_text

PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n",
    "Once upon a time, in a village by the sea,",
    "Water boils at",
    "List three primary colours:\n1.",
)
NEW_TOKENS = 64
NEW_TOKENS_SLOW = 3  # plain torch decodes every weight again each step
MEBIBYTE = 1 << 20


@pytest.fixture(scope="module")
def truth(smollm_path: Path) -> Any:
    """What transformers makes of the same file, in float32."""
    return transformers.AutoModelForCausalLM.from_pretrained(
        smollm_path.parent, gguf_file=smollm_path.name, dtype=torch.float32
    ).eval()


@pytest.fixture(scope="module")
def prompt_ids(smollm_path: Path) -> list[list[int]]:
    text = load_text(read_spec(smollm_path))
    return [text.encode(prompt) for prompt in PROMPTS]


def test_smollm_logits_and_greedy_tokens_match_transformers(
    smollm_path: Path,
    truth: Any,
    prompt_ids: list[list[int]],
    kernels: str,
    load: Callable[..., Model],
    harness: Callable[..., Any],
) -> None:
    model = load(smollm_path)
    slow = model.kernels["linear Q4_1"].startswith("reference")
    assert kernels == "preferred" or slow
    running = harness(model, num_pages=128)
    rows = running.run(prompt_ids, 5)
    written = [[int(found[-1].argmax())] for found in rows]
    for _ in range((NEW_TOKENS_SLOW if slow else NEW_TOKENS) - 1):
        logits = running.step({i: tokens[-1:] for i, tokens in enumerate(written)})
        for i, found in logits.items():
            written[i].append(int(found[-1].argmax()))
    for ids, tokens, found in zip(prompt_ids, written, rows, strict=True):
        with torch.no_grad():
            wanted = truth(torch.tensor([ids + tokens])).logits[0]
        torch.testing.assert_close(found, wanted[: len(ids)], atol=5e-4, rtol=1e-4)
        # each token is the truth's choice after the tokens before it, so the whole run is what it would have written
        assert tokens == wanted[len(ids) - 1 : -1].argmax(dim=-1).tolist()


MEMORY_SCRIPT = """
import resource, sys, torch
from engine.batch import ForwardBatch, GroupMeta
from engine.models import load_model
from engine.spec import read_spec
torch.ones(4, 4) @ torch.ones(4, 4)
peak_kib = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = peak_kib()
spec = read_spec(sys.argv[1])
seen = []
model = load_model(spec, "cpu", torch.float32, lambda done, total: seen.append((done, total)))
loaded = peak_kib()
attention = spec.layers[0].attention
views = [torch.zeros(2, 2, attention.num_kv_heads, 16, attention.head_dim) for _ in spec.layers]
one = torch.tensor([0])
pages = GroupMeta(torch.tensor([[1]], dtype=torch.int32), one + 1, one)
starts, contexts = torch.tensor([0, 1], dtype=torch.int32), torch.tensor([1], dtype=torch.int32)
model.forward(ForwardBatch(one + 1, one, starts, contexts, one, [pages], views, [0] * len(views), 1, 1))
assert seen == sorted(seen) and seen[-1][0] == seen[-1][1] == spec.weight_bytes, seen[-1]
print((loaded - before) << 10, (peak_kib() - before) << 10)
"""


def test_loading_and_running_smollm_stays_within_file_and_tiles(smollm_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MEMORY_SCRIPT, str(smollm_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    load_bytes, run_bytes = map(int, done.stdout.split())
    size = smollm_path.stat().st_size
    assert load_bytes < size + 32 * MEBIBYTE
    assert run_bytes < size + 96 * MEBIBYTE  # a whole float32 copy would be 538 MB


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
