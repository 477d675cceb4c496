"""Who of those that run comes first, and who gives way to one that waits.

Rank is standing, then how many of its tenant's running requests are older, by weight, then age. The best-ranked stays
so until it ends: whoever is older than it has an older one of its own tenant before it.
"""

from __future__ import annotations

from collections import Counter

from engine.scheduler.request import Request


def sort_by_rank(running: list[Request]) -> None:
    """Best first. Mutates: the list, and the rank of each."""
    running.sort(key=lambda request: (request.standing, request.turn))
    older: Counter[tuple[int, str]] = Counter()
    for request in running:
        whose = (request.standing, request.tenant)
        request.rank = (request.standing, older[whose] / request.weight, request.turn)
        older[whose] += 1
    running.sort(key=lambda request: request.rank)


def who_gives_way(running: list[Request], head: Request) -> Request | None:
    """Of the ranked: one of a worse standing, or of a tenant that has several running where the head's has none.

    Each time leaves fewer of whom that is true, so nobody is preempted to and fro.
    """
    if not running:
        return None
    if running[-1].standing > head.standing:
        return running[-1]
    count = Counter(request.tenant for request in running)
    if head.tenant in count:
        return None
    tenant, most = count.most_common(1)[0]
    last = next(request for request in reversed(running) if request.tenant == tenant)
    return last if most > 1 and last.standing >= head.standing else None
