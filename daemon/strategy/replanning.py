"""replan: gives models of the automatic plans other devices while theirs is drained, and theirs back afterwards."""

from __future__ import annotations

from dataclasses import replace

from daemon.events import EventLog
from daemon.planning.strategy import Strategy
from daemon.strategy.adapting import adapt
from daemon.strategy.desk import AUTOMATIC, PlanningDesk
from daemon.strategy.plans import AUTO, Plans, SavedPlan


def replan(desk: PlanningDesk, plans: Plans, events: EventLog, device: str, reason: str) -> list[str]:
    """After a device was drained or is in use again; the plans that changed.

    Automatic plans are made anew where that moves a model away from the device, or back to it. What an operator saved
    is never changed: an event names the plans that need the device. Blocks: reads headers, hardware and store.
    """
    saved = plans.all()
    if not saved:
        return []
    drained = desk.drained()
    for plan in saved:
        there = [p.model for p in plan.profiles if p.device == device]
        if plan.origin != AUTO and there and device in drained:
            told = f"{', '.join(there)} of it can run on {device} alone, and {reason}: save it anew to move it"
            events.publish("plan", plan.name, "saved", "saved", told)
    mine = {s: plan for s in AUTOMATIC for plan in saved if (plan.name, plan.origin) == (s.value, AUTO)}
    models = dict.fromkeys(profile.model for plan in mine.values() for profile in plan.profiles)
    changed: dict[str, float] = {}
    for model in models:
        _move(desk, plans, events, mine, model, device, reason, changed)
    for name, dwell_s in changed.items():
        if dwell_s:
            adapt(desk, plans, name, on=True, dwell_s=dwell_s)
    return list(changed)


def _move(
    desk: PlanningDesk,
    plans: Plans,
    events: EventLog,
    mine: dict[Strategy, SavedPlan],
    model: str,
    device: str,
    reason: str,
    changed: dict[str, float],
) -> None:
    """changed: plans, each with its dwell if load moves its knobs. Mutates: mine and changed"""
    drained = desk.drained()
    before = {s: found for s, plan in mine.items() if (found := plan.profile_of(model)) is not None}
    beside = {s: mine[s].without_model(model).profiles for s in before}
    answers = desk.answers(desk.spec_of(model), list(before), beside)
    for strategy, old in before.items():
        new = answers[strategy].chosen
        if new is None:
            if old.device in drained:
                told = f"{model} has room on no other device than {old.device}, and {reason}: it waits"
                events.publish("plan", strategy.value, "saved", "saved", told)
            continue
        if new.device == old.device or (old.device not in drained and new.device != device):
            continue
        if old.bounds is not None:
            changed[strategy.value] = old.bounds.dwell_s
        changed.setdefault(strategy.value, 0.0)
        moved = desk.with_adapters(replace(new, on_demand=old.on_demand))
        mine[strategy] = plans.save(
            mine[strategy].with_profile(moved), f"{model} moves from {old.device} to {new.device}: {reason}"
        )
