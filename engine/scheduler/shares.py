"""How a step's tokens for prompts are shared: better standings first, then tenants by weight, then by rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.scheduler.request import Request


@dataclass(frozen=True, slots=True)
class Want:
    """What one request would take of a step."""

    standing: int
    tenant: str
    weight: float
    tokens: int


def allot(wants: Sequence[Want], budget: int, least: int) -> list[int]:
    """Tokens for each want, which come best-ranked first. A tenant's unused share goes to the others.

    least: a tenant whose turn comes gets this much if there is that much left: a chunk of one token helps nobody
    """
    if sum(want.tokens for want in wants) <= budget:
        return [want.tokens for want in wants]
    given = [0] * len(wants)
    for standing in sorted({want.standing for want in wants}):
        places = [i for i, want in enumerate(wants) if want.standing == standing]
        shares = _tenant_shares([wants[i] for i in places], budget, least)
        for i in places:
            tokens = min(wants[i].tokens, shares[wants[i].tenant], budget)
            given[i] = tokens
            shares[wants[i].tenant] -= tokens
            budget -= tokens
    return given


def shares_of(
    prefills: Sequence[Request], head: Request | None, budget: int, chunk: int, least: int
) -> list[tuple[Request, int]]:
    """Tokens for each of the ranked that run. What the waiting head should have beside them is left over for it."""
    wants = [_want(request, chunk) for request in prefills]
    if head is None or not prefills:
        return list(zip(prefills, allot(wants, budget, least), strict=True))
    place = sum(request.standing <= head.standing for request in prefills)
    given = allot([*wants[:place], _want(head, chunk), *wants[place:]], budget, least)
    return list(zip(prefills, [*given[:place], *given[place + 1 :]], strict=True))


def _want(request: Request, chunk: int) -> Want:
    return Want(request.standing, request.tenant, request.weight, min(request.num_uncomputed, chunk))


def _tenant_shares(wants: Sequence[Want], budget: int, least: int) -> dict[str, int]:
    demand: dict[str, int] = {}
    weights: dict[str, float] = {}
    for want in wants:
        demand[want.tenant] = demand.get(want.tenant, 0) + want.tokens
        weights[want.tenant] = want.weight
    shares: dict[str, int] = {}
    left = budget
    while demand:
        total = sum(weights[tenant] for tenant in demand)
        content = {t: need for t, need in demand.items() if need <= left * weights[t] / total}
        if not content:
            return shares | {t: max(least, int(left * weights[t] / total)) for t in demand}
        for tenant, need in content.items():
            shares[tenant] = need
            left -= need
            del demand[tenant]
    return shares
