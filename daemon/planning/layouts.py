"""Parallel layouts: how a model can be divided over several devices. Pure arithmetic; whether one runs is not said."""

from __future__ import annotations

from dataclasses import dataclass

from engine.spec.model_spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Layout:
    """tensor x pipeline x data is the number of devices; experts are divided over the tensor and data ones."""

    tensor: int
    pipeline: int
    experts: int
    data: int

    def __str__(self) -> str:
        named = {"tensor": self.tensor, "pipeline": self.pipeline, "expert": self.experts, "data": self.data}
        parts = [f"{name} {degree}" for name, degree in named.items() if degree > 1]
        return f"{' x '.join(parts)} parallel" if parts else "one device"


def layouts_of(spec: ModelSpec, devices: int) -> tuple[Layout, ...]:
    """Those in which one replica spreads over all devices and every degree divides the model, least pipeline first."""
    found = []
    for tensor in range(devices, 0, -1):
        if devices % tensor or not _divides_heads(spec, tensor):
            continue
        pipeline = devices // tensor
        if pipeline > len(spec.layers):
            continue
        counts = {layer.mlp.num_experts for layer in spec.layers if layer.mlp.num_experts}
        divided = bool(counts) and all(count % tensor == 0 for count in counts)
        found.append(Layout(tensor, pipeline, tensor if divided else 1, 1))
    return tuple(found)


def _divides_heads(spec: ModelSpec, tensor: int) -> bool:
    """Key and value heads may be repeated where there are fewer than ranks, as long as each rank has whole ones."""
    for layer in spec.layers:
        attention, mlp = layer.attention, layer.mlp
        if attention.num_heads % tensor:
            return False
        kv_heads = attention.num_kv_heads
        if kv_heads % tensor and tensor % kv_heads:
            return False
        if not mlp.num_experts and mlp.intermediate_size % tensor:
            return False
    return True
