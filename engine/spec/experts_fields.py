"""Experts as checkpoints state them, made one MlpSpec."""

from __future__ import annotations

from engine.spec.fields import MAX_WIDTH, Fields
from engine.spec.model_spec import MlpKind, MlpSpec

MAX_EXPERTS = 1 << 12
COUNT_NAMES = ("num_experts", "num_local_experts", "n_routed_experts")


def expert_mlp(stated: Fields, intermediate_size: int) -> MlpSpec:
    """intermediate_size: of one expert where the checkpoint states no other for experts."""
    count = stated.whole(stated.first_stated(*COUNT_NAMES), 1, MAX_EXPERTS)
    return MlpSpec(
        kind=MlpKind.EXPERTS,
        intermediate_size=stated.whole("moe_intermediate_size", 1, MAX_WIDTH, intermediate_size),
        num_experts=count,
        experts_per_token=stated.whole("num_experts_per_tok", 1, count),
    )
