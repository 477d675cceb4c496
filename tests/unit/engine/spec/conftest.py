"""Small checkpoints written byte by byte, so that every byte can be made wrong."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

UINT32, FLOAT32, BOOL, STRING, ARRAY, UINT64 = 4, 6, 7, 8, 9, 10


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def typed(value: Any) -> bytes:
    """A metadata value: type, then bytes. A bytes object is put in as it is."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, bool):
        return struct.pack("<IB", BOOL, value)
    if isinstance(value, int):
        return struct.pack("<II", UINT32, value)
    if isinstance(value, float):
        return struct.pack("<If", FLOAT32, value)
    if isinstance(value, str):
        return struct.pack("<I", STRING) + text(value)
    assert isinstance(value, list)
    if value and isinstance(value[0], str):
        return struct.pack("<IIQ", ARRAY, STRING, len(value)) + b"".join(text(v) for v in value)
    return struct.pack("<IIQ", ARRAY, UINT32, len(value)) + struct.pack(f"<{len(value)}I", *value)


def tensor_entry(name: str | bytes, dimensions: list[int], kind: int, offset: int) -> bytes:
    head = text(name) + struct.pack("<I", len(dimensions)) + struct.pack(f"<{len(dimensions)}Q", *dimensions)
    return head + struct.pack("<IQ", kind, offset)


def gguf_bytes(
    metadata: list[tuple[str, Any]],
    tensors: list[bytes],
    data_bytes: int,
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    tensor_count: int | None = None,
    key_count: int | None = None,
    alignment: int = 32,
) -> bytes:
    counts = (len(tensors) if tensor_count is None else tensor_count, len(metadata) if key_count is None else key_count)
    header = magic + struct.pack("<IQQ", version, *counts)
    header += b"".join(text(key) + typed(value) for key, value in metadata) + b"".join(tensors)
    return header + bytes(-len(header) % alignment) + bytes(data_bytes)


LLAMA_METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "general.name": "tiny",
    "llama.context_length": 64,
    "llama.embedding_length": 32,
    "llama.block_count": 2,
    "llama.feed_forward_length": 64,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 10000.0,
    "tokenizer.ggml.tokens": ["a", "b", "c"],
    "tokenizer.ggml.bos_token_id": 0,
    "tokenizer.ggml.eos_token_id": 1,
    "tokenizer.ggml.eot_token_id": 2,
}


def llama_tensors() -> dict[str, list[int]]:
    """Names and GGUF dimensions, innermost first."""
    found = {"token_embd.weight": [32, 8], "output_norm.weight": [32]}
    for i in range(2):
        found |= {
            f"blk.{i}.attn_norm.weight": [32],
            f"blk.{i}.attn_q.weight": [32, 32],
            f"blk.{i}.attn_k.weight": [32, 16],
            f"blk.{i}.attn_v.weight": [32, 16],
            f"blk.{i}.attn_output.weight": [32, 32],
            f"blk.{i}.ffn_norm.weight": [32],
            f"blk.{i}.ffn_gate.weight": [32, 64],
            f"blk.{i}.ffn_up.weight": [32, 64],
            f"blk.{i}.ffn_down.weight": [64, 32],
        }
    return found


def llama_gguf(
    metadata: dict[str, Any] | None = None,
    tensors: dict[str, list[int] | None] | None = None,
    kinds: dict[str, int] | None = None,
) -> bytes:
    """A whole small model in F32; changes replace metadata, None takes an entry out."""
    stated = {k: v for k, v in (LLAMA_METADATA | (metadata or {})).items() if v is not None}
    shapes = {k: v for k, v in (llama_tensors() | (tensors or {})).items() if v is not None}
    entries, offset = [], 0
    for name, dimensions in shapes.items():
        entries.append(tensor_entry(name, dimensions, (kinds or {}).get(name, 0), offset))
        size = 4
        for extent in dimensions:
            size *= extent
        offset += -(-size // 32) * 32
    return gguf_bytes(list(stated.items()), entries, offset)


@pytest.fixture
def gguf_file(tmp_path: Path) -> Callable[..., Path]:
    """Write a small llama model with changes, see llama_gguf."""

    def write(**changes: Any) -> Path:
        path = tmp_path / "tiny.gguf"
        path.write_bytes(llama_gguf(**changes))
        return path

    return write


@pytest.fixture
def raw_gguf(tmp_path: Path) -> Callable[..., Path]:
    """Write a header from its parts, see gguf_bytes; tensors are argument lists of tensor_entry."""

    def write(
        metadata: list[tuple[str, Any]] | None = None,
        tensors: list[tuple[str | bytes, list[int], int, int]] | None = None,
        data_bytes: int = 0,
        **parts: Any,
    ) -> Path:
        path = tmp_path / "raw.gguf"
        entries = [tensor_entry(*t) for t in tensors or []]
        path.write_bytes(gguf_bytes(metadata or [], entries, data_bytes, **parts))
        return path

    return write


HF_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 8,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "eos_token_id": 1,
    "bos_token_id": 0,
    "hidden_act": "silu",
}


def hf_tensors() -> dict[str, list[int]]:
    return {
        "model.embed_tokens.weight": [8, 32],
        "model.norm.weight": [32],
        "lm_head.weight": [8, 32],
        "model.layers.0.input_layernorm.weight": [32],
        "model.layers.0.post_attention_layernorm.weight": [32],
        "model.layers.0.self_attn.q_proj.weight": [32, 32],
        "model.layers.0.self_attn.k_proj.weight": [16, 32],
        "model.layers.0.self_attn.v_proj.weight": [16, 32],
        "model.layers.0.self_attn.o_proj.weight": [32, 32],
        "model.layers.0.mlp.gate_proj.weight": [64, 32],
        "model.layers.0.mlp.up_proj.weight": [64, 32],
        "model.layers.0.mlp.down_proj.weight": [32, 64],
    }


def safetensors_bytes(shapes: dict[str, list[int]], dtype: str = "BF16", item_bytes: int = 2) -> bytes:
    header, at = {}, 0
    for name, shape in shapes.items():
        size = item_bytes
        for extent in shape:
            size *= extent
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    raw = json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + bytes(at)


@pytest.fixture
def hf_folder(tmp_path: Path) -> Callable[..., Path]:
    """A small Hugging Face folder; None takes a config entry or a tensor out."""

    def write(
        config: dict[str, Any] | None = None,
        tensors: dict[str, list[int] | None] | None = None,
        dtype: str = "BF16",
        item_bytes: int = 2,
    ) -> Path:
        folder = tmp_path / "tiny"
        folder.mkdir(exist_ok=True)
        stated = {k: v for k, v in (HF_CONFIG | (config or {})).items() if v is not None}
        shapes = {k: v for k, v in (hf_tensors() | (tensors or {})).items() if v is not None}
        (folder / "config.json").write_text(json.dumps(stated))
        (folder / "model.safetensors").write_bytes(safetensors_bytes(shapes, dtype, item_bytes))
        return folder

    return write
