"""Choosing each token's experts in one short kernel: scores, the largest few, their shares."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.kernels import reference_experts
from engine.kernels.triton.chained import chains, launch, let_next_start, wait_for_last


@triton.jit
def _route_kernel(
    logits, correction, ids, weights, count, scale,
    COUNT: tl.constexpr, PAD: tl.constexpr, BLOCK: tl.constexpr,
    SIGMOID: tl.constexpr, NORMALISE: tl.constexpr, CORRECTED: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, BLOCK)
    if CHAINED:
        let_next_start()
        wait_for_last()
    mask = lanes < count
    raw = tl.load(logits + token * count + lanes, mask=mask, other=float("-inf")).to(tl.float32)
    if SIGMOID:
        scores = tl.where(mask, tl.sigmoid(raw), 0.0)
    else:
        powers = tl.exp(raw - tl.max(raw, axis=0))
        scores = powers / tl.sum(powers, axis=0)
    ranked = scores
    if CORRECTED:
        ranked = scores + tl.load(correction + lanes, mask=mask, other=0.0).to(tl.float32)
    ranked = tl.where(mask, ranked, float("-inf"))
    places = tl.arange(0, PAD)
    chosen = tl.zeros([PAD], tl.int32)
    shares = tl.zeros([PAD], tl.float32)
    for place in tl.static_range(COUNT):
        best = tl.argmax(ranked, axis=0)
        share = tl.sum(tl.where(lanes == best, scores, 0.0), axis=0)
        chosen = tl.where(places == place, best, chosen)
        shares = tl.where(places == place, share, shares)
        ranked = tl.where(lanes == best, float("-inf"), ranked)
    if NORMALISE:
        shares = shares / tl.sum(shares, axis=0)
    kept = places < COUNT
    tl.store(ids + token * COUNT + places, chosen, mask=kept)
    tl.store(weights + token * COUNT + places, shares * scale, mask=kept)


def route(
    logits: torch.Tensor,
    count: int,
    score: str = "softmax",
    normalise: bool = True,
    scale: float = 1.0,
    correction: torch.Tensor | None = None,
    groups: int = 1,
    groups_kept: int = 1,
    group_top: int = 2,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Shapes and meaning as reference_experts.route, which takes the grouped choice."""
    if groups > 1:
        return reference_experts.route(
            logits, count, score, normalise, scale, correction, groups, groups_kept, group_top
        )
    logits = logits.contiguous()
    tokens, experts = logits.shape
    ids = torch.empty(tokens, count, dtype=torch.int32, device=logits.device)
    weights = torch.empty(tokens, count, dtype=torch.float32, device=logits.device)
    if tokens:
        _route_kernel[(tokens,)](
            logits, logits if correction is None else correction, ids, weights, experts, scale,
            count, triton.next_power_of_2(count), triton.next_power_of_2(experts),
            score == "sigmoid", normalise, correction is not None, chains(logits.device),
            num_warps=1, **launch(logits.device),
        )  # fmt: skip
    return ids, weights
