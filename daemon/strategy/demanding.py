"""Making a model of a plan one that is loaded when it is asked for, or always again."""

from __future__ import annotations

from dataclasses import replace

from daemon.planning.plan import Request
from daemon.planning.profile import OnDemandTerms
from daemon.strategy.desk import PlanningDesk
from daemon.strategy.plans import Plans, SavedPlan
from engine.errors import DoesNotFit, InvalidParameter

_SHORTEST_S, _LONGEST_S = 10.0, 30 * 86_400.0


def load_on_demand(
    desk: PlanningDesk, plans: Plans, name: str, model: str, keep_alive_s: float = 600.0, *, pinned: bool = False
) -> SavedPlan:
    """Add an imported model to a plan, or change it there: on demand it only has to fit beside what is always loaded.

    Blocks: reads headers, hardware and store. Raises: NotFound, ModelNotFound, DoesNotFit, InvalidParameter
    """
    if not _SHORTEST_S <= keep_alive_s <= _LONGEST_S:
        raise InvalidParameter(
            f"a keep-alive of {keep_alive_s:g} s is not between {_SHORTEST_S:g} s and {_LONGEST_S / 86_400:.0f} days.",
            "10m is usual.",
            param="keep_alive",
        )
    plan = plans.get(name)
    always = [p for p in plan.profiles if p.on_demand is None and p.model != model]
    profile = plan.profile_of(model)
    if profile is None:
        answer = desk.planner(beside=always).answer(desk.spec_of_imported(model), Request(plan.strategy))
        if answer.chosen is None:
            reason = answer.why_not[0].reason if answer.why_not else "no device was found"
            raise DoesNotFit(
                f"{model} does not fit beside what plan {name} always loads: {reason}.", "See `bayard plan`."
            )
        profile = answer.chosen
    terms = OnDemandTerms(keep_alive_s, pinned)
    return plans.save(plan.with_profile(replace(profile, on_demand=terms)), f"{model} is loaded on demand")


def load_always(desk: PlanningDesk, plans: Plans, name: str, model: str) -> SavedPlan:
    """Plan the model anew beside all that is always loaded. Raises: NotFound, DoesNotFit, InvalidParameter"""
    plan = plans.get(name)
    profile = plan.profile_of(model)
    if profile is None or profile.on_demand is None:
        raise InvalidParameter(f"plan {name} does not load {model} on demand.", "`bayard plan show` says what it does.")
    always = [p for p in plan.profiles if p.on_demand is None]
    request = Request(plan.strategy, profile.context_tokens, device=profile.device, weights=profile.weights)
    answer = desk.planner(beside=always).answer(desk.spec_of(model), request)
    if answer.chosen is None:
        reason = answer.why_not[0].reason if answer.why_not else "no device was found"
        raise DoesNotFit(f"{model} does not fit beside the rest of plan {name}: {reason}.", "Leave it on demand.")
    kept = answer.chosen.with_adapters(profile.adapters)
    return plans.save(plan.with_profile(kept), f"{model} is always loaded")
