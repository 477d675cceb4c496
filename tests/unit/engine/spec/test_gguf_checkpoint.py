"""From a GGUF header to a ModelSpec, and the models that are refused."""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.errors import UnsupportedFormat
from engine.spec import read_spec
from engine.spec.model_spec import AttentionKind, CheckpointFormat, RopeSpec

Write = Callable[..., Path]


def test_small_llama_is_described_completely(gguf_file: Write) -> None:
    spec = read_spec(gguf_file())
    assert (spec.name, spec.architecture, spec.format) == ("tiny", "llama", CheckpointFormat.GGUF)
    assert (spec.hidden_size, spec.vocab_size, spec.max_context_tokens, len(spec.layers)) == (32, 8, 64, 2)
    assert spec.tie_embeddings
    assert (spec.bos_token_id, spec.eos_token_ids) == (0, (1, 2))
    attention = spec.layers[1].attention
    assert (attention.kind, attention.num_heads, attention.num_kv_heads, attention.head_dim) == (
        AttentionKind.FULL,
        4,
        2,
        8,
    )
    assert attention.rope == RopeSpec(10000.0, 8)
    assert not attention.qkv_bias
    assert not spec.layers[0].mlp.bias
    assert spec.layers[0].mlp.intermediate_size == 64
    assert spec.source_dtype == "F32"
    assert spec.kv_bytes_per_token(2) == 2 * 2 * 2 * 2 * 8
    assert spec.weight_bytes == 4 * spec.num_parameters


def test_smollm_is_described_with_half_a_second_of_work_at_most(smollm_path: Path) -> None:
    began = time.process_time()
    spec = read_spec(smollm_path)
    assert time.process_time() - began < 0.5
    assert (spec.architecture, len(spec.layers), spec.vocab_size, spec.source_dtype) == ("llama", 30, 49152, "Q4_1")
    assert spec.num_parameters == 134_515_008
    assert spec.eos_token_ids == (2,)


def test_untied_head_biases_and_head_dim_are_seen_in_the_tensors(gguf_file: Write) -> None:
    tensors: dict[str, list[int]] = {"output.weight": [32, 8]}
    for i in range(2):
        tensors |= {f"blk.{i}.attn_{r}.weight": [32, n * 16] for r, n in (("q", 4), ("k", 2), ("v", 2))}
        tensors |= {f"blk.{i}.attn_{r}.bias": [n * 16] for r, n in (("q", 4), ("k", 2), ("v", 2))}
        tensors[f"blk.{i}.attn_output.weight"] = [64, 32]
        tensors[f"blk.{i}.attn_output.bias"] = [32]
    spec = read_spec(gguf_file(tensors=tensors, metadata={"llama.attention.key_length": 16}))
    attention = spec.layers[0].attention
    assert not spec.tie_embeddings
    assert (attention.head_dim, attention.scale, attention.qkv_bias, attention.o_bias) == (16, 0.25, True, True)


def test_rope_factors_in_the_file_and_scaling_keys_are_described(gguf_file: Write) -> None:
    factors = read_spec(gguf_file(tensors={"rope_freqs.weight": [4]}))
    assert factors.layers[0].attention.rope == RopeSpec(10000.0, 8, "factors")
    stated = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    linear = read_spec(gguf_file(metadata=stated))
    assert linear.layers[0].attention.rope == RopeSpec(10000.0, 8, "linear", (("factor", 4.0),))
    yarn = read_spec(gguf_file(metadata=stated | {"llama.rope.scaling.type": "yarn"}))
    rope = yarn.layers[0].attention.rope
    assert rope is not None
    assert (rope.scaling_kind, dict(rope.scaling)["original_max_tokens"]) == ("yarn", 64.0)


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 200])
def test_name_that_nobody_can_read_gives_way_to_the_file_name(name: str, gguf_file: Write) -> None:
    path = gguf_file(metadata={"general.name": name})
    path = path.rename(path.with_name("renamed.gguf"))
    assert read_spec(path).name == "renamed"


def test_value_stated_for_each_layer_is_taken_when_all_agree(gguf_file: Write) -> None:
    assert (
        read_spec(gguf_file(metadata={"llama.attention.head_count_kv": [2, 2]})).layers[0].attention.num_kv_heads == 2
    )
    with pytest.raises(UnsupportedFormat, match="head_count_kv"):
        read_spec(gguf_file(metadata={"llama.attention.head_count_kv": [2, 4]}))


LAYER_TENSORS = [
    *(f"attn_{part}.weight" for part in ("norm", "q", "k", "v", "output")),
    *(f"ffn_{part}.weight" for part in ("norm", "gate", "up", "down")),
]
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no-architecture": ({"metadata": {"general.architecture": None}}, "does not state general.architecture"),
    "other-architecture": ({"metadata": {"general.architecture": "mamba"}}, "'mamba', which is not supported"),
    "near-architecture": ({"metadata": {"general.architecture": "qwen4"}}, "nearest that works is qwen"),
    "no-layers": ({"metadata": {"llama.block_count": None}}, "does not state llama.block_count"),
    "layers-zero": ({"metadata": {"llama.block_count": 0}}, "llama.block_count = 0"),
    "layers-absurd": ({"metadata": {"llama.block_count": 4_000_000_000}}, "whole number from 1 to 1,024"),
    "layers-beyond-tensors": ({"metadata": {"llama.block_count": 3}}, r"lacks the tensor blk\.2\.attn_norm"),
    "layers-below-tensors": ({"metadata": {"llama.block_count": 1}}, "holds 9 tensors that the architecture"),
    "layers-a-text": ({"metadata": {"llama.block_count": "2"}}, "whole number"),
    "heads-not-divisible": ({"metadata": {"llama.attention.head_count_kv": 3}}, "divisor of the 4 heads"),
    "head-dim-odd": ({"metadata": {"llama.attention.key_length": 7, "llama.attention.value_length": 7}}, "even"),
    "value-dim-other": ({"metadata": {"llama.attention.value_length": 16}}, "value_length = 16"),
    "eps-nan": ({"metadata": {"llama.attention.layer_norm_rms_epsilon": float("nan")}}, "= nan; a number"),
    "theta-zero": ({"metadata": {"llama.rope.freq_base": 0.0}}, "freq_base"),
    "rope-partial": ({"metadata": {"llama.rope.dimension_count": 4}}, "dimension_count = 4"),
    "rope-unknown": ({"metadata": {"llama.rope.scaling.type": "longrope"}}, "one of none, linear, yarn"),
    "experts-stored-differently": (
        {
            "metadata": {
                "llama.expert_count": 2,
                "llama.expert_used_count": 1,
                "llama.block_count": 1,
            },
            "tensors": {f"blk.1.{name}": None for name in LAYER_TENSORS}
            | {f"blk.0.ffn_{name}.weight": None for name in ("gate", "up", "down")}
            | {
                "blk.0.ffn_gate_inp.weight": [32, 2],
                "blk.0.ffn_gate_exps.weight": [32, 64, 2],
                "blk.0.ffn_up_exps.weight": [32, 64, 2],
                "blk.0.ffn_down_exps.weight": [64, 32, 2],
            },
            "kinds": {"blk.0.ffn_up_exps.weight": 8},
        },
        "of layer 0 as F32 and Q8_0; one type",
    ),
    "experts-count-alone": ({"metadata": {"llama.expert_count": 8}}, "does not state llama.expert_used_count"),
    "key-not-understood": ({"metadata": {"llama.logit_scale": 0.5}}, r"llama\.logit_scale, which is not understood"),
    "window": ({"metadata": {"llama.attention.sliding_window": 16}}, "sliding_window = 16"),
    "eos-outside": ({"metadata": {"tokenizer.ggml.eos_token_id": 8}}, "token ids from 0 to 7"),
    "vocabulary-too-long": (
        {"metadata": {"tokenizer.ggml.tokens": list("abcdefghi")}},
        "9 tokens and an embedding of 8",
    ),
    "part-of-many": ({"metadata": {"split.count": 3, "split.no": 1}}, "part 2 of a model in 3 files"),
    "tensor-missing": (
        {"tensors": {"blk.1.ffn_up.weight": None}},
        r"lacks the tensor blk\.1\.ffn_up\.weight \[64, 32\]",
    ),
    "embedding-missing": ({"tensors": {"token_embd.weight": None}}, "no matrix token_embd"),
    "tensor-unknown": ({"tensors": {"blk.0.attn_sinks": [4]}}, r"does not have, blk\.0\.attn_sinks"),
    "shape-wrong": (
        {"tensors": {"blk.0.attn_k.weight": [32, 32]}},
        r"as \[32, 32\]; its configuration needs \[16, 32\]",
    ),
    "norm-not-plain": ({"kinds": {"output_norm.weight": 24}}, "stores output_norm.weight as I8"),
    "matrix-not-computable": ({"kinds": {"blk.0.attn_q.weight": 24}}, "attn_q.weight as I8"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_unsupported_model_is_refused_with_the_reason(case: str, gguf_file: Write) -> None:
    changes, message = REFUSED[case]
    with pytest.raises(UnsupportedFormat) as caught:
        read_spec(gguf_file(**changes))
    assert re.search(message, str(caught.value)), str(caught.value)
    assert caught.value.hint


def test_vocabulary_file_without_tensors_is_refused(raw_gguf: Write) -> None:
    path = raw_gguf([("general.architecture", struct.pack("<I", 8) + struct.pack("<Q", 5) + b"llama")])
    with pytest.raises(UnsupportedFormat, match="holds no tensors"):
        read_spec(path)
