"""gpt-oss as it is published: experts in MXFP4 blocks beside their scales."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from engine.errors import UnsupportedFormat
from engine.models import Model
from engine.quant.mxfp4 import from_adjacent_nibbles
from engine.spec import read_spec

EXPERTS, HIDDEN, INNER = 4, 64, 32


def published(folder: Path) -> Any:
    """A random model, its experts quantised in the folder and decoded in what is given back."""
    config = transformers.GptOssConfig(
        vocab_size=99,
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        num_local_experts=EXPERTS,
        num_experts_per_tok=2,
        sliding_window=9,
        max_position_embeddings=128,
        initializer_range=0.2,
        pad_token_id=0,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        attn_implementation="eager",
    )
    torch.manual_seed(6)
    model = transformers.GptOssForCausalLM(config).eval()
    model.save_pretrained(folder)
    stored = load_file(folder / "model.safetensors")
    for layer in range(2):
        for name, rows, columns in (("gate_up_proj", 2 * INNER, HIDDEN), ("down_proj", HIDDEN, INNER)):
            full = f"model.layers.{layer}.mlp.experts.{name}"
            blocks = torch.randint(0, 256, (EXPERTS, rows, columns // 32, 16), dtype=torch.uint8)
            scales = torch.randint(122, 126, (EXPERTS, rows, columns // 32), dtype=torch.uint8)
            decoded = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
            model.get_parameter(full).data.copy_(decoded)
            del stored[full]
            stored |= {f"{full}_blocks": blocks, f"{full}_scales": scales}
    save_file(stored, folder / "model.safetensors")
    stated = json.loads((folder / "config.json").read_text())
    stated["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    (folder / "config.json").write_text(json.dumps(stated))
    return model


def test_published_blocks_give_the_logits_of_their_numbers(
    tmp_path: Path, load: Callable[..., Model], harness: Callable[..., Any]
) -> None:
    truth = published(tmp_path)
    model = load(tmp_path)
    assert any(label.startswith("experts MXFP4") for label in model.kernels)
    prompt = torch.randint(0, 99, (40,), generator=torch.Generator().manual_seed(2)).tolist()
    with torch.no_grad():
        wanted = truth(torch.tensor([prompt])).logits[0]
    torch.testing.assert_close(harness(model).run([prompt], 9)[0], wanted, atol=1e-4, rtol=1e-4)


def test_repacked_blocks_hold_the_same_numbers() -> None:
    blocks = torch.randint(0, 256, (3, 5, 2, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    scales = torch.randint(100, 150, (3, 5, 2), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
    wanted = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32).transpose(1, 2).reshape(15, 64)
    found = from_adjacent_nibbles(blocks.view(-1, 16), scales.view(15, 2))
    assert torch.equal(found.dequantize(), wanted)


@pytest.mark.parametrize(("name", "value"), [("swiglu_limit", 6.0), ("swiglu_alpha", 1.0)])
def test_another_clamp_is_refused(name: str, value: float, tmp_path: Path) -> None:
    published(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))
    with pytest.raises(UnsupportedFormat, match=name):
        read_spec(tmp_path)


def test_scale_that_is_no_number_and_key_that_is_not_known_are_refused(
    tmp_path: Path, load: Callable[..., Model]
) -> None:
    published(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    stored["model.layers.1.mlp.experts.down_proj_scales"][2, 5, 0] = 255
    save_file(stored, tmp_path / "model.safetensors")
    with pytest.raises(UnsupportedFormat, match="layer 1's experts_down_scales holds 1 MXFP4 codes"):
        load(tmp_path)
    path = tmp_path / "config.json"
    stated = json.loads(path.read_text())
    stated["quantization_config"]["rotation"] = "hadamard"
    path.write_text(json.dumps(stated))
    with pytest.raises(UnsupportedFormat, match="states rotation"):
        read_spec(tmp_path)
