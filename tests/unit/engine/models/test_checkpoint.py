"""Mapped checkpoints: views instead of copies, release, alignment, files that change."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers

from engine.errors import ConfigError, UnsupportedFormat
from engine.models import Model, load_model
from engine.models.checkpoint import MappedCheckpoint
from engine.spec import read_spec


def small_folder(folder: Path) -> Path:
    config = transformers.LlamaConfig(
        vocab_size=32,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        pad_token_id=0,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def test_matrix_is_a_view_and_survives_release(smollm_path: Path) -> None:
    spec = read_spec(smollm_path)
    seen: list[tuple[int, int]] = []
    checkpoint = MappedCheckpoint(spec, lambda done, total: seen.append((done, total)))
    first, again = checkpoint.matrix("attn_q", 3), checkpoint.matrix("attn_q", 3)
    assert not isinstance(first, torch.Tensor)
    assert not isinstance(again, torch.Tensor)
    assert first.data.data_ptr() == again.data.data_ptr()
    before = first.dequantize(slice(0, 4))
    checkpoint.release()
    assert torch.equal(first.dequantize(slice(0, 4)), before)
    assert seen == [(2 * first.num_bytes, spec.weight_bytes)]
    info = checkpoint.table["attn_q", 3]
    with smollm_path.open("rb") as file:
        file.seek(info.offset_bytes)
        assert first.data.numpy().tobytes() == file.read(info.size_bytes)


def test_misaligned_safetensors_gives_the_same_numbers(tmp_path: Path, load: Callable[..., Model]) -> None:
    folder = small_folder(tmp_path / "m")
    path = folder / "model.safetensors"
    mapped = MappedCheckpoint(read_spec(folder), lambda d, t: None).matrix("embed")
    assert isinstance(mapped, torch.Tensor)
    aligned = mapped.clone()  # the file is written anew below
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = raw[8 : 8 + length].rstrip() + b" "
    header += b" " * ((3 - len(header)) % 4)  # data starts at an odd byte
    path.write_bytes(struct.pack("<Q", len(header)) + header + raw[8 + length :])
    spec = read_spec(folder)
    assert all(info.offset_bytes % 4 for info in spec.tensors)
    moved = MappedCheckpoint(spec, lambda d, t: None).matrix("embed")
    assert isinstance(moved, torch.Tensor)
    assert torch.equal(moved, aligned)
    assert load(folder).spec.vocab_size == 32


def test_file_cut_after_it_was_described_is_refused_before_reading(tmp_path: Path) -> None:
    folder = small_folder(tmp_path / "m")
    spec = read_spec(folder)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UnsupportedFormat, match="import it again"):
        load_model(spec, "cpu", torch.float32, lambda d, t: None)
    path.unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        load_model(spec, "cpu", torch.float32, lambda d, t: None)


def test_architecture_without_model_code_is_refused(tmp_path: Path) -> None:
    spec = replace(read_spec(small_folder(tmp_path / "m")), architecture="unwritten")
    with pytest.raises(UnsupportedFormat, match="unwritten"):
        load_model(spec, "cpu", torch.float32, lambda d, t: None)


def test_weights_wider_than_the_activations_are_narrowed_and_narrower_kept(
    tmp_path: Path, load: Callable[..., Model]
) -> None:
    folder = small_folder(tmp_path / "m")
    assert "linear F32" in load(folder).kernels
    assert "linear BF16" in load(folder, torch.bfloat16).kernels
    config = json.loads((folder / "config.json").read_text())
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**config)).half().save_pretrained(folder)
    assert "linear F16" in load(folder).kernels
    assert "linear BF16" in load(folder, torch.bfloat16).kernels
