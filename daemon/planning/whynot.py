"""Why a model does not run here: both numbers, and the nearest change that would make it fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from daemon.planning.budget import DeviceBudget
from daemon.planning.fit import FitModel
from daemon.planning.layouts import layouts_of
from daemon.planning.profile import WhyNot
from daemon.planning.traffic import Traffic
from daemon.planning.units import human_bytes, human_tokens
from engine.messages import Knobs
from engine.spec.model_spec import ModelSpec

# Bytes per weight of a 4-bit GGUF with its block scales (Q4_K: 144 bytes for 256 weights).
_FOUR_BIT_BYTES = 144 / 256
_SMALLEST_CONTEXT_TOKENS = 1024


def does_not_fit(fit: FitModel, budget: DeviceBudget, knobs: Knobs, context: int, pool: int) -> WhyNot:
    """The refusal of one candidate at the smallest shape that was acceptable."""
    need = fit.estimate(knobs, pool).total_bytes
    have = budget.usable_bytes
    name = f"{fit.spec.source_dtype} weights, {fit.kv_dtype} KV, {human_tokens(context)} context on {budget.name}"
    reason = f"needs {human_bytes(need)}; {human_bytes(have)} are usable ({_spelled(budget)})"
    return WhyNot(f"{name} ({budget.device})", reason, need, have, nearest_change(fit, budget, knobs, context, pool))


def nearest_change(fit: FitModel, budget: DeviceBudget, knobs: Knobs, context: int, pool: int) -> str:
    """The smallest step away from what was asked that fits, in words."""
    have = budget.usable_bytes
    possible = fit.kv_tokens_within(have, knobs)
    if possible >= pool > 0:  # only the host pool's own bound stood in the way
        return f"ask with --users, which lets the KV pool take more than half of {budget.name}"
    if pool > context and possible >= context:
        users = max(1, possible // context)
        return f"{users} user{'s' if users > 1 else ''} at {human_tokens(context)} fit"
    if possible >= _SMALLEST_CONTEXT_TOKENS and possible < context:
        shorter = _SMALLEST_CONTEXT_TOKENS
        while shorter * 2 <= possible:
            shorter *= 2
        return f"a context of {human_tokens(shorter)} fits"
    if fit.kv_dtype == "float32":
        half = replace(fit, kv_dtype="float16")
        if half.kv_tokens_within(have, knobs) >= pool:
            return "KV in float16 fits"
    four = four_bit_bytes(fit, knobs, context)
    if four < fit.estimate(knobs, context).total_bytes and four <= have:
        return f"4-bit weights fit: {human_bytes(four)} (import a Q4_K GGUF of this model)"
    missing = fit.estimate(knobs, pool).total_bytes - have
    return f"{human_bytes(missing)} more on {budget.name}"


def four_bit_bytes(fit: FitModel, knobs: Knobs, kv_tokens: int) -> int:
    """Total need were every matrix stored in 4 bits."""
    matrices = sum(t.num_elements for t in fit.spec.tensors if len(t.shape) >= 2)
    vectors = sum(t.num_elements for t in fit.spec.tensors if len(t.shape) < 2)
    weights = int(matrices * _FOUR_BIT_BYTES) + vectors * 4
    return fit.estimate(knobs, kv_tokens).total_bytes - fit.weights().size_bytes + weights


def _spelled(budget: DeviceBudget) -> str:
    parts = [f"{size_name} {human_bytes(size)}" for size_name, size in budget.limits]
    parts.append(f"reserve {human_bytes(budget.reserve_bytes)}")
    parts.extend(f"claimed by {claim.owner} {human_bytes(claim.size_bytes)}" for claim in budget.claims)
    parts.extend(f"held by {holder}" for holder in budget.holders)
    return ", ".join(parts)


def beyond_this_version(spec: ModelSpec, traffic: Traffic, budgets: Sequence[DeviceBudget]) -> tuple[WhyNot, ...]:
    """What a capability this version lacks would make fit; named, never promised."""
    found = []
    need = traffic.weight_bytes
    together: dict[str, list[DeviceBudget]] = {}
    host = next((budget for budget in budgets if budget.on_cpu), None)
    for budget in budgets:
        if not budget.on_cpu and budget.unusable is None:
            together.setdefault(budget.name, []).append(budget)
    for name, group in together.items():
        have = sum(budget.usable_bytes for budget in group)
        layouts = layouts_of(spec, len(group))
        if len(group) > 1 and need < have and layouts:
            found.append(
                WhyNot(
                    f"spread over {len(group)} x {name}",
                    f"its {human_bytes(need)} of weights fit in {human_bytes(have)} together, "
                    "but this version runs a replica on one device",
                    need,
                    have,
                    f"a version that runs {', or '.join(str(layout) for layout in layouts[:3])}",
                )
            )
        expert_bytes = sum(share.size_bytes for share in traffic.experts)
        rest = need - expert_bytes
        if host is not None and expert_bytes and rest < group[0].usable_bytes and expert_bytes < host.usable_bytes:
            found.append(
                WhyNot(
                    f"experts in host memory beside {name}",
                    f"{human_bytes(expert_bytes)} of experts fit in the host's {human_bytes(host.usable_bytes)} and "
                    f"{human_bytes(rest)} on the device, but this version keeps a replica on one device",
                    need,
                    group[0].usable_bytes,
                    "a version with host experts",
                )
            )
        layer_bytes = need - expert_bytes if expert_bytes else need
        if host is not None and not expert_bytes and group[0].usable_bytes < layer_bytes:
            both = group[0].usable_bytes + host.usable_bytes
            if layer_bytes < both:
                found.append(
                    WhyNot(
                        f"layers in host memory beside {name}",
                        f"{human_bytes(need)} of weights fit in {human_bytes(both)} of device and host together, "
                        "but this version keeps all layers of a replica on one device",
                        need,
                        group[0].usable_bytes,
                        "a version that streams layers from host memory",
                    )
                )
    return tuple(found)
