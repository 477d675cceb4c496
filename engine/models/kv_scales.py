"""A layer's constants that multiply the codes of its K and V, from its checkpoint to its device."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.errors import UnsupportedFormat
from engine.models.checkpoint import MappedCheckpoint
from engine.spec.kv_scales import LARGEST, ROLES
from engine.spec.model_spec import LayerSpec, ModelSpec


def layer_kv_scales(
    checkpoint: MappedCheckpoint, spec: ModelSpec, layer: LayerSpec, cache_kind: str, device: torch.device
) -> Tensor | None:
    """Multipliers of each head's K and V; None where heads have their own.

    cache_kind: "fp8" or "int8", of which another one than the constants were made for gets the same range
    Shapes: -> [2, G] float32
    Raises: UnsupportedFormat for a multiplier that is none
    """
    if not checkpoint.calibrated_kv:
        checkpoint.passed(list(ROLES), layer.index)
        return None
    made_for = spec.kv_scheme.kind if spec.kv_scheme else "fp8"
    heads = layer.attention.num_kv_heads
    found = torch.empty(2, heads)
    for plane, role in enumerate(ROLES):
        stored = checkpoint.vector(role, layer.index, torch.device("cpu"), torch.float32).flatten()
        found[plane] = stored if made_for == cache_kind else stored * (LARGEST[made_for] / LARGEST[cache_kind])
        wrong = found[plane][~(found[plane].isfinite() & (found[plane] > 0.0))]
        if len(wrong):
            raise UnsupportedFormat(
                f"{spec.name} has {checkpoint.table[role, layer.index].name} = {float(stored.min()):g}; "
                "a finite number above zero is needed.",
                "Use kv_scales dynamic, or calibrate the checkpoint again.",
            )
    return found.to(device)
