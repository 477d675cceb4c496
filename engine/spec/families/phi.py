"""Phi-3 and Phi-4: Llama with fused projections, heads that rotate in part, and a long form of the rotation."""

from __future__ import annotations

from engine.spec.family import Family, Window

FAMILIES = (
    Family(
        "phi3",
        "Phi-3, Phi-4",
        ("Phi3ForCausalLM",),
        ("phi3",),
        window=Window.EVERY_LAYER,
        partial_rotary=1.0,
        fused_qkv=True,
        fused_gate_up=True,
    ),
)
