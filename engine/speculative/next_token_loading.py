"""load_next_token_layer: the layer for speculation of a Hugging Face folder, read as a model of one layer.

Two ways to name it are known: as one more layer, with its norms and its joining matrix beside it (DeepSeek V3,
GLM-4.5), or under "mtp." (Qwen3-Next). Its embedding and head may be the model's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from engine.devices import Device
from engine.errors import UnsupportedFormat
from engine.kv.layout import solve_layout
from engine.messages import WorkerConfig
from engine.models import load_model
from engine.models.decoder import Decoder
from engine.runner.forward_model import EmbeddingModel, ForwardModel
from engine.spec.model_spec import CheckpointFormat, ModelSpec, TensorInfo
from engine.spec.safetensors_header import read_safetensors_header
from engine.speculative.loading import pool_pages
from engine.speculative.next_token import NextTokenDrafter, NextTokenInput, NextTokenModel, StateKeeper

# what it is here -> what it is called after the layer's prefix
_AS_LAYER = {
    "token_norm": "enorm.weight",
    "state_norm": "hnorm.weight",
    "join": "eh_proj.weight",
    "model.norm.weight": "shared_head.norm.weight",
    "model.embed_tokens.weight": "embed_tokens.weight",
    "lm_head.weight": "shared_head.head.weight",
}
_AS_MTP = {
    "token_norm": "pre_fc_norm_embedding.weight",
    "state_norm": "pre_fc_norm_hidden.weight",
    "join": "fc.weight",
    "model.norm.weight": "norm.weight",
}
_JOINING = ("token_norm", "state_norm", "join")


@dataclass(frozen=True, slots=True)
class NextTokenTensors:
    """A layer for speculation as a model of its own, and the tensors that lead into it."""

    spec: ModelSpec
    joining: Mapping[str, TensorInfo]


def next_token_tensors(spec: ModelSpec) -> NextTokenTensors | None:
    """None for a checkpoint without such a layer. Blocks: reads headers."""
    if spec.format is not CheckpointFormat.HF:
        return None
    stored = [info for file in spec.files for info in read_safetensors_header(Path(file))]
    for prefix, names, inner in ((f"model.layers.{len(spec.layers)}.", _AS_LAYER, ""), ("mtp.", _AS_MTP, "layers.0.")):
        found = {info.name.removeprefix(prefix): info for info in stored if info.name.startswith(prefix)}
        joining = {name: found.pop(names[name]) for name in _JOINING if names[name] in found}
        if len(joining) == len(_JOINING):
            return NextTokenTensors(_one_layer(spec, found, names, inner), joining)
    return None


def load_next_token_layer(
    config: WorkerConfig,
    spec: ModelSpec,
    model: ForwardModel,
    device: Device,
    dtype: torch.dtype,
    kv_dtype: torch.dtype,
    max_context_tokens: int,
    progress: Callable[[str, int, int], None],
) -> NextTokenDrafter:
    """The drafter; its `target` is what takes the model's place in the engine.

    Raises: UnsupportedFormat when the checkpoint has no such layer; DoesNotFit
    """
    tensors = next_token_tensors(spec)
    if tensors is None or not isinstance(model, EmbeddingModel):
        raise UnsupportedFormat(
            f"{spec.name} has no layer that guesses the token after the next one.",
            "Name a small model of the same tokens as the draft model, or none.",
        )
    layer = load_model(
        tensors.spec,
        device.torch_device,
        dtype,
        lambda done, total: progress("reading the layer for speculation", done, total),
        max_context_tokens=max_context_tokens,
        kv_dtype=kv_dtype,
        activation=config.activation,
        capabilities=device.capabilities.names(),
    )
    assert isinstance(layer, Decoder)
    norms = [_read(tensors.joining[name], device, torch.float32) for name in _JOINING[:2]]
    join = _read(tensors.joining["join"], device, dtype)
    entry = NextTokenInput(layer.embed, layer.ops, norms[0], norms[1], join, spec.norm_eps)
    layer.embed = entry  # type: ignore[assignment]  # it takes tokens to vectors too, but needs states for it
    layout = solve_layout(tensors.spec, bytes_per_element=kv_dtype.itemsize, page_tokens=config.page_tokens)
    return NextTokenDrafter(
        NextTokenModel(layer, entry),
        StateKeeper(model),
        layout,
        num_large_pages=pool_pages(config, tensors.spec, layout, kv_dtype, max_context_tokens, device) + 1,
        kv_dtype=kv_dtype,
        device=device,
        max_context_tokens=max_context_tokens,
        vocab_size=spec.vocab_size,
        chunk_tokens=config.knobs.prefill_chunk,
    )


def _one_layer(spec: ModelSpec, found: Mapping[str, TensorInfo], names: Mapping[str, str], inner: str) -> ModelSpec:
    """The layer as a whole model; what it has no tensor for, an embedding or a head, is the model's own."""
    outer = {stored: ours for ours, stored in names.items() if ours not in _JOINING}
    tensors = {}
    for name, info in found.items():
        ours = outer.get(name) or f"model.layers.0.{name.removeprefix(inner)}"
        tensors[ours] = replace(info, name=ours)
    for info in spec.tensors:
        if info.name in ("model.embed_tokens.weight", "lm_head.weight"):
            tensors.setdefault(info.name, info)
    last = replace(spec.layers[-1], index=0)
    return replace(
        spec, name=f"{spec.name} (speculation)", layers=(last,), tensors=tuple(tensors.values()), pooling=None
    )


def _read(info: TensorInfo, device: Device, dtype: torch.dtype) -> Tensor:
    with safe_open(info.file, "pt") as file:
        stored: Tensor = file.get_tensor(info.name)
    return stored.to(device=device.torch_device, dtype=dtype)
