"""Checkpoints in FP8 with a multiplier a block, as DeepSeek V3 is published."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from engine.errors import UnsupportedFormat
from engine.kernels import registry
from engine.models import Model
from engine.spec import read_spec

BLOCK = 128
PLAIN = ("embed_tokens", "lm_head", "norm", "mlp.gate.")
QUANTISATION = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}


def packed(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """E4M3 numbers, and a multiplier for each block of 128 by 128; blocks at the end may have fewer rows."""
    rows, columns = values.shape
    scales = torch.empty(-(-rows // BLOCK), columns // BLOCK)
    numbers = torch.empty(rows, columns, dtype=torch.float8_e4m3fn)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            block = (slice(i * BLOCK, (i + 1) * BLOCK), slice(j * BLOCK, (j + 1) * BLOCK))
            scales[i, j] = values[block].abs().max() / 448
            numbers[block] = (values[block] / scales[i, j]).to(torch.float8_e4m3fn)
    return numbers, scales


def expanded(scales: torch.Tensor, rows: int) -> torch.Tensor:
    return scales.repeat_interleave(BLOCK, 0)[:rows].repeat_interleave(BLOCK, 1)


def published(folder: Path) -> Path:
    """A random model twice: in FP8, and in the numbers that its FP8 stands for."""
    config = transformers.DeepseekV3Config(
        vocab_size=99,
        hidden_size=256,
        intermediate_size=128,
        moe_intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_shared_experts=1,
        n_group=2,
        topk_group=1,
        first_k_dense_replace=1,
        q_lora_rank=128,
        kv_lora_rank=128,
        qk_rope_head_dim=16,
        qk_nope_head_dim=24,
        v_head_dim=32,
        max_position_embeddings=128,
        initializer_range=0.1,
        pad_token_id=0,
    )
    torch.manual_seed(8)
    plain, fp8 = folder / "plain", folder / "fp8"
    transformers.DeepseekV3ForCausalLM(config).save_pretrained(plain)
    stored = load_file(plain / "model.safetensors")
    for name, values in list(stored.items()):
        if values.ndim == 2 and not any(part in name for part in PLAIN):
            stored[name], stored[f"{name}_scale_inv"] = packed(values)
    stored["model.layers.2.eh_proj.weight"] = torch.zeros(2, 2)  # a layer for speculation is not looked at
    fp8.mkdir()
    save_file(stored, fp8 / "model.safetensors")
    stated = json.loads((plain / "config.json").read_text()) | {"quantization_config": QUANTISATION}
    (fp8 / "config.json").write_text(json.dumps(stated))
    for name in [name for name in stored if name.endswith("_scale_inv")]:
        scales, of = stored.pop(name), name.removesuffix("_scale_inv")
        stored[of] = stored[of].float() * expanded(scales, stored[of].shape[0])
    del stored["model.layers.2.eh_proj.weight"]
    save_file(stored, plain / "model.safetensors", metadata={"format": "pt"})
    return fp8


def test_fp8_checkpoint_gives_the_logits_of_its_numbers(
    tmp_path: Path,
    load: Callable[..., Model],
    harness: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry, "BACKENDS", ("engine.kernels.reference",))  # others hold FP8 as another type
    registry._loaded.cache_clear()
    fp8 = published(tmp_path)
    truth = transformers.DeepseekV3ForCausalLM.from_pretrained(tmp_path / "plain", attn_implementation="eager").eval()
    model = load(fp8)
    assert any(label.startswith("experts fp8") for label in model.kernels)
    prompt = torch.randint(0, 99, (30,), generator=torch.Generator().manual_seed(2)).tolist()
    with torch.no_grad():
        wanted = truth(torch.tensor([prompt])).logits[0]
    torch.testing.assert_close(harness(model).run([prompt], 7)[0], wanted, atol=1e-4, rtol=1e-4)
    registry._loaded.cache_clear()


def test_multipliers_of_another_shape_are_refused(tmp_path: Path) -> None:
    fp8 = published(tmp_path)
    stored = load_file(fp8 / "model.safetensors")
    name = "model.layers.0.mlp.down_proj.weight_scale_inv"
    stored[name] = torch.ones(1, 1)
    save_file(stored, fp8 / "model.safetensors")
    with pytest.raises(UnsupportedFormat, match=r"F32 \[1, 1\]"):
        read_spec(fp8)
