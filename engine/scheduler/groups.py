"""Requests with one prompt between them (n > 1): one computes it, the others wait for its pages and share them.

A member that is running with the prompt's full blocks written is a donor. While none is and one is on its way there,
the others are held back, outside the queue, so that they keep nobody waiting. Should it end or be preempted first, they
are let go and the first of them computes the prompt. Owner: the scheduler.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.scheduler.request import Request, RequestState


@dataclass(slots=True)
class PromptGroup:
    shared_tokens: int  # the prompt's full blocks; the last token is never among them
    members: list[Request] = field(default_factory=list)
    held: list[Request] = field(default_factory=list)

    @property
    def donor(self) -> Request | None:
        return next((m for m in self._running() if m.num_written >= self.shared_tokens), None)

    @property
    def leading(self) -> bool:
        """Someone is computing the prompt."""
        return any(m.num_written < self.shared_tokens for m in self._running())

    @property
    def awaited(self) -> bool:
        """Some members have not run yet: the prompt's pages must stay."""
        return any(m.state is RequestState.WAITING and not m.admitted for m in self.members)

    def _running(self) -> list[Request]:
        return [m for m in self.members if m.state is RequestState.RUNNING]


class PromptGroups:
    def __init__(self) -> None:
        self._groups: dict[str, PromptGroup] = {}

    def of(self, request: Request) -> PromptGroup | None:
        return self._groups.get(request.group)

    def first(self, name: str) -> Request | None:
        """A member still here, to compare a newcomer with."""
        group = self._groups.get(name)
        return group.members[0] if group is not None else None

    def join(self, request: Request, shared_tokens: int) -> None:
        if request.group and shared_tokens > 0:
            self._groups.setdefault(request.group, PromptGroup(shared_tokens)).members.append(request)

    def leave(self, request: Request) -> None:
        group = self._groups.get(request.group)
        if group is None or request not in group.members:
            return
        group.members.remove(request)
        if request in group.held:
            group.held.remove(request)
        if not group.members:
            del self._groups[request.group]

    def let_go(self, request: Request) -> list[Request]:
        """Those held back for this one's sake, if they need wait no longer. Mutates: they are held no more."""
        group = self._groups.get(request.group)
        if group is None or not group.held or (group.leading and group.donor is None):
            return []
        held, group.held = group.held, []
        return held

    @property
    def num_held(self) -> int:
        return sum(len(group.held) for group in self._groups.values())
