"""Multipliers of a KV cache, learnt from a text, as tensors and configuration of a compressed-tensors checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from engine.errors import InvalidParameter, UnsupportedFormat
from engine.kernels.scaled_cache import numbers_of, rounded
from engine.spec.kv_scales import LARGEST
from engine.spec.model_spec import AttentionKind, ModelSpec

CODES = {"fp8": torch.uint8, "int8": torch.int8}
# What is tried in place of a layer's largest number. Whole numbers get finer where the largest few are cut; those of
# E4M3 are as fine anywhere, but what lies on its steps is exact, so all of an octave is tried.
RANGES = {"int8": [1 - i / 20 for i in range(13)], "fp8": [1 + i / 16 for i in range(16)]}
PAGES_AT_ONCE = 64
SMALLEST = 1e-20  # a layer of zeros divides by something


def refuse_unlearnable(spec: ModelSpec, kv: str, text: str) -> None:
    """Raises: InvalidParameter, UnsupportedFormat where multipliers for a cache cannot be learnt."""
    if kv not in LARGEST:
        raise InvalidParameter(f"--kv is {kv!r}.", f"Use one of {', '.join(LARGEST)}.", param="kv")
    if not text:
        raise InvalidParameter(
            "Multipliers of a KV cache are learnt from a text, and --calibrate is none.",
            "Give a file, or leave --calibrate out for the built-in text.",
            param="calibrate",
        )
    if any(layer.attention.kind is AttentionKind.LATENT for layer in spec.layers):
        raise UnsupportedFormat(f"{spec.name} has latent attention, whose cache is kept in 16 bits.", "Leave --kv out.")


def best_scales(view: Tensor, kv: str) -> Tensor:
    """One multiplier for all heads of a layer's K and one for those of its V, with the smallest sum of squared errors.

    Pages that nobody wrote are zeros, which cost nothing.
    Shapes: view [pages, 2, G, page tokens, D] -> [2] float32
    Raises: UnsupportedFormat where a number is none
    """
    found = []
    for plane in (0, 1):
        parts: Sequence[Tensor] = view[:, plane].split(PAGES_AT_ONCE)  # type: ignore[no-untyped-call]
        largest = torch.stack([part.to(torch.float32).abs().amax() for part in parts]).amax()
        if not largest.isfinite():
            raise UnsupportedFormat(
                "A key or value of the text is no finite number.", "Compute in float32: leave --device out."
            )
        tried = [largest.clamp_min(SMALLEST) * share / LARGEST[kv] for share in RANGES[kv]]
        errors = [sum(_error(part, scale.view(1), CODES[kv]) for part in parts) for scale in tried]
        found.append(tried[min(range(len(tried)), key=errors.__getitem__)].to("cpu"))
    return torch.stack(found)


def _error(stored: Tensor, scale: Tensor, codes: torch.dtype) -> float:
    numbers = stored.to(torch.float32)
    return float((numbers_of(*rounded(numbers, codes, scale)) - numbers).square().sum(dtype=torch.float64))


def stored_kv_scales(module: str, scales: Tensor) -> dict[str, Tensor]:
    """module: the attention's, as "model.layers.0.self_attn". Shapes: scales [2]"""
    return {f"{module}.{half}_scale": scales[plane : plane + 1].clone() for plane, half in enumerate("kv")}


def kv_cache_scheme(kv: str) -> dict[str, Any]:
    """What config.json says of them."""
    return {
        "num_bits": 8,
        "type": "float" if kv == "fp8" else "int",
        "symmetric": True,
        "strategy": "tensor",
        "group_size": None,
        "dynamic": False,
        "actorder": None,
        "block_structure": None,
        "observer": "minmax",
        "observer_kwargs": {},
    }
