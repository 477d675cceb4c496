"""The planner's answer as JSON and back: what the admin API sends and the command prints with --json."""

from __future__ import annotations

from typing import Any

import msgspec

from daemon.planning.profile import PlanAnswer, Profile


def answer_to_json(answer: PlanAnswer) -> dict[str, Any]:
    """The answer's own fields, and `fits` and each profile's total, which are worked out."""
    built: dict[str, Any] = msgspec.to_builtins(answer)
    built["fits"] = answer.fits
    if answer.chosen is not None:
        built["chosen"]["memory"]["total_bytes"] = answer.chosen.memory.total_bytes
    for shown, candidate in zip(built["candidates"], answer.candidates, strict=True):
        shown["profile"]["memory"]["total_bytes"] = candidate.profile.memory.total_bytes
    for shown, budget in zip(built["budgets"], answer.budgets, strict=True):
        shown["usable_bytes"] = budget.usable_bytes
        shown["capabilities"] = sorted(budget.capabilities)
    return built


def answer_from_json(data: dict[str, Any]) -> PlanAnswer:
    """Raises: msgspec.ValidationError."""
    return msgspec.convert(data, PlanAnswer)


def profile_item(profile: Profile) -> dict[str, Any]:
    """A profile as the admin API shows one in a plan."""
    speed = profile.speed
    return {
        "model": profile.model,
        "device": profile.device,
        "memory_bytes": profile.memory.total_bytes,
        "memory_parts": msgspec.to_builtins(profile.memory.items),
        "context_tokens": profile.context_tokens,
        "kv_tokens": profile.kv_tokens,
        "decode_tok_s": speed.decode_tok_s,
        "batch_tok_s": speed.batch_tok_s,
        "prefill_tok_s": speed.prefill_tok_s,
        "first_token_s": speed.first_token_s,
        "threads": profile.threads,
        "knobs": msgspec.to_builtins(profile.knobs),
        "bounds": msgspec.to_builtins(profile.bounds),
        "on_demand": msgspec.to_builtins(profile.on_demand),
        "reasons": [f"{choice.topic} {choice.value}: {choice.reason}" for choice in profile.choices],
    }
