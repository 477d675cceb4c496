"""The model shapes that benchmarks run with random weights: the config.json and tensor names of well-known models.

A shape is written as a checkpoint folder whose safetensors file has a true header and no bytes behind it (a sparse
file), so that the ordinary reader decides what is supported. The bytes come from bench.random_weights.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

Config = dict[str, Any]

SHAPES: dict[str, Config] = {
    "llama-8b": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 128256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "max_position_embeddings": 131072,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": 128000,
        "eos_token_id": 128001,
    },
    "llama-1b": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "vocab_size": 128256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "max_position_embeddings": 131072,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "bos_token_id": 128000,
        "eos_token_id": 128001,
    },
    "qwen3-30b-a3b": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "vocab_size": 151936,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "max_position_embeddings": 40960,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": 151643,
        "eos_token_id": 151645,
        "sliding_window": None,
    },
    "gemma3-12b": {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_size": 3840,
        "intermediate_size": 15360,
        "num_hidden_layers": 48,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 256,
        "vocab_size": 262208,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0,
        "max_position_embeddings": 131072,
        "sliding_window": 1024,
        "sliding_window_pattern": 6,
        "query_pre_attn_scalar": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "bos_token_id": 2,
        "eos_token_id": 1,
        "pad_token_id": 0,
        "attention_bias": False,
        "layer_types": ["full_attention" if (i + 1) % 6 == 0 else "sliding_attention" for i in range(48)],
    },
}
SCALES = {"full": 1, "small": 4, "tiny": 16}  # widths and depth are divided by this


def scaled(config: Config, scale: str) -> Config:
    """A shape's smaller sister, for machines that cannot hold it: same family, same proportions, fewer of each."""
    divisor = SCALES[scale]
    if divisor == 1:
        return config
    small = dict(config)
    for key in ("hidden_size", "intermediate_size", "moe_intermediate_size", "num_experts", "vocab_size"):
        if key in small:
            small[key] = max(64, small[key] // divisor)
    small["num_hidden_layers"] = max(2, small["num_hidden_layers"] // divisor)
    small["num_key_value_heads"] = max(1, small["num_key_value_heads"] // divisor)
    groups = config["num_attention_heads"] // config["num_key_value_heads"]
    small["num_attention_heads"] = groups * small["num_key_value_heads"]
    small["head_dim"] = 64
    small["bos_token_id"], small["eos_token_id"] = 1, 2
    if "layer_types" in small:
        small["layer_types"] = small["layer_types"][-small["num_hidden_layers"] :]
    return small


def tensors_of(config: Config) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes as Hugging Face stores them."""
    hidden, head_dim = config["hidden_size"], config["head_dim"]
    q_rows, kv_rows = (config[key] * head_dim for key in ("num_attention_heads", "num_key_value_heads"))
    kind = config["model_type"]
    yield "model.embed_tokens.weight", (config["vocab_size"], hidden)
    for index in range(config["num_hidden_layers"]):
        layer = f"model.layers.{index}"
        norms = ["input_layernorm", "post_attention_layernorm"]
        if kind == "gemma3_text":
            norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
        for norm in norms:
            yield f"{layer}.{norm}.weight", (hidden,)
        for name, rows in (("q", q_rows), ("k", kv_rows), ("v", kv_rows)):
            yield f"{layer}.self_attn.{name}_proj.weight", (rows, hidden)
        yield f"{layer}.self_attn.o_proj.weight", (hidden, q_rows)
        if kind != "llama":
            yield f"{layer}.self_attn.q_norm.weight", (head_dim,)
            yield f"{layer}.self_attn.k_norm.weight", (head_dim,)
        parts, inner = [f"{layer}.mlp"], config["intermediate_size"]
        if kind == "qwen3_moe":
            yield f"{layer}.mlp.gate.weight", (config["num_experts"], hidden)
            parts = [f"{layer}.mlp.experts.{expert}" for expert in range(config["num_experts"])]
            inner = config["moe_intermediate_size"]
        for part in parts:
            yield f"{part}.gate_proj.weight", (inner, hidden)
            yield f"{part}.up_proj.weight", (inner, hidden)
            yield f"{part}.down_proj.weight", (hidden, inner)
    yield "model.norm.weight", (hidden,)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", (config["vocab_size"], hidden)


def write_shape(folder: Path, config: Config) -> None:
    """Write config.json and a sparse model.safetensors: the size of the model by ls, a few hundred kB on the disk."""
    (folder / "config.json").write_text(json.dumps(config))
    header: dict[str, object] = {}
    at = 0
    for name, shape in tensors_of(config):
        end = at + 2 * prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)
