"""Expected: what the plan in force wants, for those who ask about a model that no worker serves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from daemon.planning.profile import Profile
from engine.errors import BayardError, NotReady


class Expected:
    """Owner: the PlanController. Event loop only."""

    def __init__(self) -> None:
        self._known = False
        self._wanted: frozenset[str] = frozenset()  # models and their adapters
        self._offers: dict[str, int] = {}
        self._hindrances: dict[str, BayardError] = {}

    def plan(self, wanted: Iterable[Profile], profiles: Iterable[Profile]) -> None:
        """wanted: what is to be loaded now; profiles: all of the plan in force."""
        names = [name for one in wanted for name in (one.model, *(adapter.name for adapter in one.adapters))]
        self._wanted = frozenset(names)
        self._offers = {one.model: one.context_tokens for one in profiles if one.on_demand is not None}
        self._hindrances = {model: error for model, error in self._hindrances.items() if model in self._wanted}

    def note(self, model: str, hindrance: BayardError | None) -> None:
        """What kept one model from being as wanted in this turn."""
        if hindrance is None:
            self._hindrances.pop(model, None)
        else:
            self._hindrances[model] = hindrance

    def know(self) -> None:
        """A turn is over: each worker that is wanted is there, or there is a reason."""
        self._known = True

    @property
    def offers(self) -> Mapping[str, int]:
        """Models that are loaded when they are asked for, and the context they then have, in tokens."""
        return self._offers if self._known else {}

    def is_unwanted(self, model: str) -> bool:
        """Whether the plan in force does not load it now."""
        return model not in self._wanted

    def coming(self, model: str) -> NotReady | None:
        """Why a model without a worker is not there yet; None for one that the plan in force does not load now."""
        if not self._known:
            told = f"Bayard has just started and has not read its plan yet: the model {model!r} is not there."
            return NotReady(told, "Try again shortly.", retry_after_s=1.0)
        if self.is_unwanted(model):
            return None
        hindrance = self._hindrances.get(model)
        if isinstance(hindrance, NotReady):
            return NotReady(hindrance.message, hindrance.hint, retry_after_s=hindrance.retry_after_s)
        if hindrance is not None:  # what it says is for operators, who see it in `bayard status`
            told = f"the model {model!r} is not ready: its worker could not be started."
            return NotReady(told, "An operator can look at `bayard status`.", retry_after_s=2.0)
        return NotReady(f"the model {model!r} is about to be loaded.", "Try again shortly.", retry_after_s=2.0)
