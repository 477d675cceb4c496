"""Experts as checkpoints state them, made one MlpSpec."""

from __future__ import annotations

from dataclasses import replace

from engine.spec.fields import MAX_WIDTH, Fields
from engine.spec.model_spec import LayerSpec, MlpKind, MlpSpec

MAX_EXPERTS = 1 << 12
GGUF_SCORES = ("softmax", "sigmoid")  # expert_gating_func 1 and 2
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


def shared_expert_layers(
    stated: Fields,
    layers: tuple[LayerSpec, ...],
    *,
    score: str,
    correction: bool,
    normalised: bool = True,
    grouped: bool = True,
) -> tuple[LayerSpec, ...]:
    """Layers from first_k_dense_replace up with experts, chosen by groups where there are any, beside shared ones.

    score, correction: how the family weighs experts; GGUF states the former, as a number
    normalised: whether HF checkpoints that do not say so mean that weights sum to one
    """
    first_sparse = stated.whole("first_k_dense_replace", 0, len(layers), 0)
    plain = expert_mlp(stated, layers[0].mlp.intermediate_size)
    groups = stated.whole("n_group", 1, plain.num_experts, 1) if grouped else 1
    kept = stated.whole("topk_group", 1, groups, groups) if grouped else 1
    if plain.num_experts % groups or plain.num_experts // groups * kept < plain.experts_per_token:
        raise stated.refuse("topk_group", f"groups that hold {plain.experts_per_token} of {plain.num_experts} experts")
    if stated.gguf:
        score = GGUF_SCORES[stated.whole("scoring_func", 1, len(GGUF_SCORES), GGUF_SCORES.index(score) + 1) - 1]
    else:
        stated.one_of("scoring_func", (score,), score)
    mlp = replace(
        plain,
        shared_intermediate_size=plain.intermediate_size * stated.whole("n_shared_experts", 0, 1 << 10, 0),
        normalise_router=stated.truth("norm_topk_prob", normalised and not stated.gguf),
        router_score=score,
        router_wide=True,
        router_correction=correction,
        router_scale=stated.number("routed_scaling_factor", 0.0, 1e6, 1.0),
        router_groups=groups,
        router_groups_kept=kept,
    )
    return tuple(layer if layer.index < first_sparse else replace(layer, mlp=mlp) for layer in layers)
