"""OnDemand: models of the plan in force that are loaded when somebody asks for them, and put away when nobody does."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from daemon.planning.profile import Profile
from daemon.workers.states import WorkerState
from daemon.workers.view import WorkerView

_CHEAPEST_LOAD_S = 0.1
_COMES_WITHIN_S = 1.0  # who waits for a model looks far more often whether it is there


@dataclass(slots=True)
class _Use:
    last_mono: float
    submitted_total: int = 0
    asked_mono: float = float("-inf")  # when somebody last found it absent


class OnDemand:
    """Owner: the PlanController. Event loop only. Nothing is stored: after a start the first request loads again."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._allowed: dict[str, Profile] = {}
        self._uses: dict[str, _Use] = {}
        self.on_first: Callable[[str], None] = lambda model: None  # called when a model is asked for that is not there

    def allow(self, profiles: Iterable[Profile]) -> None:
        """What the plan in force offers so; all else is forgotten."""
        self._allowed = {profile.model: profile for profile in profiles if profile.on_demand is not None}
        for model in self._uses.keys() - self._allowed.keys():
            del self._uses[model]

    def names(self) -> Collection[str]:
        return self._allowed.keys()

    def ask(self, model: str) -> bool:
        """Somebody wants it now; False for a model that is not loaded on demand."""
        if model not in self._allowed:
            return False
        use = self._uses.get(model)
        if use is None:
            self._uses[model] = _Use(self._clock(), asked_mono=self._clock())
            self.on_first(model)
        else:
            use.last_mono = use.asked_mono = self._clock()
        return True

    def active(self, views: Iterable[WorkerView]) -> set[str]:
        """Models that are to be loaded now. Those unused for their keep-alive are let go, unless pinned."""
        now = self._clock()
        for view in views:
            use = self._uses.get(view.model)
            if use is None:
                if view.model in self._allowed and view.state is WorkerState.READY:  # loaded before it became on-demand
                    self._uses[view.model] = _Use(now, view.submitted_total)
                continue
            if view.inflight or view.submitted_total != use.submitted_total or view.state is not WorkerState.READY:
                use.last_mono, use.submitted_total = now, view.submitted_total
        for model, use in list(self._uses.items()):
            terms = self._allowed[model].on_demand
            if terms is not None and not terms.pinned and now - use.last_mono > terms.keep_alive_s:
                del self._uses[model]
        return set(self._uses)

    def is_used(self, model: str) -> bool:
        return model in self._uses

    def least_valuable(self, views: Iterable[WorkerView]) -> WorkerView | None:
        """The idle one that was unused longest for what loading it again would take; None if none may be put away."""
        now = self._clock()
        idle = []
        for view in views:
            profile, use = self._allowed.get(view.model), self._uses.get(view.model)
            if profile is None or profile.on_demand is None or profile.on_demand.pinned or use is None:
                continue
            awaited = now - use.asked_mono < _COMES_WITHIN_S  # its first request is about to reach it
            if view.state is WorkerState.READY and not view.inflight and not awaited:
                load_s = max(_CHEAPEST_LOAD_S, view.ready.load_s if view.ready else _CHEAPEST_LOAD_S)
                idle.append(((now - use.last_mono) / load_s, view))
        return max(idle, key=lambda found: found[0])[1] if idle else None

    def may_be_put_away(self, views: Iterable[WorkerView]) -> bool:
        """Whether one of these will make room once it is idle."""
        found = [self._allowed[view.model].on_demand for view in views if view.model in self._allowed]
        return any(terms is not None and not terms.pinned for terms in found)

    def put_away(self, model: str) -> None:
        """Until it is asked for again."""
        self._uses.pop(model, None)
