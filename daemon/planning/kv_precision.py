"""What the KV cache may be kept in on a device."""

from __future__ import annotations

from daemon.planning.budget import DeviceBudget
from daemon.planning.forms import activation_dtype
from daemon.planning.kv_bytes import MULTIPLIER_BYTES
from daemon.planning.strategy import GOALS, Strategy
from engine.spec.model_spec import AttentionKind, ModelSpec

LARGEST_HEAD = 256  # that kernels for a cache of bytes hold


def takes_bytes(spec: ModelSpec, budget: DeviceBudget) -> bool:
    """Whether kernels here read a cache of bytes of this model fast."""
    fit = all(
        layer.attention.kind is not AttentionKind.LATENT
        and layer.attention.head_dim % MULTIPLIER_BYTES == 0
        and layer.attention.head_dim <= LARGEST_HEAD
        for layer in spec.layers
    )
    return fit and not budget.on_cpu and "triton" in budget.capabilities


def offered_kv(spec: ModelSpec, budget: DeviceBudget, strategy: Strategy, asked: str | None) -> tuple[str, ...]:
    """What is usual first: on an accelerator what activations are, and a cache of bytes is offered there too.

    On a CPU float16, whose price is hundredths of a percent of perplexity.
    """
    if asked is not None:
        return (asked,)
    exact = activation_dtype(budget)
    if GOALS[strategy].prefers_exact_kv or spec.is_encoder:
        return (exact,)
    if exact == "float32":
        return ("float16",)
    return (exact, "int8") if takes_bytes(spec, budget) else (exact,)
