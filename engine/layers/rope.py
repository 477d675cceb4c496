"""The rotary table: cosines and sines of every position, with each family's way of stretching them.

Source: RoPE (arXiv 2104.09864), YaRN (arXiv 2309.00071), and the scaling published with Llama 3.1.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from engine.spec.model_spec import RopeSpec


def rope_table(spec: RopeSpec, max_context_tokens: int, device: torch.device, factors: Tensor | None = None) -> Tensor:
    """Half cosines, half sines of each position's angles.

    Shapes: factors [R/2], divisors for scaling_kind "factors" or "long_factors" -> [max_context_tokens, R] float32
    """
    if spec.scaling_kind == "longrope":
        length = long_or_short(spec, max_context_tokens)
        factors = torch.tensor([value for name, value in spec.scaling if name.startswith(f"{length}.")])
    frequencies, magnitude = scaled_frequencies(spec, factors)
    # On the device: a host whose cores are at work on the weights takes a tenth of the load for it.
    positions = torch.arange(max_context_tokens, dtype=torch.float32, device=device)
    angles = torch.outer(positions, frequencies.to(device))
    return torch.cat((angles.cos(), angles.sin()), dim=1) * magnitude


def scaled_frequencies(spec: RopeSpec, factors: Tensor | None = None) -> tuple[Tensor, float]:
    """Angle a position, for each pair of dimensions [R/2], and what cosines and sines are multiplied with."""
    exponents = torch.arange(0, spec.rotary_dim, 2, dtype=torch.int64).to(torch.float32) / spec.rotary_dim
    plain = 1.0 / (spec.theta**exponents)
    scaling = dict(spec.scaling)
    if spec.scaling_kind == "none":
        return plain, 1.0
    if spec.scaling_kind in ("factors", "longrope", "long_factors"):
        assert factors is not None, "the family's loader gives the divisors"
        return plain / factors.to(torch.float32).cpu(), scaling.get("attention_factor", 1.0)
    if spec.scaling_kind == "linear":
        return plain / scaling["factor"], 1.0
    if spec.scaling_kind == "llama3":
        return _llama3(plain, scaling), 1.0
    assert spec.scaling_kind == "yarn", spec.scaling_kind
    return _yarn(plain, spec, scaling), _yarn_magnitude(scaling)


def long_or_short(spec: RopeSpec, max_context_tokens: int) -> str:
    """Which divisors all positions use. Keys stay in the cache as they were turned, so one form serves every length."""
    return "long" if max_context_tokens > dict(spec.scaling)["original_max_tokens"] else "short"


def _llama3(plain: Tensor, scaling: dict[str, float]) -> Tensor:
    """Keep fast pairs, slow the slow ones by factor, and blend in between by wavelength."""
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    original = scaling["original_max_tokens"]
    wavelengths = 2 * math.pi / plain
    slowed = plain / scaling["factor"]
    share = (original / wavelengths - low) / (high - low)
    blended = (1 - share) * slowed + share * plain
    found = torch.where(wavelengths > original / low, slowed, plain)
    between = (wavelengths >= original / high) & (wavelengths <= original / low)
    return torch.where(between, blended, found)


def _yarn(plain: Tensor, spec: RopeSpec, scaling: dict[str, float]) -> Tensor:
    """Blend kept and slowed frequencies over pairs that turn beta_slow to beta_fast times in the original context."""
    dim, original = spec.rotary_dim, scaling["original_max_tokens"]

    def pair_turning(times: float) -> float:
        return dim * math.log(original / (times * 2 * math.pi)) / (2 * math.log(spec.theta))

    low, high = pair_turning(scaling["beta_fast"]), pair_turning(scaling["beta_slow"])
    if scaling["truncate"]:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001  # a step, without dividing by zero
    slowed_share = ((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    return plain / scaling["factor"] * slowed_share + plain * (1 - slowed_share)


def _yarn_magnitude(scaling: dict[str, float]) -> float:
    def of(weight: float) -> float:
        return 1.0 if scaling["factor"] <= 1 else 0.1 * weight * math.log(scaling["factor"]) + 1.0

    if "attention_factor" in scaling:
        return scaling["attention_factor"]
    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        return of(scaling["mscale"]) / of(scaling["mscale_all_dim"])
    return of(1.0)
