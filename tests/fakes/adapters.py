"""Small random LoRA folders as PEFT writes them, and the base with one merged in, which is what they mean."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import sqrt
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")


def write_adapter(
    folder: Path,
    model: Any,
    *,
    targets: Sequence[str] = ATTENTION + MLP,
    rank: int = 4,
    alpha: float = 12.0,
    seed: int = 1,
    dtype: torch.dtype = torch.float32,
    only_layers: Sequence[int] | None = None,
    **config: Any,
) -> Path:
    """An adapter of a transformers model's projections; config overrides what adapter_config.json says."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, module in model.named_modules():
        end = name.rsplit(".", 1)[-1]
        layer = next((int(part) for part in name.split(".") if part.isdigit()), -1)
        if end not in targets or not hasattr(module, "weight") or (only_layers and layer not in only_layers):
            continue
        out, inner = module.weight.shape
        stem = f"base_model.model.{name}"
        tensors[f"{stem}.lora_A.weight"] = torch.randn(rank, inner, generator=draw).mul(0.3).to(dtype)
        tensors[f"{stem}.lora_B.weight"] = torch.randn(out, rank, generator=draw).mul(0.3).to(dtype)
    save_file(tensors, folder / "adapter_model.safetensors")
    stated = {
        "peft_type": "LORA",
        "base_model_name_or_path": "some/base",
        "r": rank,
        "lora_alpha": alpha,
        "target_modules": list(targets),
        "bias": "none",
        "lora_dropout": 0.1,
        "task_type": "CAUSAL_LM",
        "inference_mode": True,
        "modules_to_save": None,
        "use_dora": False,
        "rank_pattern": {},
        "loftq_config": {},
    }
    (folder / "adapter_config.json").write_text(json.dumps(stated | config))
    return folder


def merge(model: Any, folder: Path) -> None:
    """W + scale * B A, in place, by the definition."""
    from safetensors.torch import load_file

    stated = json.loads((folder / "adapter_config.json").read_text())
    rank = stated["r"]
    scale = stated["lora_alpha"] / (sqrt(rank) if stated.get("use_rslora") else rank)
    tensors = load_file(folder / "adapter_model.safetensors")
    modules = dict(model.named_modules())
    with torch.no_grad():
        for name, a in tensors.items():
            if ".lora_A." in name:
                b = tensors[name.replace("lora_A", "lora_B")]
                module = modules[name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")]
                module.weight.add_(scale * (b.float() @ a.float()))
