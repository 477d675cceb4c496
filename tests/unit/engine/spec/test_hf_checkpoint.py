"""From a Hugging Face folder to a ModelSpec, and the folders that are refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.errors import ConfigError, NotFound, UnsupportedFormat
from engine.spec import read_spec
from engine.spec.model_spec import AttentionKind, CheckpointFormat, RopeSpec

Write = Callable[..., Path]


def test_small_llama_folder_is_described_completely(hf_folder: Write) -> None:
    folder = hf_folder()
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 5]}))
    spec = read_spec(folder)
    assert (spec.name, spec.architecture, spec.format) == ("tiny", "llama", CheckpointFormat.HF)
    assert (spec.hidden_size, spec.vocab_size, spec.max_context_tokens, len(spec.layers)) == (32, 8, 64, 1)
    assert (spec.bos_token_id, spec.eos_token_ids) == (0, (1, 5))
    assert spec.layers[0].attention.rope == RopeSpec(10000.0, 8)
    assert (spec.source_dtype, spec.weight_bytes) == ("BF16", 2 * spec.num_parameters)
    assert not spec.tie_embeddings
    assert spec.files == (str(folder / "model.safetensors"),)


def test_older_and_newer_rope_keys_mean_the_same(hf_folder: Write) -> None:
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
    older = read_spec(hf_folder({"rope_theta": 5e5, "rope_scaling": scaling | {"rope_type": "llama3"}}))
    newer = read_spec(hf_folder({"rope_parameters": scaling | {"rope_type": "llama3", "rope_theta": 5e5}}))
    rope = older.layers[0].attention.rope
    assert rope == newer.layers[0].attention.rope
    assert rope is not None
    assert (rope.theta, rope.scaling_kind, dict(rope.scaling)) == (
        5e5,
        "llama3",
        {"factor": 8.0, "original_max_tokens": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    )
    eldest = read_spec(hf_folder({"rope_scaling": {"type": "linear", "factor": 2}}))
    assert eldest.layers[0].attention.rope == RopeSpec(10000.0, 8, "linear", (("factor", 2.0),))


def test_windows_follow_the_family(hf_folder: Write) -> None:
    mistral = read_spec(hf_folder({"architectures": ["MistralForCausalLM"], "sliding_window": 16}))
    assert mistral.layers[0].attention.kind is AttentionKind.SLIDING
    assert mistral.layers[0].attention.window_tokens == 16
    llama = read_spec(hf_folder({"sliding_window": None}))
    assert llama.layers[0].attention.window_tokens is None


def test_folder_without_architectures_goes_by_model_type(hf_folder: Write) -> None:
    assert read_spec(hf_folder({"architectures": None})).architecture == "llama"


def test_derived_tensor_of_old_exporters_is_let_pass(hf_folder: Write) -> None:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    assert name in {t.name for t in read_spec(hf_folder(tensors={name: [4]})).tensors}


def test_tied_model_may_store_its_head_or_not(hf_folder: Write) -> None:
    assert read_spec(hf_folder({"tie_word_embeddings": True})).tie_embeddings
    assert read_spec(hf_folder({"tie_word_embeddings": True}, {"lm_head.weight": None})).tie_embeddings


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "architecture": ({"config": {"architectures": ["LlamaForTokenTagging"]}}, "nearest that works is LlamaForCausalLM"),
    "architecture-strange": ({"config": {"architectures": ["X"]}}, "supported are"),
    "architectures-not-list": ({"config": {"architectures": "LlamaForCausalLM"}}, "a list of texts"),
    "quantised": ({"config": {"quantization_config": {"quant_method": "gptq"}}}, "quantization_config"),
    "activation": ({"config": {"hidden_act": "gelu"}}, "hidden_act = 'gelu'"),
    "rope-unknown": ({"config": {"rope_scaling": {"type": "dynamic", "factor": 2}}}, "type = 'dynamic'"),
    "rope-partial": ({"config": {"rope_scaling": {"partial_rotary_factor": 0.5}}}, "partial_rotary_factor = 0.5"),
    "rope-no-factor": ({"config": {"rope_scaling": {"type": "linear"}}}, "does not state factor"),
    "hidden-bool": ({"config": {"hidden_size": True}}, "hidden_size = True"),
    "hidden-absurd": ({"config": {"hidden_size": 1 << 40}}, "hidden_size"),
    "heads-none": ({"config": {"num_attention_heads": 0}}, "num_attention_heads = 0"),
    "eps-text": ({"config": {"rms_norm_eps": "small"}}, "rms_norm_eps = 'small'"),
    "eos-negative": ({"config": {"eos_token_id": -1}}, "token ids from 0 to 7"),
    "tie-number": ({"config": {"tie_word_embeddings": 1}}, "true or false"),
    "layer-types": (
        {"config": {"architectures": ["MistralForCausalLM"], "sliding_window": 8, "layer_types": ["chunked"]}},
        "layer_types",
    ),
    "tensor-missing": ({"tensors": {"model.norm.weight": None}}, r"lacks the tensor model\.norm\.weight \[32\]"),
    "head-missing": ({"tensors": {"lm_head.weight": None}}, r"lacks the tensor lm_head\.weight"),
    "bias-unannounced": ({"tensors": {"model.layers.0.self_attn.q_proj.bias": [32]}}, "does not have"),
    "stored-as-fp8": ({"dtype": "F8_E4M3", "item_bytes": 1}, "as F8_E4M3; F32, F16, BF16"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_unsupported_folder_is_refused_with_the_reason(case: str, hf_folder: Write) -> None:
    changes, message = REFUSED[case]
    with pytest.raises(UnsupportedFormat) as caught:
        read_spec(hf_folder(**changes))
    assert re.search(message, str(caught.value)), str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"[" * 100_000, b"\xff", b'{"a": 1' + b"0" * 5000 + b"}"])
def test_damaged_config_json_is_refused(content: bytes, hf_folder: Write) -> None:
    folder = hf_folder()
    (folder / "config.json").write_bytes(content)
    with pytest.raises(UnsupportedFormat, match=r"config\.json"):
        read_spec(folder)


def test_folder_with_pickles_alone_is_refused_saying_why(hf_folder: Write) -> None:
    folder = hf_folder()
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UnsupportedFormat, match="never opened"):
        read_spec(folder)


def test_folder_with_gguf_names_the_file_to_import(hf_folder: Write) -> None:
    folder = hf_folder()
    (folder / "model.safetensors").rename(folder / "model.gguf")
    with pytest.raises(UnsupportedFormat, match=r"Import the file itself: .*model\.gguf"):
        read_spec(folder)


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/x.safetensors", "a/b.safetensors", "weights.bin"])
def test_index_naming_files_elsewhere_is_refused(name: str, hf_folder: Write) -> None:
    folder = hf_folder()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"lm_head.weight": name}}))
    with pytest.raises(UnsupportedFormat, match="not a safetensors file beside it"):
        read_spec(folder)


def test_index_with_missing_shard_is_refused(hf_folder: Write) -> None:
    folder = hf_folder()
    index = {"weight_map": {"a": "model-00001.safetensors", "b": "model.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UnsupportedFormat, match="lacks 1 of its 2 weight files"):
        read_spec(folder)


def test_same_tensor_in_two_shards_is_refused(hf_folder: Write) -> None:
    folder = hf_folder()
    (folder / "more.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    index = {"weight_map": {"a": "more.safetensors", "b": "model.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UnsupportedFormat, match=r"twice, in model\.safetensors and more\.safetensors"):
        read_spec(folder)


def test_paths_that_are_no_checkpoint_are_refused_with_the_next_step(hf_folder: Write, tmp_path: Path) -> None:
    folder = hf_folder()
    with pytest.raises(NotFound, match="no file or folder"):
        read_spec(tmp_path / "absent")
    for part in ("config.json", "model.safetensors"):
        with pytest.raises(UnsupportedFormat, match="Import its folder"):
            read_spec(folder / part)
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(UnsupportedFormat, match="neither a GGUF file nor a folder"):
        read_spec(tmp_path / "notes.txt")
    (folder / "config.json").unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        read_spec(folder)
