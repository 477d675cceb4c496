"""Who is admitted next: classes by priority with ageing, and within a class tenants by deficit round robin.

A tenant's deficit is what it may still take before it is the others' turn, in tokens: a round adds QUANTUM_TOKENS times
its weight, admission and each output token take from it. So a tenant with 500 requests waiting delays another's one by
a quantum, not by 500; and whoever begins to wait, having had less than that, has the next turn. Debts are forgotten
when nobody of the class waits: then there was enough for all.

Of the classes in which someone waits the best is served, but one that was passed over for AGEING_S a better class
counts as the best for one admission, and that request keeps the better standing. So between two admissions no class
waits longer than AGEING_S times the number of classes above it. Owner: the scheduler.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterator

from engine.scheduler.request import Request

QUANTUM_TOKENS = 256
AGEING_S = 10.0


class TenantQueue:
    """Those of one tenant in one class: who ran before first, then by arrival."""

    def __init__(self) -> None:
        self.weight = 1.0
        self.deficit = float(QUANTUM_TOKENS)  # a newcomer's first turn needs no round
        self._pushes = 0
        self._heap: list[tuple[tuple[int, int], int, Request]] = []

    def push(self, request: Request) -> None:
        self.weight = request.weight
        self._pushes += 1
        heapq.heappush(self._heap, (request.place, self._pushes, request))

    def head(self) -> Request | None:
        while self._heap and not self._heap[0][2].queued:
            heapq.heappop(self._heap)  # taken, or ended while it waited
        return self._heap[0][2] if self._heap else None

    def __iter__(self) -> Iterator[Request]:
        return (request for _, _, request in self._heap if request.queued)


class ClassQueue:
    """Requests of one standing."""

    def __init__(self, now: float) -> None:
        self.passed_since = now  # when it was last served, or began to wait
        self._tenants: dict[str, TenantQueue] = {}
        self._turns: deque[TenantQueue] = deque()  # tenants with someone waiting, the one whose turn it is first

    def push(self, request: Request) -> None:
        tenant = self._tenants.setdefault(request.tenant, TenantQueue())
        tenant.push(request)
        if tenant in self._turns:
            return
        if tenant.deficit > 0:
            self._turns.appendleft(tenant)  # who asks for little does not wait for the turns of those who flood
        else:
            self._turns.append(tenant)

    def head(self) -> Request | None:
        """Whose turn it is, until it is admitted or ends, or its tenant's deficit is used up."""
        while self._turns:
            for _ in range(len(self._turns)):
                tenant = self._turns[0]
                request = tenant.head()
                if request is None:
                    self._turns.popleft()
                    tenant.deficit = min(tenant.deficit, QUANTUM_TOKENS * tenant.weight)  # nothing is saved up
                elif tenant.deficit > 0:
                    return request
                else:
                    self._turns.rotate(-1)
            if self._turns:
                self._next_rounds()
        self._tenants.clear()
        return None

    def charge(self, tenant: str, tokens: int) -> None:
        queue = self._tenants.get(tenant)
        if queue is not None:
            queue.deficit -= tokens

    def __iter__(self) -> Iterator[Request]:
        return (request for tenant in self._tenants.values() for request in tenant)

    def _next_rounds(self) -> None:
        """As many rounds as it takes for one of the waiting to have something again. None of them has now."""
        rounds = min(math.floor(-tenant.deficit / (QUANTUM_TOKENS * tenant.weight)) + 1 for tenant in self._turns)
        for tenant in self._tenants.values():
            added = tenant.deficit + rounds * QUANTUM_TOKENS * tenant.weight
            tenant.deficit = added if tenant in self._turns else min(max(0.0, tenant.deficit), added)


class WaitingQueue:
    """All that wait. `now` is on the caller's monotonic clock, in seconds."""

    def __init__(self) -> None:
        self._classes: dict[int, ClassQueue] = {}

    def push(self, request: Request, now: float) -> None:
        """Mutates: request.queued."""
        request.queued = True
        queue = self._classes.get(request.standing)
        if queue is None:
            queue = self._classes[request.standing] = ClassQueue(now)
        queue.push(request)

    def head(self, now: float) -> Request | None:
        """Who is next, or None if nobody waits."""
        waiting = self._waiting()
        if not waiting:
            return None
        _, request = waiting[0]
        longest = 0.0
        for better, (standing, head) in enumerate(waiting):
            overdue_s = now - self._classes[standing].passed_since - AGEING_S * better
            if better and overdue_s >= longest:
                longest, request = overdue_s, head
        return request

    def take(self, request: Request, now: float) -> None:
        """The head is admitted, with the standing of the best class waiting. Mutates: queued and standing of it."""
        self._classes[request.standing].passed_since = now
        best = self._waiting()[0][0]
        self.withdraw(request)
        request.standing = best

    def withdraw(self, request: Request) -> None:
        """The head leaves, and may be pushed again later. Mutates: request.queued."""
        request.queued = False
        self._classes[request.standing].head()  # forgets it

    def remove(self, request: Request) -> None:
        """It has ended, wherever it was in the queue. Mutates: request.queued."""
        request.queued = False

    def charge(self, request: Request, tokens: int) -> None:
        """The request's tenant has had so many tokens."""
        queue = self._classes.get(request.standing)
        if queue is not None:
            queue.charge(request.tenant, tokens)

    def __iter__(self) -> Iterator[Request]:
        return (request for queue in self._classes.values() for request in queue)

    def _waiting(self) -> list[tuple[int, Request]]:
        """Standing and head of each class in which someone waits, best first. Mutates: empty classes go."""
        found = []
        for standing in sorted(self._classes):
            head = self._classes[standing].head()
            if head is None:
                del self._classes[standing]
            else:
                found.append((standing, head))
        return found
